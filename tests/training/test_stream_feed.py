"""Streams show what resident images show, whoever decodes them."""

import io
import os
import signal
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
from mrdc.training.feed import open_feed
from mrdc.training.gpu_feed import GpuFeed
from mrdc.training.host_feed import HostFeed
from mrdc.training.pictures import Decoded, Files
from mrdc.training.stream_feed import Decoder, StreamFeed, nvjpeg
from tests.conftest import jpeg, pixels
from tests.training.feeds import CPU, equal, everything, examples, varied

ROOM = 1e6


@pytest.fixture(autouse=True)
def _forks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use processes also for few images."""
    monkeypatch.setattr("mrdc._utils.forked.LEAST", 4)


def streamed(
    source: Examples,
    threads: int = 2,
    room: float = ROOM,
    decoder: Decoder | None = None,
    companions: Companions | None = None,
) -> StreamFeed:
    files = Files(source.photos, 16, room, threads)
    return StreamFeed(files, source.labels, 8, CPU, threads, False, companions, decoder)


def picture(kind: str, seed: int = 0, mode: str = "RGB", **options: object) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels(seed, 30, 21)).convert(mode).save(file, kind, **options)
    return file.getvalue()


def mixed() -> Examples:
    """Plain JPEGs, some larger than twice the view, among everything that is none."""
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
    """Decodes as the host does; refuses images of a height, and the whole list with them."""

    def __init__(self, refuses: int = -1):
        self.refuses, self.seen = refuses, list[int]()

    def __call__(self, files: list[Tensor]) -> list[Tensor]:
        self.seen.append(len(files))
        images = [tensor(decode(file.numpy().tobytes())) for file in files]
        if any(image.shape[1] == self.refuses for image in images):
            raise RuntimeError("nvjpegDecode failed")
        return images


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("decoder", [None, StandIn(), StandIn(refuses=18)])
def test_a_stream_shows_the_views_of_resident_images(decoder: Decoder | None, threads: int) -> None:
    source = mixed()
    resident = GpuFeed(source, 8, CPU, threads=1)
    for room in (ROOM, 3000, 0):
        feed = streamed(source, threads, room, decoder)
        for epoch in (0, 1):
            assert equal(everything(feed, epoch=epoch), everything(resident, epoch=epoch))
    files = Files(source.photos, 16, ROOM, threads)
    in_ram = StreamFeed(Decoded(files, threads), source.labels, 8, CPU, threads)
    assert equal(everything(in_ram), everything(resident))
    if isinstance(decoder, StandIn):
        assert 0 < feed.fast.sum() <= 9 and max(decoder.seen) > 1


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
    """They come from the memory; other files are read once, if there is room for them."""
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
