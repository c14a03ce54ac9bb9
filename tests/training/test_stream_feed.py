"""Streams show the same views as resident images, whoever decodes them."""

import io
import os
import signal
import time
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from mrdc._utils.errors import ImageError, TrainingError
from mrdc.codec.image import Pixels, decode
from mrdc.data.crops import tensor
from mrdc.data.examples import Companions, Examples, Places
from mrdc.memory.replay import ReplayMemory
from mrdc.training.feed import open_feed, places_with_room
from mrdc.training.gpu_feed import GpuFeed
from mrdc.training.host_feed import HostFeed
from mrdc.training.pictures import Decoded, Files
from mrdc.training.stream_feed import Decoder, StreamFeed, nvjpeg
from tests.conftest import jpeg, pixels
from tests.training.feeds import CPU, equal, everything, examples, varied

ROOM = 1e6


@pytest.fixture(autouse=True)
def _forks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use processes even for a few images."""
    monkeypatch.setattr("mrdc._utils.forked.WORTH", 1)
    monkeypatch.setattr("mrdc._utils.forked.EACH", 1)


def streamed(
    source: Examples,
    threads: int = 2,
    room: float = ROOM,
    decoder: Decoder | None = None,
    companions: Companions | None = None,
) -> StreamFeed:
    files = Files(source.photos, 16, room, threads)
    return StreamFeed(files, source.labels, 8, CPU, threads, False, companions, None, decoder)


def picture(kind: str, seed: int = 0, mode: str = "RGB", **options: object) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels(seed, 30, 21)).convert(mode).save(file, kind, **options)
    return file.getvalue()


def mixed() -> Examples:
    """Plain JPEGs, some larger than twice the view, among many other kinds of images."""
    turned = Image.Exif()
    turned[0x0112] = 6
    odd: list[bytes | Pixels] = [
        picture("PNG"),
        picture("WEBP"),
        picture("JPEG", mode="L"),
        picture("JPEG", mode="CMYK"),
        picture("JPEG", progressive=True),
        picture("JPEG", exif=turned.tobytes()),
        pixels(5, 9, 40),
    ]
    return examples([*(jpeg(n, 90, 12 + 3 * n, 40 - 2 * n) for n in range(9)), *odd])


class StandIn:
    """Decodes as the CPU does; refuses images of one height, and the whole list with them."""

    def __init__(self, refuses: int = -1):
        self.refuses, self.seen = refuses, list[int]()

    def __call__(self, files: list[Tensor]) -> list[Tensor]:
        self.seen.append(len(files))
        images = [tensor(decode(file.numpy().tobytes())) for file in files]
        if any(image.shape[1] == self.refuses for image in images):
            raise RuntimeError("nvjpegDecode failed")
        return images


@pytest.mark.parametrize(
    ("decoder", "threads", "room"),
    [(None, 1, 0), (None, 2, ROOM), (StandIn(), 2, 3000), (StandIn(refuses=18), 1, ROOM)],
)
def test_a_stream_shows_the_views_of_resident_images(
    decoder: StandIn | None, threads: int, room: float
) -> None:
    """To the bit, whoever decodes, and whether files are in RAM or on disk."""
    source = mixed()
    resident = GpuFeed(source, 8, CPU, threads=1)
    feed = streamed(source, threads, room, decoder)
    for epoch in (0, 1):
        assert equal(everything(feed, epoch=epoch), everything(resident, epoch=epoch))
    if decoder is not None:
        assert 0 < feed.fast.sum() <= 9 and max(decoder.seen) > 1


@pytest.mark.parametrize("threads", [1, 2])
def test_decoded_images_in_ram_show_the_same(threads: int) -> None:
    source = mixed()
    images = Decoded(Files(source.photos, 16, 0, threads), threads)
    feed = StreamFeed(images, source.labels, 8, CPU, threads)
    assert equal(everything(feed), everything(GpuFeed(source, 8, CPU, threads=1)))
    assert feed.about == {"resident": "ram"}


def test_the_decoder_gets_plain_jpegs_and_no_refused_one_again() -> None:
    decoder = StandIn(refuses=18)
    feed = streamed(mixed(), decoder=decoder)
    assert np.flatnonzero(feed.fast).tolist() == [*range(9)]
    everything(feed)
    assert np.flatnonzero(~feed.fast[:9]).tolist() == [2]
    decoder.seen.clear()
    everything(feed)
    assert sum(decoder.seen) == 8


def test_companions_of_a_stream_are_those_of_resident_images() -> None:
    """Cropped or not, with views seen before the epoch."""
    seen: list[Tensor] = []

    def match(views: Iterator[Tensor]) -> None:
        seen.append(torch.cat(list(views)))

    def choose(batch: Places, rng: np.random.Generator) -> tuple[Places, Places]:
        return rng.integers(16, size=12), batch

    for cropped in (True, False):
        more = Companions(choose, 12, cropped, match)
        stream = streamed(mixed(), decoder=StandIn(), companions=more)
        resident = GpuFeed(mixed(), 8, CPU, 1, companions=more)
        assert equal(everything(stream), everything(resident))
        assert torch.equal(*seen[-2:])


def test_an_epoch_can_be_left_and_the_next_is_whole() -> None:
    for feed in (
        streamed(varied(40)),
        open_feed(varied(40), 8, CPU, "stream", threads=2),
    ):
        whole = everything(feed)
        for _ in feed.epoch(5, 0, 1):
            break
        assert equal(everything(feed), whole)


def test_replayed_images_are_not_copied() -> None:
    """They come from the memory; other files are read once if there is room."""
    memory = ReplayMemory("1MB", quality=50)
    memory.add({0: [pixels(n, 20, 20) for n in range(4)]})
    both = memory.examples() + varied(3)
    files = Files(both.photos, 16, ROOM, threads=1)
    assert (files._where[:, 0] >= 0).tolist() == [False] * 4 + [True] * 3
    assert files.plain.all()
    for place in range(7):
        assert files.file(place).numpy().tobytes() == both.photos[place].load()
        assert files.image(place).shape == (3, *files.sides[place])


def test_a_damaged_image_is_named() -> None:
    """Whether it is noticed when the feed is opened or by a process later."""
    source = examples([*(jpeg(n) for n in range(5)), jpeg(5)[:200], b"nothing"])
    with pytest.raises(ImageError, match=r"^6: not an image"):
        streamed(source)
    with pytest.raises(ImageError, match=r"^5: the image is damaged"):
        everything(open_feed(source.pick(range(6)), 8, CPU, "stream", threads=2))


def test_a_killed_process_is_reported() -> None:
    class Deadly(Files):
        def image(self, place: int) -> Tensor:
            os.kill(os.getpid(), signal.SIGKILL)
            raise AssertionError

    files, labels = Deadly(varied(8).photos, 16), varied(8).labels
    feed = HostFeed(files, labels, 8, CPU, threads=2)
    with pytest.raises(TrainingError, match="a process that decodes images was killed"):
        everything(feed)


def test_a_cpu_has_no_nvjpeg() -> None:
    assert nvjpeg(CPU) is None


@pytest.mark.parametrize("faster", [True, False])
def test_the_faster_of_decoder_and_processes_is_used(faster: bool) -> None:
    """As measured on some of the images that both can decode."""

    class Slow(Files):
        def image(self, place: int) -> Tensor:
            time.sleep(0.05 * faster)
            return super().image(place)

    def decoder(files: list[Tensor]) -> list[Tensor]:
        time.sleep(0.0 if faster else 0.1)
        return [torch.zeros(3, 1, 1, dtype=torch.uint8)] * len(files)

    source = mixed()
    files = Slow(source.photos, 16, ROOM, 1)
    feed = StreamFeed(files, source.labels, 8, CPU, 1, decoder=decoder)
    feed.measure(batch=4, batches=2)
    assert (feed.rates["nvjpeg"] > feed.rates["processes"]) == faster
    assert feed.fast.tolist() == ([True] * 9 + [False] * 7 if faster else [False] * 16)
    assert feed.about == {
        "resident": "stream",
        "by_nvjpeg": 9 if faster else 0,
        "images_per_second": feed.rates,
    }
    none = streamed(mixed(), 1)
    none.measure()
    assert none.rates == {}


@pytest.mark.parametrize(
    ("gpu", "ram", "expected"),
    [(1e9, 1e9, ["gpu"]), (1e3, 1e9, ["stream", "ram"]), (1e3, 1e3, ["stream"])],
)
def test_auto_considers_places_with_room(
    monkeypatch: pytest.MonkeyPatch, gpu: float, ram: float, expected: list[str]
) -> None:
    def free(device: torch.device) -> float:
        return gpu if device.type == "cuda" else ram

    monkeypatch.setattr("mrdc.training.feed.free_memory", free)
    assert places_with_room(varied(12), 8, torch.device("cuda")) == expected
    assert places_with_room(varied(12), 8, CPU) == (["ram"] if ram > 1e4 else ["stream"])
