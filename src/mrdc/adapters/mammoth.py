"""Mammoth: a stand-in for its `Buffer` that holds compressed images within a byte budget.

    use_mrdc(model, "20MB")        # after the model is made, before it is trained

Mammoth's buffer holds float32 tensors: 602,112 bytes for an image of 224 pixels. This one stores
what the codec makes of it, and labels, task labels and logits beside it, all within the budget.
"""

import hashlib
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mrdc._utils.errors import UsageError
from mrdc.memory.encode import Encoded
from mrdc.memory.replay import ReplayMemory

LABELS, LOGITS, TASKS = "labels", "logits", "task_labels"


def use_mrdc(model: Any, budget: int | str, **options: Any) -> "ByteBuffer":
    """Replace a model's buffer; `options` as for `ByteBuffer`.

    Raises:
        UsageError: it has no buffer.
    """
    if not hasattr(model, "buffer"):
        raise UsageError(f"{type(model).__name__} has no buffer")
    model.buffer = ByteBuffer(budget, **options)
    return model.buffer


class ByteBuffer:
    """Images of a stream, each as likely to be held as any other, within a byte budget.

    `examples`, `labels`, `logits` and `task_labels` are tensors made when they are read.

    Args:
        budget: bytes, such as "20MB", for images and everything beside them.
        quality: of the codec; a stream leaves no moment to choose one.
        codec: a name in `CODECS`.
        seed: of the images that are kept.
    """

    def __init__(
        self,
        budget: int | str,
        *,
        quality: int | None = 75,
        codec: str = "jpeg",
        seed: int = 0,
        device: Any = "cpu",
    ):
        self._budget, self._pair, self.seed, self.device = budget, (codec, quality), seed, device
        self.buffer_size = 2**31 - 1  # models may set it; the budget is the limit
        self._known: dict[bytes, Encoded] = {}
        self.empty(forget=True)

    def empty(self, forget: bool = False) -> None:
        """Drop everything; an image that is added again is not encoded a second time."""
        self._known = {} if forget else self._by_pixels()
        self.memory = ReplayMemory(self._budget, *self._pair)
        self.names: list[str] = []  # of what is given beside images: labels, logits, tasks
        self.num_seen_examples = 0

    def _by_pixels(self) -> dict[bytes, Encoded]:
        stored = [
            image for label in self.memory.labels for image in self.memory.encoded_images(label)
        ]
        photos = self.memory.examples().photos
        return {_key(p.pixels()): image for p, image in zip(photos, stored, strict=True)}

    def __len__(self) -> int:
        return len(self.memory)

    def is_empty(self) -> bool:
        return not len(self)

    def to(self, device: Any) -> "ByteBuffer":
        """Deliver to this device."""
        self.device = device
        return self

    def add_data(
        self,
        examples: Tensor,
        labels: Tensor | None = None,
        logits: Tensor | None = None,
        task_labels: Tensor | None = None,
        **others: Any,
    ) -> None:
        """Offer a batch: images (n, 3, h, w) between 0 and 1, before augmentation.

        Raises:
            UsageError: images that were normalised, or values that are not stored.
        """
        named = [name for name, given in others.items() if given is not None]
        if named:
            raise UsageError(f"{', '.join(named)}: not stored; only images, labels, logits, tasks")
        if not len(examples):
            return
        if examples.min() < 0 or examples.max() > 1:
            raise UsageError(
                "examples must lie between 0 and 1: pass images that are not normalised"
            )
        pixels = (examples.detach().cpu() * 255).round().byte().permute(0, 2, 3, 1).numpy()
        images = [self._known.get(_key(image), np.ascontiguousarray(image)) for image in pixels]
        classes = [0] * len(images) if labels is None else labels.cpu().tolist()
        beside = {LOGITS: logits, TASKS: task_labels}
        values = {name: v.detach().cpu() for name, v in beside.items() if v is not None}
        given = {LABELS: labels, **beside}
        self.names = [name for name, column in given.items() if column is not None]
        self.memory.reservoir(images, classes, over="all", seed=self.seed, values=values)
        self.num_seen_examples += len(images)

    def get_data(
        self,
        size: int,
        transform: Any = None,
        return_index: bool = False,
        device: Any = None,
        mask_task_out: int | None = None,
        cpt: int | None = None,
        return_not_aug: bool = False,
        not_aug_transform: Any = None,
        force_indexes: Any = None,
    ) -> tuple[Tensor, ...]:
        """Random images, none twice, with everything beside them, as Mammoth's `get_data`."""
        places = np.arange(len(self))
        if mask_task_out is not None:
            tasks = self.task_labels if TASKS in self.names else self.labels // (cpt or 1)
            places = places[(tasks != mask_task_out).cpu().numpy()]
        if force_indexes is None:
            places = np.random.permutation(places)[:size]
        else:
            places = places[np.asarray(force_indexes)]
        target = self.device if device is None else device
        images = self._images(places)
        found = [_apply(images, transform), *self._values(places)]
        if return_not_aug:
            found.insert(0, _apply(images, not_aug_transform))
        if return_index:
            found.insert(0, torch.from_numpy(places))
        return tuple(part.to(target) for part in found)

    def get_all_data(self, transform: Any = None, device: Any = None) -> tuple[Tensor, ...]:
        """All images with everything beside them."""
        every = np.arange(len(self))
        parts = (_apply(self._images(every), transform), *self._values(every))
        return tuple(part.to(self.device if device is None else device) for part in parts)

    def _images(self, places: Any) -> Tensor:
        """Images (n, 3, h, w) between 0 and 1."""
        return torch.stack([self.memory[int(place)][0] for place in places]).float() / 255

    def _values(self, places: Any) -> list[Tensor]:
        """Values stored beside the images at these places, in Mammoth's order."""
        rows = [self.memory.values(int(place)) for place in places]
        targets = self.memory.targets
        found = []
        for name in self.names:
            column = [targets[place] for place in places] if name == LABELS else None
            found.append(torch.from_numpy(np.stack(column or [row[name] for row in rows])))
        return found

    def __getattr__(self, name: str) -> Any:
        every = np.arange(len(self.__dict__.get("memory", ())))
        if name == "examples" and len(every):
            return self._images(every).to(self.device)
        if name in self.__dict__.get("names", ()) and len(every):
            return self._values(every)[self.names.index(name)].to(self.device)
        raise AttributeError(name)


def _key(pixels: Any) -> bytes:
    return hashlib.sha256(np.ascontiguousarray(pixels).tobytes()).digest()


def _apply(images: Tensor, transform: Any) -> Tensor:
    """Images after a transform of single images."""
    return images if transform is None else torch.stack([transform(image) for image in images])
