"""A custom engine in place of threads: the interface that Ray implements, tested without Ray."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor

from mrdc._utils.errors import DataError, ImageError, UsageError
from mrdc._utils.threads import ordered, using, workers
from mrdc.data.photo import Photo
from mrdc.nn.embed import embed
from mrdc.nn.embedder import Embedder
from mrdc.nn.feature_cache import FeatureCache
from mrdc.planning.pack import run_pack
from mrdc.planning.plan import plan, run_plan
from mrdc.planning.settings import PackSettings
from tests.conftest import project, shots

S = TypeVar("S")
T = TypeVar("T")


def one_by_one(images: Tensor) -> Tensor:
    """Features that do not depend on the batch."""
    return torch.cat([project(image[None]) for image in images])


STEADY = Embedder(one_by_one, size=16, key="steady", batch_size=5)


class Backwards:
    """Does the last piece first; a worker may fail where this process would not."""

    least = 4

    def __init__(self, size: int = 3, broken: str = ""):
        self.size, self.broken, self.done = size, broken, 0

    def pieces(self, jobs: Sequence[S]) -> list[Sequence[S]]:
        return [jobs[start : start + self.size] for start in range(0, len(jobs), self.size)]

    def map(
        self, function: Callable[[S], T], pieces: Sequence[S], gpu: bool = False
    ) -> Iterator[T]:
        made: list[Any] = [function(piece) for piece in reversed(pieces)]
        self.done += len(made)
        if self.broken:
            made[0][0] = ImageError(self.broken)
        yield from reversed(made)

    def share(self, value: T) -> Callable[[], T]:
        return lambda: value

    def sends(self, job: object) -> bool:
        return False


def test_many_jobs_go_to_the_engine_in_order() -> None:
    """A few jobs stay in threads."""
    with using(engine := Backwards()), workers(2) as pool:
        assert list(ordered(pool, str, range(10))) == [(n, str(n)) for n in range(10)]
        assert engine.done == 4
        assert list(ordered(pool, str, range(3))) == [(n, str(n)) for n in range(3)]
        assert engine.done == 4


def test_features_are_those_of_threads_and_cached(tmp_path: Path) -> None:
    """Cached features are not recomputed; an unreadable photo is skipped or raises."""
    photos = shots(11)
    photos[4] = Photo("bad.jpg", lambda: b"text")
    errors: list[ImageError] = []
    expected = embed(photos, STEADY, skip=errors.append)
    puts = []

    class Counting(FeatureCache):
        def put(self, digest: bytes, row: Tensor) -> None:
            puts.append(digest)
            super().put(digest, row)

    cache = Counting(tmp_path, "key")
    embed(photos[:3], STEADY, cache=cache)
    again: list[ImageError] = []
    with using(Backwards()):
        rows, good = embed(photos, STEADY, cache=cache, skip=again.append)
        with pytest.raises(ImageError, match=r"bad\.jpg: not an image"):
            embed(photos, STEADY, cache=cache)
    cache.close()
    assert torch.equal(rows, expected[0])
    assert good == expected[1]
    assert list(map(str, again)) == list(map(str, errors))
    assert len(puts) == len({*puts}) == 10


def test_an_image_that_only_a_worker_cannot_read_is_an_error() -> None:
    """Otherwise --skip-bad would drop it, and the result would depend on the workers."""
    match = r"9\.jpg: gone: on another machine, but not on this machine"
    with using(Backwards(broken="9.jpg: gone")), workers(1) as pool:
        with pytest.raises(DataError, match=match):
            list(ordered(pool, Photo.pixels, shots(10)))
        with pytest.raises(DataError, match=match):
            embed(shots(10), STEADY, skip=lambda error: None)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"qualities": (50,), "select": "kernel_herding"},
        {"qualities": (50,), "select": "random_choice", "skip_bad": True},
        {"pairing": "independent", "scale": (1.0, 0.5)},
        {"max_side": 20, "exact": True},
    ],
)
def test_plans_and_packs_are_those_of_threads(
    options: dict[str, Any], photos: Path, tmp_path: Path
) -> None:
    """Byte for byte, including bad files."""
    (photos / "class1" / "99.jpg").write_bytes(b"text")
    given: dict[str, Any] = {"qualities": (75, 10), "skip_bad": True, "cache": False} | options
    settings = PackSettings(photos, "3/class", output=tmp_path / "a", **given)

    def made() -> tuple[bytes, list[str], dict[str, Any]]:
        packed = run_pack(settings, embedder=STEADY)
        found = run_plan(settings, embedder=STEADY).to_json()
        del found["seconds"]
        content = settings.output.read_bytes()
        settings.output.unlink()
        return content, packed.seen.skipped, found

    expected = made()
    with using(engine := Backwards()):
        assert made() == expected
    assert engine.done > 0
    assert [line.partition(":")[0] for line in expected[1]] == ["class1/99.jpg"]


def test_an_address_is_for_ray(photos: Path) -> None:
    with pytest.raises(UsageError, match="--address is that of a Ray cluster: pass --engine ray"):
        run_plan(PackSettings(photos, "3/class", address="here:6379"))
    with pytest.raises(UsageError, match="engine must be one of threads, ray, got 'spark'"):
        plan(photos, "3/class", engine="spark")  # type: ignore[arg-type]
