"""Runs with the same first phase train it once."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mrdc.data.photo import Photo
from mrdc.data.stream import Stream
from mrdc.experiments.folder import RunFolder, drop_oldest
from mrdc.methods.aanets import AANets
from mrdc.methods.base import Method
from mrdc.methods.icarl import ICaRL
from mrdc.methods.lucir import LUCIR
from mrdc.nn.checkpoint import Checkpoint, read_checkpoint
from mrdc.nn.net import Net
from mrdc.training.settings import TrainSettings
from tests.conftest import pixels
from tests.helpers import Run, changed, small_run, small_stream, state_of, stored
from tests.training.feeds import equal

pytestmark = pytest.mark.usefixtures("quick")


@contextmanager
def opened(path: Path, **options: Any) -> Iterator[RunFolder]:
    folder = RunFolder(path, {}, {}, **options)
    try:
        yield folder
    finally:
        folder.close()


def learned(path: Path, cache: bool = True, **settings: Any) -> tuple[Run, list[int]]:
    """A run of two phases, and the phase of every epoch it trained."""
    epochs: list[int] = []

    def note(kind: str, fields: dict[str, Any]) -> None:
        epochs.extend([fields["phase"]] if kind == "epoch" else [])

    with opened(path, cache=cache, listener=note) as folder:
        run = small_run("lucir", stream=small_stream(2, 2), keeper=folder, **settings)
        run.run()
    return run, epochs


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """The first phase of a run with another memory, in the cache."""
    _, epochs = learned(tmp_path / "first", memory={"quality": "50"})
    assert epochs == [0, 1]
    (file,) = (tmp_path / "cache" / "first-phase").glob("*.safetensors")
    return file


def test_first_phase_is_trained_once(shared: Path, tmp_path: Path) -> None:
    """The rest of the run is the same, bit for bit, as if it had trained its own."""
    found, epochs = learned(tmp_path / "second")
    alone, all_epochs = learned(tmp_path / "alone", cache=False)
    assert (epochs, all_epochs) == ([1], [0, 1])
    assert list(shared.parent.glob("*.safetensors")) == [shared]
    assert changed(found.learner.model, state_of(alone.learner.model)) == set()
    assert stored(found.memory) == stored(alone.memory)
    for got, wanted in zip(found.results, alone.results, strict=True):
        assert (got.accuracy, got.trained_images) == (wanted.accuracy, wanted.trained_images)
    first = found.results[0]
    assert first.first_phase_seconds is not None
    assert 0 < first.parts["taken_over"] <= first.first_phase_seconds
    assert first.seconds > first.parts["taken_over"]
    assert "taken_over" not in alone.results[0].parts


def flip(data: bytes) -> bytes:
    """Flip a bit in a weight, without breaking the format."""
    place = len(data) // 2 + 3
    return data[:place] + bytes([data[place] ^ 0x40]) + data[place + 1 :]


@pytest.mark.parametrize("damage", [flip, lambda data: data[: len(data) // 2]])
def test_damaged_shared_phase_is_trained_again(
    damage: Callable[[bytes], bytes], shared: Path, tmp_path: Path
) -> None:
    whole = [tensor.clone() for tensor in read_checkpoint(shared).tensors["model"].values()]
    shared.write_bytes(damage(shared.read_bytes()))
    _, epochs = learned(tmp_path / "second")
    assert epochs == [0, 1]
    assert equal(whole, list(read_checkpoint(shared).tensors["model"].values()))


# What the first phase depends on


@dataclass(kw_only=True)
class Mine(LUCIR):
    """A method of another package, which may train in another way."""


def drawn(seed: int) -> Stream:
    """Images as pixels: files of the same names and sizes, with other contents."""
    made = small_stream(2, 2)
    photos = tuple(
        [Photo(one.id, partial(pixels, seed + n, 8, 8)) for n, one in enumerate(of_class)]
        for of_class in made.train.photos
    )
    return replace(made, train=replace(made.train, photos=photos))


def key(method: Method | None = None, **settings: Any) -> str | None:
    usual: dict[str, Any] = {"stream": drawn(0)}
    return small_run(method or LUCIR(), **usual | settings).learner.first_phase_key()


def test_first_phase_does_not_depend_on_memory_or_later_phases() -> None:
    """Nor on threads or later hooks. Methods of other packages share it if they name it."""
    assert key() == key(memory={"quality": "50"}) == key(threads=1) == key(LUCIR(margin=0.4))
    assert key() == key(AANets(LUCIR()))
    assert key(train=TrainSettings(match=0.5)) == key(train=TrainSettings())
    assert key(Mine()) is None and key(AANets(Mine())) is None
    assert key(network=torch.nn.Conv2d(3, 4, 3)) is None  # its code may change without a trace


@pytest.mark.parametrize(
    "other",
    [
        {"seed": 1},
        {"train": TrainSettings(epochs=2)},
        {"size": 16},
        {"stream": drawn(1)},
        {"method": ICaRL()},
    ],
)
def test_first_phase_depends_on_images_network_and_training(other: dict[str, Any]) -> None:
    """Images are compared by content."""
    assert key() != key(**other) is not None


@dataclass
class Counts(LUCIR):
    """Learns something in the first phase."""

    seen_: Tensor | None = None

    @property
    def first_phase(self) -> str:
        return super().first_phase

    def loss(self, model: Net, old: Net | None, x: Tensor, y: Tensor) -> Tensor:
        self.seen_ = (torch.zeros(()) if self.seen_ is None else self.seen_) + len(y)
        return super().loss(model, old, x, y)


def test_what_a_method_has_learned_is_taken_over(tmp_path: Path) -> None:
    """By the same method; another one takes the network alone."""
    found = []
    for name in ("first", "second"):
        with opened(tmp_path / name) as folder:
            method = Counts()
            run = small_run(method, stream=small_stream(2, 2), keeper=folder)
            run.run()
            found.append((float(method.seen_ or 0), "taken_over" in run.results[0].parts))
    assert found == [(found[0][0], False), (found[0][0], True)]
    with opened(tmp_path / "third") as folder:
        small_run(LUCIR(), stream=small_stream(2, 2), keeper=folder).run()
    assert len([*(tmp_path / "cache" / "first-phase").glob("*.safetensors")]) == 1


# The cache

FIRST = {"first_phase_images": 1, "first_phase_seconds": 2.0}
CHECKPOINT = Checkpoint(None, {"model": {"x": torch.ones(4)}}, FIRST)


HOLD = """
import fcntl, sys, time
file = open(sys.argv[1], "w")
fcntl.flock(file, fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(60)
"""


def test_lock_ends_with_its_process(tmp_path: Path) -> None:
    """Of two that wait, one then trains and the other takes that over; leftovers are removed."""
    cache = tmp_path / "cache" / "first-phase"
    cache.mkdir(parents=True)
    half = cache / ".key.safetensors.abcd.tmp"
    half.touch()
    taken: list[bool] = []

    def work(name: str) -> None:
        with opened(tmp_path / name) as folder, folder.shared(lambda: "key") as (found, share):
            taken.append(found is not None)
            share(CHECKPOINT)

    command = [sys.executable, "-c", HOLD, str(cache / "key.lock")]
    threads = [threading.Thread(target=work, args=(name,)) for name in ("one", "two")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdout.readline() == b"held\n"
        for thread in threads:
            thread.start()
        threads[0].join(0.2)
        held = all(thread.is_alive() for thread in threads) and half.exists()
        other.kill()
        for thread in threads:
            thread.join(20)
    assert held and taken == [False, True] and not half.exists()


@pytest.mark.parametrize("place", ["file", "file/inside"])
def test_cache_that_cannot_be_written_shares_nothing(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("MRDC_CACHE", str(tmp_path / place))
    with opened(tmp_path / "run") as folder, folder.shared(lambda: "key") as (found, share):
        assert found is None
        share(CHECKPOINT)


def test_oldest_shared_phases_are_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mrdc.experiments.folder.CACHE_BYTES", 250)
    for age, name in enumerate(("new", "middle", "old")):
        file = tmp_path / f"{name}.safetensors"
        file.write_bytes(bytes(100))
        os.utime(file, (1000 - age, 1000 - age))
    drop_oldest(tmp_path)
    assert {file.stem for file in tmp_path.iterdir()} == {"new", "middle"}
