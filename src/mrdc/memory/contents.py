"""Contents of a memory, and how they are read."""

import operator
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from mrdc._utils.errors import MissingError, UsageError
from mrdc._utils.extras import Tensor, installed_torch
from mrdc._utils.ranks import rank
from mrdc._utils.text import count
from mrdc._utils.threads import ordered, workers
from mrdc.codec import CODECS, Codec
from mrdc.codec.image import Pixels
from mrdc.codec.jpeg_progressive import check_fade
from mrdc.data.examples import Examples
from mrdc.data.loader import batches
from mrdc.data.photo import channels_first, to_pixels
from mrdc.data.scenes import Boxes
from mrdc.memory.budget import Budget, parse_budget, parse_bytes
from mrdc.memory.classes import ClassImages, tables_in_use
from mrdc.memory.encode import Encoded, Encoder
from mrdc.memory.fade import scan_counts
from mrdc.memory.payload import Spool
from mrdc.memory.photos import Index, StoredPhotos
from mrdc.memory.sampling import collate, column, draw
from mrdc.memory.stored import StoredMemory
from mrdc.memory.values import unpack

if TYPE_CHECKING:
    from torch.utils.data import Dataset

    class DataSet(Dataset[tuple[Any, int]]): ...
else:

    class DataSet:
        """A map-style data set needs no base class, so torch is not imported for one."""


Transform = Callable[[Any], Any]


class Contents(DataSet):
    """Settings and images of a memory; `ReplayMemory` describes them."""

    def __init__(
        self,
        budget: Budget | int | str,
        codec: Codec | str = "jpeg",
        quality: SupportsIndex | None = None,
        *,
        accounting: Literal["packed", "file"] = "packed",
        fade: bool = False,
        class_names: Mapping[int, str] | None = None,
        transform: Transform | None = None,
        original_bytes: float | None = None,
        spool: Path | None = None,
        part_size: int | str | None = None,
        seed: int = 0,
    ):
        self.budget = parse_budget(budget, original_bytes)
        self.codec = CODECS.find(codec) if isinstance(codec, str) else codec
        if not isinstance(self.codec, Codec):
            raise UsageError(f"codec must be a name or an object such as Jpeg(), got {codec!r}")
        self.quality = self.codec.default_quality if quality is None else quality
        if accounting not in ("packed", "file"):
            raise UsageError(f"accounting must be 'packed' or 'file', got {accounting!r}")
        self.accounting: Literal["packed", "file"] = accounting
        self.fade = fade
        if fade:
            check_fade([self.codec.name], "fade")
        self.class_names = dict(class_names or {})
        self.transform = transform
        self.notes: dict[str, Any] = {}
        self.boxes: dict[str, Boxes] = {}
        self.box_classes: tuple[str, ...] = ()
        self._spool = Spool(spool) if spool is not None else None
        self.part_size = None if part_size is None else parse_bytes(part_size)
        self._classes: dict[int, ClassImages] = {}
        self._index = Index({})
        self._loaded: StoredMemory | None = None  # holds the same images, if they were loaded
        self._epoch = 0  # of the next training batches
        self._random = np.random.default_rng((seed, rank()) if rank() else seed)  # draws samples

    @property
    def quality(self) -> int | None:
        """Quality of the images that are added from now on."""
        return self._quality

    @quality.setter
    def quality(self, given: SupportsIndex | None) -> None:
        self.codec.check_quality(given)
        self._quality = None if given is None else operator.index(given)

    # A data set

    def __len__(self) -> int:
        return len(self._index)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return self._view(channels_first(self._pixels(index))), self._find(index)[0]

    def __repr__(self) -> str:
        quality = "" if self.quality is None else f" {self.quality}"
        return (
            f"<{type(self).__name__}: {count(len(self), 'image')} of "
            f"{count(len(self._classes), 'class')}, "
            f"{self.nbytes:,} of {self.budget_bytes:,} bytes, {self.codec.name}{quality}>"
        )

    @property
    def labels(self) -> list[int]:
        """Labels of the classes, in the order they were added."""
        return list(self._classes)

    @property
    def classes(self) -> list[str]:
        """Names of the classes, in label order."""
        return [self._name(label) for label in sorted(self._classes)]

    @property
    def targets(self) -> NDArray[np.int64]:
        """Label of every image."""
        return self._index.labels()

    @property
    def ranks(self) -> NDArray[np.int64]:
        """Rank of every image in its class, best first."""
        return self._index.ranks()

    @property
    def nbytes(self) -> int:
        """Bytes of the images and the values beside them, and of each shared header once."""
        if self._loaded is not None:
            return self._loaded.image_bytes
        shared = sum(map(len, tables_in_use(self._classes)))
        return sum(images.nbytes for images in self._classes.values()) + shared

    @property
    def budget_bytes(self) -> int:
        """Bytes the present classes may take."""
        return self.budget.total_bytes(len(self._classes))

    @property
    def whole_file(self) -> bool:
        """True if the budget bounds the saved file rather than the images alone."""
        return self.budget.unit == "bytes"

    # Single images

    def encoded(self, index: int) -> bytes:
        """An image as a whole file."""
        _, images, rank = self._find(index)
        return images.stream(rank)

    def values(self, index: int) -> dict[str, Any]:
        """The values beside an image, by name: arrays and JSON values."""
        _, images, rank = self._find(index)
        return unpack(images.values(rank))

    def encoded_images(self, label: SupportsIndex) -> list[Encoded]:
        """The images of a class as stored, for `add` of another memory."""
        return self._class(label).encoded()

    def sources(self, label: SupportsIndex) -> list[str]:
        """Ids of a class's images, in rank order."""
        return self._class(label).sources

    def seen(self, label: SupportsIndex) -> int:
        """Number of images offered to a class so far, stored or not."""
        return self._class(label).seen

    def duplicates(self) -> dict[int, int]:
        """Number of exact duplicates left out, for each class that had any."""
        return {label: c.duplicates for label, c in self._classes.items() if c.duplicates}

    def kept_sources(self) -> int:
        """Number of images stored as source bytes because encoding made them no smaller."""
        return sum(int(images.kept.sum()) for images in self._classes.values())

    def is_source(self, label: int) -> NDArray[np.bool_]:
        """Whether each image of a class, in rank order, is stored as its source bytes."""
        return self._class(label).kept

    def scans(self) -> dict[int, int]:
        """Number of images by scans, for codec jpeg-progressive: how faded they are."""
        return scan_counts(place for images in self._classes.values() for place in images.segments)

    def _class(self, label: SupportsIndex) -> ClassImages:
        number = operator.index(label)
        if number not in self._classes:
            held = ", ".join(map(str, sorted(self._classes)[:10])) or "no class"
            raise UsageError(f"class {number} is not in the memory, which holds {held}")
        return self._classes[number]

    def _find(self, index: int) -> tuple[int, ClassImages, int]:
        return self._index.find(index)

    def _pixels(self, index: int) -> Pixels:
        _, images, rank = self._find(index)
        return to_pixels(images.load(rank), "image")

    def _name(self, label: int) -> str:
        return self.class_names.get(label, str(label))

    def _view(self, image: Any) -> Any:
        if self.transform is None:
            return image
        try:
            return self.transform(image)
        except TypeError as error:
            error.add_note(
                "The transform of a memory gets tensors (3, h, w) of type uint8: begin it with "
                "torchvision.transforms.v2.ToImage(), which takes these and PIL images."
            )
            raise

    def _encoder(self) -> Encoder:
        return Encoder(self.codec, self.quality, self.accounting == "packed")

    # Many images

    def examples(self) -> Examples:
        """The images as encoded training examples, unaffected by later changes."""
        return Examples(StoredPhotos(self._index), tuple(self.targets.tolist()))

    def draw(self, count: int, *, balanced: bool = False, seed: int | None = None) -> list[int]:
        """Indices of randomly drawn images, for `sample`; arguments as there."""
        random = self._random if seed is None else np.random.default_rng(seed)
        return draw(self._index.counts, count, balanced, random)

    def sample(
        self,
        count: int,
        *,
        balanced: bool = False,
        values: tuple[str, ...] = (),
        seed: int | None = None,
        threads: int | None = None,
    ) -> tuple[Any, ...]:
        """Randomly drawn images and their labels, as a batch: `images, labels = sample(32)`.

        Images are decoded by threads and transformed in order. No image is drawn twice, unless
        there are fewer than `count` (of a class, if balanced).

        Args:
            balanced: every class is equally likely, however many images it holds.
            values: names of values beside the images to return after the labels, such as
                `images, labels, logits = memory.sample(32, values=("logits",))`.
            seed: draw the same images in every call; by default each call draws others, and so
                does each process of torchrun.

        Raises:
            UsageError: the memory is empty, images differ in size, or lack a value.
        """
        chosen = self.draw(count, balanced=balanced, seed=seed)
        with workers(threads) as pool:
            decoded = ordered(pool, self._pixels, chosen)
            images = [self._view(channels_first(pixels)) for _, pixels in decoded]
        labels = collate([self._find(index)[0] for index in chosen], "labels")
        beside = [self.values(index) for index in chosen] if values else []
        columns = [column(beside, name) for name in values]
        return collate(images, "images"), labels, *columns

    def batches(
        self,
        batch_size: int,
        size: int,
        *,
        train: bool = True,
        seed: int = 0,
        epoch: int | None = None,
        threads: int | None = None,
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Uint8 batches (n, 3, size, size) and labels (n,), decoded by threads.

        Training batches are shuffled, randomly cropped and mirrored; the draws depend on
        seed, epoch and image only. Other batches are in order and centre-cropped.

        Args:
            epoch: by default 0 for the first training batches, 1 for the next call, ...
        """
        if installed_torch() is None:
            raise MissingError("batches needs torch: pip install 'mrdc[train]', or use sample")
        if batch_size < 1 or size < 1:
            raise UsageError(f"batch_size and size must be 1 or more, got {batch_size} and {size}")
        if epoch is None:
            epoch = self._epoch
            self._epoch += train
        make = partial(batches, seed=seed, epoch=epoch, threads=threads)
        return make(StoredPhotos(self._index), self.targets, batch_size, size, train)
