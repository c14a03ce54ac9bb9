"""Runs killed or interrupted at any moment resume with the same numbers."""

import json
import random
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from mrdc.experiments.folder import PARTIAL, RESULTS, last_line
from mrdc.memory.audit import audit
from mrdc.memory.file import MemoryFile
from tests.experiments.conftest import Unbroken
from tests.processes import (
    MOMENTS,
    SMALL,
    Cli,
    Running,
    check_whole,
    contents,
    epochs,
    events,
    finish,
    numbers,
    until,
)


@pytest.fixture(scope="module")
def broken(
    tiny: list[str], module_cache: None, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, Any]]:
    """Killed in the middle of phase 0, after phase 0 and after phase 1; then its result.

    Settings that do not affect the numbers change on the way.
    """
    folder = tmp_path_factory.mktemp("broken") / "run"
    files = (PARTIAL, "phase-00.safetensors", "phase-01.safetensors")
    flags = [[], ["--threads", "1", "--resident", "stream"], ["--no-cache", "--threads", "3"]]
    for file, more in zip(files, flags, strict=True):
        process = Running("run", *tiny, "--out", folder, *more)
        until(lambda file=file: (folder / file).exists())  # type: ignore[misc]
        process.kill()
        check_whole(folder)
        assert (folder / "phase-00.safetensors").exists() is (file != PARTIAL)
    return folder, finish(*tiny, "--out", folder, "--device", "cpu")


def test_kills_at_chosen_points_change_no_number(
    unbroken: Unbroken, broken: tuple[Path, dict[str, Any]]
) -> None:
    """Nor do they change the stored images, to the byte, or their class names."""
    folder, result = broken
    whole = json.loads(unbroken.printed)
    assert numbers(result) == numbers(whole)
    assert result["trained_images"] == whole["trained_images"]
    assert json.loads((folder / "config.json").read_text())["name"] == result["name"]
    assert audit(folder / "memory-02.mrdc").problems == []
    memories = [MemoryFile(path / "memory-02.mrdc") for path in (unbroken.folder, folder)]
    assert memories[0].sha256 == memories[1].sha256
    names = {"config.json", "lock", "memory-02.mrdc", RESULTS}
    names |= {f"phase-0{n}.safetensors" for n in range(3)}
    assert {path.name for path in folder.iterdir() if not path.name.startswith(".")} == names


def test_finished_work_is_not_repeated(broken: tuple[Path, dict[str, Any]]) -> None:
    """Finished phases are kept; a partial checkpoint saves the epochs before it."""
    found = events(broken[0])
    trained = [(e["phase"], e["epoch"]) for e in found if e.get("event") == "epoch"]
    assert any(e.get("event") == "resume" and e["epoch"] > 0 for e in found)
    assert trained.count((0, 1)) == 1
    assert {pair for pair in trained if pair[0] == 0} == {(0, 1), (0, 2)}
    starts = [place for place, e in enumerate(found) if e.get("event") == "start"]
    assert len(starts) == 4
    assert {e["phase"] for e in found[starts[-1] :] if "phase" in e} == {2}


def test_a_budget_for_the_whole_file_holds_the_same_images(
    data: Path, tiny: list[str], tmp_path: Path
) -> None:
    """There class names count as bytes, so they must not change."""
    for folder in data.iterdir():
        shutil.copytree(folder, tmp_path / "photos" / f"{folder.name}-{'long' * 50}")
    flags = ["--data", str(tmp_path / "photos"), "--memory.budget", "24kB"]
    whole = finish(*tiny, *flags, "--out", tmp_path / "whole", threads=1)
    process = Running("run", *tiny, *flags, "--out", tmp_path / "killed", threads=1)
    until((tmp_path / "killed" / "phase-00.safetensors").exists)
    process.kill()
    again = finish(*tiny, *flags, "--out", tmp_path / "killed", threads=1)
    assert again["memory"] == whole["memory"]


KILLED = [
    ["bic-mrdc", "--memory.quality", "dynamic", "--first", "equal", "--phases", "3"],
    ["podnet-mrdc", "--set", "finetune_epochs=1", "--memory.quality", "25"],
    ["icarl", "--memory.budget", "12 originals", "--memory.select", "random_choice"],
]


@pytest.mark.parametrize(
    "recipe",
    [KILLED[0], *(pytest.param(recipe, marks=pytest.mark.slow) for recipe in KILLED[1:])],
    ids=lambda recipe: str(recipe[0]),
)
def test_kills_at_random_moments_change_no_number(
    recipe: list[str], tiny: list[str], tmp_path: Path
) -> None:
    """Later and later, and after every phase; from the sixth time on the run may finish."""
    arguments = [recipe[0], *tiny[1:], *recipe[1:]]
    whole = finish(*arguments, "--out", tmp_path / "whole")
    folder = tmp_path / "killed"
    seed = random.randrange(2**32)
    rng, kills = random.Random(seed), 0
    result = None
    while result is None:
        phases = len(list(folder.glob("phase-*.safetensors")))
        process = Running("run", *arguments, "--out", folder, "--no-cache", "--json")
        end = time.monotonic() + (rng.uniform(0.05, 0.3 + 0.2 * kills) if kills < 6 else 600)
        while process.process.is_alive() and time.monotonic() < end:
            if len(list(folder.glob("phase-*.safetensors"))) > phases and kills < 6:
                break
            time.sleep(0.001)
        if process.process.is_alive():
            process.kill()
            kills += 1
            check_whole(folder)
        else:
            result = process.result()
    assert kills > 1, seed
    assert numbers(result) == numbers(whole), seed
    check_whole(folder)
    assert result == last_line(folder / RESULTS)


def test_deaths_in_the_middle_of_writes_change_no_number(
    tiny: list[str], unbroken: Unbroken, tmp_path: Path
) -> None:
    """While a file is half written, before it is synced, before and after it is renamed, ..."""
    folder, deaths = tmp_path / "run", 0
    while True:
        death = (MOMENTS[deaths % 5], 1 + deaths // 2)
        process = Running("run", *tiny, "--out", folder, "--json", death=death)
        code = process.wait()
        check_whole(folder)
        if code != 9:
            break
        deaths += 1
    assert deaths > 4
    assert numbers(process.result()) == numbers(json.loads(unbroken.printed))


def test_ctrl_c_leaves_a_checkpoint_of_the_last_epoch(tiny: list[str], tmp_path: Path) -> None:
    """Before the first timed checkpoint; resuming gives the numbers of an unbroken run."""
    flags = [*tiny, "--train.epochs", "20", "--phases", "1", "--no-cache"]
    flags += ["--checkpoint-seconds", "3600"]
    whole = finish(*flags, "--out", tmp_path / "whole", threads=1)
    folder = tmp_path / "run"
    process = Running("run", *flags, "--out", folder, "--json", threads=1)
    until(lambda: (folder / RESULTS).exists() and epochs(folder, 0) > 1)
    assert not (folder / PARTIAL).exists()
    assert process.interrupt() == 130
    assert process.text("err") == "mrdc: interrupted: run the same command to resume\n"
    assert process.text("out") == ""
    assert (folder / PARTIAL).exists() and not (folder / "phase-00.safetensors").exists()
    check_whole(folder)
    before = epochs(folder, 0)
    assert numbers(finish(*flags, "--out", folder, threads=1)) == numbers(whole)
    (resumed,) = [e["epoch"] for e in events(folder) if e.get("event") == "resume"]
    assert before - 1 <= resumed <= before  # interrupted just after the line was written
    assert epochs(folder, 0) == 20 + before - resumed


def test_one_thread_of_torch_changes_no_number_after_a_kill(data: Path, tmp_path: Path) -> None:
    """On a machine with one core, or with OMP_NUM_THREADS=1."""
    arguments = ["textures-lwf-mrdc", "--data", str(data), *SMALL]
    arguments += ["--train.epochs", "2", "--phases", "2"]
    whole = finish(*arguments, "--out", tmp_path / "whole", threads=1)
    process = Running("run", *arguments, "--out", tmp_path / "killed", threads=1)
    until((tmp_path / "killed" / "phase-00.safetensors").exists)
    process.kill()
    result = finish(*arguments, "--out", tmp_path / "killed", threads=1)
    assert numbers(result) == numbers(whole)


# Results


def test_the_last_line_is_what_was_printed(unbroken: Unbroken) -> None:
    """One JSON object, with the fields that people may rely on."""
    result = json.loads(unbroken.printed)
    assert unbroken.printed.count("\n") == 1
    assert events(unbroken.folder)[-1] == result
    assert result["method"] == "lucir" and result["seconds"] > 0
    assert len(result["accuracy"]) == 3
    assert all(0 <= score <= 100 for score in result["accuracy"])
    mean = sum(result["accuracy"]) / 3
    assert result["average_incremental_accuracy"] == pytest.approx(mean, rel=1e-5)
    assert result["quality"] in (25, 50, None)
    found = audit(unbroken.folder / "memory-02.mrdc")
    assert (found.problems, found.payload_bytes <= found.budget_bytes) == ([], True)
    held = {"bytes": found.payload_bytes, "budget_bytes": found.budget_bytes}
    assert result["memory"] == held | {"items": found.items}


def test_forgetting_by_hand(unbroken: Unbroken) -> None:
    """The last accuracy on each earlier task minus the best one."""
    result = json.loads(unbroken.printed)
    first, second, third = result["tasks"]
    falls = [third[0] - max(first[0], second[0], third[0]), third[1] - max(second[1], third[1])]
    assert result["average_forgetting"] == pytest.approx(sum(falls) / 2, abs=1e-3)
    assert result["initial_forgetting"] == pytest.approx(falls[0], abs=1e-3)


def test_events_of_a_run(unbroken: Unbroken) -> None:
    """Every phase and epoch once, in order, with the measurements after a phase."""
    found = events(unbroken.folder)
    kinds = ["start", *["phase_start", "feed", "epoch", "epoch", "phase"] * 3]
    assert [event.get("event") for event in found[:-1]] == kinds
    phases = [event for event in found if event.get("event") == "phase"]
    assert [event["accuracy"] for event in phases] == found[-1]["accuracy"]
    assert [event["classes"] for event in phases] == [3, 5, 6]


def test_a_torn_result_is_written_again_without_training(
    tiny: list[str], finished: Path, unbroken: Unbroken, cli: Cli
) -> None:
    """The run was killed while writing the last line."""
    whole = (finished / RESULTS).read_bytes()
    (finished / RESULTS).write_bytes(whole[:-40])
    result = cli.json("run", *tiny, "--out", finished)
    assert numbers(result) == numbers(json.loads(unbroken.printed))
    assert [epochs(finished, phase) for phase in range(3)] == [2, 2, 2]
    assert events(finished)[-1] == result


def test_a_finished_run_answers_at_once(
    tiny: list[str], finished: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    """From its folder, which is unchanged; settings that affect no number may differ."""
    monkeypatch.setattr("mrdc.experiments.classes.learn_classes", None)
    before = contents(finished)
    flags = ["--threads", "7", "--no-cache", "--checkpoint-seconds", "9", "--device", "cpu"]
    before_it_was_copied = {"folder": events(finished)[-1]["folder"]}
    found = cli.json("run", *tiny, "--out", finished, *flags)
    assert found["folder"] == str(finished)
    assert found | before_it_was_copied == events(finished)[-1]
    assert cli("run", *tiny, "--out", finished) == 0
    assert "Averaged incremental accuracy" in cli.out
    assert contents(finished) == before
