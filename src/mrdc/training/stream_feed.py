"""Training views of images that are decoded in every epoch, and cropped on the device."""

import io
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from mrdc._utils.ring import Ring
from mrdc._utils.threads import ahead, ordered, workers
from mrdc.codec.image import Pixels
from mrdc.data.examples import Companions, Places
from mrdc.training.gpu_feed import DeviceFeed, canvas_ring, cut, put
from mrdc.training.host_feed import EPOCHS
from mrdc.training.match import Copies
from mrdc.training.pictures import Decoded, Files, shrunk

Decoder = Callable[[list[Tensor]], list[Tensor]]  # JPEG files to images (3, h, w) on the device
AHEAD = 2  # batches decoded before they are needed
# How much faster the decoder must be, because it takes time of the GPU from training: on an H200
# LUCIR trained at 6,050 images/s with the decoder and at 8,230 with 16 processes.
LOAD = 2.0


def nvjpeg(device: torch.device) -> Decoder | None:
    """The JPEG decoder of the GPU; None if there is none, or torchvision was built without it."""
    if device.type != "cuda":
        return None
    try:
        from torchvision.io import ImageReadMode, decode_jpeg

        there = torch.device("cuda", torch.cuda.current_device())
        decode = partial(decode_jpeg, mode=ImageReadMode.RGB, device=there)
        file = io.BytesIO()
        Image.new("RGB", (16, 16)).save(file, "JPEG")
        decode([torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8)])
    except (ImportError, AttributeError, RuntimeError):
        return None
    return decode


class StreamFeed(DeviceFeed):
    """Images sent to the device two batches ahead: plain JPEGs decoded by a `decoder`, all others
    put onto canvases by processes, which decode them if need be.
    """

    def __init__(
        self,
        images: Files | Decoded,
        labels: Sequence[int],
        size: int,
        device: torch.device,
        threads: int | None = None,
        compiled: bool = False,
        companions: Companions | None = None,
        copies: Copies | None = None,
        decoder: Decoder | None = None,
    ):
        super().__init__(labels, images.sides, size, device, compiled, companions, copies)
        self.images, self.threads, self.decoder = images, threads, decoder
        self.canvas = int(self.sides[:, 0].max()), 3, int(self.sides[:, 1].max())
        self.fast = np.zeros(len(images.sides), bool)  # images that the decoder takes
        if isinstance(images, Files) and decoder is not None:
            self.fast |= images.plain
        self._side: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._side = torch.cuda.Stream(priority=-1)  # type: ignore[no-untyped-call]
        self._ring: Ring[int] | None = None
        self.rates: dict[str, float] = {}  # images/s, as measured

    @property
    def about(self) -> dict[str, Any]:
        """Where images are, and who decodes them."""
        if isinstance(self.images, Decoded):
            return {"resident": "ram"}
        by_decoder = int(self.fast.sum())
        return {"resident": "stream", "by_nvjpeg": by_decoder, "images_per_second": self.rates}

    def measure(self, batch: int = 128, batches: int = 8) -> None:
        """Time the decoder against the processes, on some images, and keep the better one."""
        plain = np.flatnonzero(self.fast)
        if not len(plain):
            return
        some = cut(plain[np.linspace(0, len(plain) - 1, batch * batches).astype(int)], batch)
        both = {"nvjpeg": self.fast, "processes": np.zeros_like(self.fast)}
        for name, self.fast in both.items():
            for parts in (some[:1], some):  # the first decode is slow
                start = time.perf_counter()
                for _ in self._canvases([(part, torch.empty(0)) for part in parts]):
                    pass
                self.rates[name] = sum(map(len, parts)) / (time.perf_counter() - start)
        by_decoder = self.rates["nvjpeg"] > LOAD * self.rates["processes"]
        self.fast = both["nvjpeg" if by_decoder else "processes"]
        if self.fast.all():
            self._ring = None

    def _canvases(self, parts: Sequence[tuple[Places, Tensor]]) -> Iterator[Tensor]:
        fast, places = self.fast.copy(), [here for here, _ in parts]
        slow = self._by_processes([part[~fast[part]].tolist() for part in places])
        for canvas in ahead(self._decoded(places, fast, slow), AHEAD):
            if canvas.is_cuda:  # made on another stream
                canvas.record_stream(torch.cuda.current_stream())
            yield canvas

    def _decoded(
        self, parts: Sequence[Places], fast: NDArray[np.bool_], slow: Iterator[Pixels]
    ) -> Iterator[Tensor]:
        """Canvases with the images at these places, complete when they are returned.

        Images that are not `fast` come from `slow`, by part.
        """
        files = self._read([part[fast[part]].tolist() for part in parts])
        for part, given, others in zip(parts, files, slow, strict=True):
            with self._stream():
                canvas = torch.from_numpy(others).to(self.device, copy=True)
                if len(given):
                    canvas = self._joined(part, fast[part], given, canvas)
                if self._side is not None:
                    self._side.synchronize()  # the decoder does not wait for readers
            yield canvas

    def _joined(
        self, part: Places, fast: NDArray[np.bool_], files: list[Tensor], others: Tensor
    ) -> Tensor:
        """A canvas with images from files, where they are `fast`, and others."""
        canvas = torch.empty(len(part), *self.canvas, dtype=torch.uint8, device=self.device)
        if len(others):
            canvas[torch.from_numpy(np.flatnonzero(~fast)).to(self.device)] = others
        images = self._by_decoder(part[fast].tolist(), files)
        for spot, image in zip(np.flatnonzero(fast).tolist(), images, strict=True):
            put(canvas[spot], smaller(image, 2 * self.size))
        return canvas

    def _stream(self) -> AbstractContextManager[object]:
        return nullcontext() if self._side is None else torch.cuda.stream(self._side)

    def _read(self, groups: Sequence[Sequence[int]]) -> Iterator[list[Tensor]]:
        """The files of each group; threads read ahead those that are not in RAM."""
        assert isinstance(self.images, Files) or not any(groups)
        if isinstance(self.images, Decoded) or self.images.at_hand:
            for group in groups:
                yield [self.images.file(place) for place in group]  # type: ignore[union-attr]
            return
        flat = [place for group in groups for place in group]
        with workers(self.threads) as pool:
            read = ordered(pool, self.images.file, flat, 2 * max(map(len, groups)))
            for group in groups:
                yield [next(read)[1] for _ in group]

    def _by_decoder(self, places: list[int], files: list[Tensor]) -> list[Tensor]:
        """Images (3, h, w) on the device."""
        assert self.decoder is not None
        try:
            return self.decoder(files)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:  # it refuses one of them
            pairs = zip(places, files, strict=True)
            return [image for place, file in pairs for image in self._one(place, file)]

    def _one(self, place: int, file: Tensor) -> list[Tensor]:
        """An image; if the decoder refuses it, processes will decode it from the next epoch on."""
        assert self.decoder is not None
        try:
            return self.decoder([file])
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:
            self.fast[place] = False
            return [self.images.image(place).to(self.device)]

    def _by_processes(self, groups: Sequence[Sequence[int]]) -> Iterator[Pixels]:
        """Canvases (n, height, 3, width) of each group of images.

        Not to be called by a thread that ends soon: the processes would end with it.
        """
        most = max(map(len, groups))
        if not most:
            return (np.empty((0, *self.canvas), np.uint8) for _ in groups)
        if self._ring is None or self._ring.most < most:
            self._ring = canvas_ring(self.images, most, self.threads, EPOCHS)
        return self._ring.groups(groups)


def smaller(image: Tensor, limit: int) -> Tensor:
    """`shrunk` on any device, to the rounding: a GPU resizes floats only."""
    if not image.is_cuda or max(image.shape[1:]) <= limit:
        return shrunk(image, limit)
    return shrunk(image.float(), limit).round().clamp(0, 255).to(torch.uint8)
