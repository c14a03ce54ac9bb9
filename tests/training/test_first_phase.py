"""Runs that agree on their first phase train it once."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from mrdc._utils.errors import CheckpointError
from mrdc.cli.main import main
from mrdc.experiments.folder import RESULTS, RunFolder, drop_oldest
from mrdc.methods import METHODS
from mrdc.methods.lucir import LUCIR
from mrdc.nn.checkpoint import read_checkpoint
from tests.conftest import make_photos
from tests.processes import SMALL, epochs, finish, numbers, running, saved, until


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Flags of a run of two phases of one epoch, on six classes of twelve small photos."""
    data = make_photos(tmp_path_factory.mktemp("data") / "photos", classes=6, images=12)
    return ["--data", str(data), *SMALL, "--train.epochs", "1", "--phases", "1"]


@pytest.fixture(scope="module")
def alone(short: list[str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A run that shares nothing."""
    root = tmp_path_factory.mktemp("alone")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MRDC_CACHE", str(root / "cache"))
        result = finish("lucir", *short, "--out", root / "run", "--no-cache")
        assert list((root / "cache").iterdir()) == []
        return result


@pytest.fixture
def left(short: list[str], tmp_path: Path) -> Path:
    """What a run with another memory has left for others: the one file."""
    run = ["lucir-mrdc", *short, "--memory.quality", "50"]
    finish(*run, "--out", tmp_path / "first")
    assert epochs(tmp_path / "first", 0) == 1
    (file,) = (tmp_path / "cache" / "first-phase").glob("*.safetensors")
    return file


def second(tmp_path: Path, short: list[str], *flags: str) -> dict[str, Any]:
    """A run that could use it."""
    run = ["lucir", *short, *flags]
    return finish(*run, "--out", tmp_path / "second")


def test_the_first_phase_is_trained_once(
    short: list[str], left: Path, tmp_path: Path, alone: dict[str, Any]
) -> None:
    """And is the same to the bit as when it is trained again."""
    found = second(tmp_path, short)
    assert epochs(tmp_path / "second", 0) == 0
    assert epochs(tmp_path / "second", 1) == 1
    assert numbers(found) == numbers(alone)
    assert found["trained_images"] == alone["trained_images"]
    taken = found["parts"]["taken_over"]
    assert 0 < taken <= found["first_phase_seconds"] and found["seconds"] > taken
    assert "taken_over" not in alone["parts"]


def test_another_first_phase_is_not_shared(short: list[str], left: Path, tmp_path: Path) -> None:
    """Another seed, another network."""
    second(tmp_path, short, "--seed", "1")
    assert epochs(tmp_path / "second", 0) == 1
    assert len(list(left.parent.glob("*.safetensors"))) == 2


def test_a_method_of_ones_own_trains_its_own(
    short: list[str], left: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it is derived from, and it leaves nothing for others."""

    class Mine(LUCIR):
        pass

    monkeypatch.setitem(METHODS, "lucir", Mine)
    assert main(["run", "lucir", *short, "--out", str(tmp_path / "mine"), "--json"]) == 0
    assert epochs(tmp_path / "mine", 0) == 1
    assert list(left.parent.glob("*.safetensors")) == [left]


def test_a_damaged_shared_file_is_trained_anew(
    short: list[str], left: Path, tmp_path: Path, alone: dict[str, Any]
) -> None:
    """Without a word, and whole again afterwards."""
    left.write_bytes(left.read_bytes()[: left.stat().st_size // 2])
    assert numbers(second(tmp_path, short)) == numbers(alone)
    assert epochs(tmp_path / "second", 0) == 1
    assert read_checkpoint(left).about["first_phase_images"] > 0


def test_a_flipped_bit_is_damage(left: Path) -> None:
    """In a weight, where the format does not show it."""
    data = bytearray(left.read_bytes())
    data[len(data) // 2 + 3] ^= 0x40
    left.write_bytes(data)
    with pytest.raises(CheckpointError):
        read_checkpoint(left)


def test_other_images_of_the_same_names_and_sizes(short: list[str], tmp_path: Path) -> None:
    """Uncompressed images all have the same size."""
    for data in ("one", "other"):
        for label in range(4):
            folder = tmp_path / data / f"class{label}"
            folder.mkdir(parents=True)
            for number in range(6):
                rng = np.random.default_rng((len(data), label, number))
                pixels = rng.integers(0, 256, (24, 24, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{number}.bmp")
        finish("lucir", *short, "--data", tmp_path / data, "--out", tmp_path / f"run-{data}")
    assert epochs(tmp_path / "run-one", 0) == 1
    assert epochs(tmp_path / "run-other", 0) == 1


def test_two_processes_at_once_train_it_once(
    short: list[str], tmp_path: Path, alone: dict[str, Any]
) -> None:
    """One trains, the other waits and takes it over."""
    run = ["run", "lucir", *short, "--json", "--out"]
    folders = [tmp_path / "one", tmp_path / "two"]
    with running(*run, folders[0]) as one, running(*run, folders[1]) as two:
        results = [one.result(), two.result()]
    assert sorted(epochs(folder, 0) for folder in folders) == [0, 1]
    assert [numbers(result) for result in results] == [numbers(alone)] * 2


def test_when_the_trainer_is_killed_the_one_that_waits_trains(
    short: list[str], tmp_path: Path
) -> None:
    """A lock does not outlive its process."""
    run = ["run", "lucir", *short, "--train.epochs", "9", "--json", "--out"]

    def told(name: str, kind: str) -> bool:
        file = tmp_path / name / RESULTS
        return file.exists() and f'"{kind}"' in file.read_text()

    with running(*run, tmp_path / "one") as one, running(*run, tmp_path / "two") as two:
        until(lambda: told("one", "epoch") or told("two", "epoch"))
        trains, waits = (one, two) if told("one", "epoch") else (two, one)
        names = ("one", "two") if trains is one else ("two", "one")
        assert trains.process.pid is not None
        os.kill(trains.process.pid, signal.SIGSTOP)
        assert epochs(tmp_path / names[0], 0) < 9
        until(lambda: told(names[1], "phase_start"))
        time.sleep(0.3)
        assert not told(names[1], "epoch")
        trains.kill()
        waits.result()
    assert epochs(tmp_path / names[1], 0) == 9


def test_a_cache_that_cannot_be_written_shares_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And stops nobody."""
    (tmp_path / "file").touch()
    keeper = RunFolder(tmp_path / "run", {}, {})
    for place in (tmp_path / "file", tmp_path / "file" / "inside"):
        monkeypatch.setenv("MRDC_CACHE", str(place))
        with keeper.shared(lambda: "key") as (found, leave):
            assert found is None
            leave(saved(0).checkpoint)
    keeper.close()


def test_the_oldest_shared_phases_are_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond the size of the cache; the newest stay."""
    monkeypatch.setattr("mrdc.experiments.folder.CACHE_BYTES", 250)
    for age, name in enumerate(("new", "middle", "old")):
        file = tmp_path / f"{name}.safetensors"
        file.write_bytes(bytes(100))
        os.utime(file, (1000 - age, 1000 - age))
    drop_oldest(tmp_path)
    assert {file.stem for file in tmp_path.iterdir()} == {"new", "middle"}
