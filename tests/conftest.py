"""Small images and a cheap embedding that every test can use."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("GOMP_SPINCOUNT", "2000")  # before torch: let its idle threads sleep
os.environ["OMP_NUM_THREADS"] = "2"  # everywhere, also in child processes: sums depend on it

import numpy as np
import pytest
import torch
from hypothesis import settings
from PIL import Image
from torch import Tensor

from mrdc.codec import CODECS
from mrdc.codec.image import Pixels
from mrdc.data.photo import Photo
from mrdc.nn.checkpoint import WIDTHS
from mrdc.nn.embedder import Embedder

settings.register_profile("mrdc", deadline=None)  # a busy machine is no failure
settings.load_profile("mrdc")
signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs ignore SIGINT


def pixels(seed: int, height: int = 24, width: int = 32) -> Pixels:
    """A photo-like image with smooth colours and some detail; it depends on the seed."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (4, 4, 3), dtype=np.uint8))
    smooth = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC), float)
    detail = rng.normal(0, 8, (height, width, 3))
    image: Pixels = np.clip(smooth + detail, 0, 255).astype(np.uint8)
    return image


def jpeg(seed: int, quality: int = 95, height: int = 24, width: int = 32) -> bytes:
    """The same image as a JPEG file."""
    return CODECS["jpeg"].encode(pixels(seed, height, width), quality)


def shots(count: int) -> list[Photo]:
    """Photos of such files."""
    return [Photo(f"{n}.jpg", lambda n=n: jpeg(n)) for n in range(count)]  # type: ignore[misc]


def project(images: Tensor) -> Tensor:
    """A fixed random projection of the pixels: features without a network."""
    flat = images.float().flatten(1) / 255 - 0.5
    weights = torch.randn(flat.shape[1], 48, generator=torch.Generator().manual_seed(0))
    return flat @ weights


CHEAP = Embedder(project, size=16)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Three classes of eight JPEG photos."""
    return make_photos(tmp_path / "photos", classes=3, images=8)


def make_photos(root: Path, classes: int, images: int) -> Path:
    for label in range(classes):
        folder = root / f"class{label}"
        folder.mkdir(parents=True)
        for number in range(images):
            (folder / f"{number:02d}.jpg").write_bytes(jpeg(100 * label + number))
    return root


@pytest.fixture(autouse=True)
def private_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads or writes the user's feature cache."""
    monkeypatch.setenv("MRDC_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def seeded() -> Iterator[None]:
    """Seed torch, and use one thread for small work."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield
    torch.set_num_threads(threads)


@pytest.fixture
def quick(seeded: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Narrow networks of two channels."""
    monkeypatch.setitem(WIDTHS, "resnet18-narrow", 2)
