"""Runs that are killed at any moment go on, and folders that are not theirs stay as they are.

Training happens in processes of their own: forked from one that has torch
imported already, or, where it matters, started as people start them.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import types
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from mrdc._utils.errors import CheckpointError, MrdcError, OutputError, UsageError
from mrdc.cli.main import main
from mrdc.experiments.folder import (
    PARTIAL,
    RESULTS,
    RunFolder,
    commits,
    flat,
    last_line,
    open_events,
    rounded,
)
from mrdc.memory.audit import audit
from mrdc.memory.file import MemoryFile
from mrdc.memory.replay import ReplayMemory
from mrdc.nn.checkpoint import last_checkpoint, read_checkpoint
from mrdc.nn.embed import load_embedder
from mrdc.training.resume import Partial
from tests.conftest import make_photos
from tests.processes import (
    FORK,
    MOMENTS,
    SMALL,
    Moment,
    Running,
    check_whole,
    contents,
    epochs,
    events,
    finish,
    mortal,
    numbers,
    running,
    saved,
    until,
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six classes of twelve small photos, two of which are set aside for testing."""
    return make_photos(tmp_path_factory.mktemp("data") / "photos", classes=6, images=12)


@pytest.fixture(scope="module")
def tiny(data: Path) -> list[str]:
    """A run of three phases of two epochs, with a checkpoint after every epoch."""
    flags = ["--train.epochs", "2", "--phases", "2", "--checkpoint-seconds", "0"]
    return ["textures-lucir-mrdc", "--data", str(data), *SMALL, *flags]


@pytest.fixture(scope="module")
def unbroken(tiny: list[str], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder of a run as people start it, and what it printed."""
    root = tmp_path_factory.mktemp("unbroken")
    command = [sys.executable, "-m", "mrdc", "run", *tiny, "--out", str(root / "run"), "--json"]
    environment = {**os.environ, "MRDC_CACHE": str(root / "cache")}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    return root / "run", done.stdout


@pytest.fixture
def finished(unbroken: tuple[Path, str], tmp_path: Path) -> Path:
    """A copy of it to play with."""
    return Path(shutil.copytree(unbroken[0], tmp_path / "run"))


@pytest.fixture
def unfinished(finished: Path) -> Path:
    """One that was killed just before its last line."""
    lines = (finished / RESULTS).read_bytes().splitlines(keepends=True)
    (finished / RESULTS).write_bytes(b"".join(lines[:-1]))
    return finished


@pytest.fixture(scope="module")
def broken(
    tiny: list[str], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, Any]]:
    """Killed in the middle of phase 0, after phase 0 and after phase 1; then its result.

    Free settings change on the way. The first and third process are started as people do.
    """
    root = tmp_path_factory.mktemp("broken")
    folder = root / "run"
    environment = {**os.environ, "MRDC_CACHE": str(root / "cache")}
    flags = [[], ["--threads", "1", "--resident", "stream"], ["--no-cache", "--threads", "3"]]
    for number, (file, more) in enumerate(
        zip((PARTIAL, "phase-00.safetensors", "phase-01.safetensors"), flags, strict=True)
    ):
        command = [sys.executable, "-m", "mrdc", "run", *tiny, "--out", str(folder), *more]
        with (root / f"log{number}").open("w") as log:
            process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
            until(lambda file=file, process=process: (  # type: ignore[misc]
                (folder / file).exists() or process.poll() is not None
            ))  # fmt: skip
            process.kill()
        assert process.wait() == -signal.SIGKILL, (root / f"log{number}").read_text()
        check_whole(folder)
        if file == PARTIAL:
            assert not (folder / "phase-00.safetensors").exists()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MRDC_CACHE", str(root / "cache"))
        return folder, finish(*tiny, "--out", folder, "--device", "cpu")


# Killed and gone on


def test_kills_at_chosen_points_change_no_number(
    unbroken: tuple[Path, str], broken: tuple[Path, dict[str, Any]]
) -> None:
    """With other threads, another place for decoded images, and no shared first phase."""
    folder, result = broken
    assert numbers(result) == numbers(json.loads(unbroken[1]))
    assert json.loads((folder / "config.json").read_text())["name"] == result["name"]
    assert audit(folder / "memory-02.mrdc").problems == []
    assert sorted(path.name for path in folder.iterdir() if not path.name.startswith(".")) == [
        "config.json", "lock", "memory-02.mrdc", "phase-00.safetensors", "phase-01.safetensors",
        "phase-02.safetensors", "results.jsonl",
    ]  # fmt: skip


def test_what_was_trained_is_not_trained_again(broken: tuple[Path, dict[str, Any]]) -> None:
    """A phase that was over stays so; a partial checkpoint saves the epochs before it."""
    said = [(e["phase"], e["epoch"]) for e in events(broken[0]) if e.get("event") == "epoch"]
    assert any(e.get("event") == "resume" and e["epoch"] > 0 for e in events(broken[0]))
    assert said.count((0, 1)) == 1
    assert {pair for pair in said if pair[0] == 0} == {(0, 1), (0, 2)}
    over = [place for place, e in enumerate(events(broken[0])) if e.get("event") == "start"]
    assert len(over) == 4
    last = events(broken[0])[over[-1] :]
    assert {e["phase"] for e in last if "phase" in e} == {2}


def test_the_same_images_are_held(
    unbroken: tuple[Path, str], broken: tuple[Path, dict[str, Any]]
) -> None:
    """To the byte, in the same order."""
    memories = [ReplayMemory.load(f / "memory-02.mrdc") for f in (unbroken[0], broken[0])]
    one, other = ([m.encoded(i) for i in range(len(m))] for m in memories)
    assert one == other
    assert memories[0].targets == memories[1].targets


def test_the_memory_keeps_its_class_names(
    unbroken: tuple[Path, str], broken: tuple[Path, dict[str, Any]]
) -> None:
    """Of classes stored after the run was gone on with, too: the files are the same."""
    files = [MemoryFile(folder / "memory-02.mrdc") for folder in (unbroken[0], broken[0])]
    assert files[0].meta["classes"] == files[1].meta["classes"]
    assert files[0].sha256 == files[1].sha256


def test_a_budget_for_the_whole_file_holds_the_same_images(
    data: Path, tiny: list[str], tmp_path: Path
) -> None:
    """Names count as bytes there, so they must not change."""
    for folder in data.iterdir():
        shutil.copytree(folder, tmp_path / "photos" / f"{folder.name}-{'long' * 50}")
    flags = ["--data", str(tmp_path / "photos"), "--memory.budget", "24kB"]
    whole = finish(*tiny, *flags, "--out", tmp_path / "whole")
    process = Running("run", *tiny, *flags, "--out", tmp_path / "killed")
    until((tmp_path / "killed" / "phase-00.safetensors").exists)
    process.kill()
    result = finish(*tiny, *flags, "--out", tmp_path / "killed")
    assert result["memory"] == whole["memory"]


def test_all_trained_images_are_counted(
    unbroken: tuple[Path, str], broken: tuple[Path, dict[str, Any]]
) -> None:
    """Those before the kill, too."""
    assert broken[1]["trained_images"] == json.loads(unbroken[1])["trained_images"]


KILLED = [
    ["lucir-mrdc"],
    ["bic-mrdc", "--memory.quality", "dynamic", "--first", "equal", "--phases", "3"],
    ["podnet-mrdc", "--set", "finetune_epochs=1", "--memory.quality", "25"],
    ["icarl", "--memory.budget", "12 originals", "--memory.select", "random_choice"],
]


@pytest.mark.parametrize("recipe", KILLED, ids=lambda recipe: str(recipe[0]))
def test_kills_at_random_moments_change_no_number(
    recipe: list[str], tiny: list[str], tmp_path: Path
) -> None:
    """Ever later ones, and after every phase, until the run ends before it is killed."""
    arguments = [recipe[0], *tiny[1:], *recipe[1:]]
    whole = finish(*arguments, "--out", tmp_path / "whole")
    folder = tmp_path / "killed"
    seed = random.randrange(2**32)
    rng, kills = random.Random(seed), 0
    result = None
    while result is None:
        phases = len(list(folder.glob("phase-*.safetensors")))
        process = Running("run", *arguments, "--out", folder, "--no-cache", "--json")
        end = time.monotonic() + rng.uniform(0.05, 0.3 + 0.1 * kills)
        while process.process.is_alive() and time.monotonic() < end:
            if len(list(folder.glob("phase-*.safetensors"))) > phases:
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
    tiny: list[str], unbroken: tuple[Path, str], tmp_path: Path
) -> None:
    """In the middle of a file, before it is synced, before and after it gets its name, ..."""
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
    assert numbers(process.result()) == numbers(json.loads(unbroken[1]))


def keep_two_phases(folder: Path, death: tuple[Moment, int]) -> None:
    """Phase 0 in peace; then a partial checkpoint and phase 1, and death somewhere there."""
    keeper = RunFolder(folder, {"a": 1}, {}, every=0.0)
    keeper.save(saved(0))
    mortal(*death)
    keeper.save_partial(lambda: Partial(1, 1, saved(1).checkpoint))
    keeper.save(saved(1))
    os._exit(0)


@pytest.mark.parametrize("moment", MOMENTS)
def test_every_moment_of_keeping_a_phase(moment: Moment, tmp_path: Path) -> None:
    """The folder has the old phase and its memory, or the new one and its memory."""
    found, code, count = [], 9, 0
    while code == 9:
        count += 1
        folder = tmp_path / str(count)
        process = FORK.Process(target=keep_two_phases, args=(folder, (moment, count)))
        process.start()
        process.join()
        code = process.exitcode or 0
        check_whole(folder)
        keeper = RunFolder(folder, {"a": 1}, {}, every=0.0)
        kept = keeper.load()
        assert kept is not None
        assert kept.memory is not None
        assert kept.checkpoint.tensors["model"]["x"].tolist() == [kept.phase] * 4
        assert kept.memory.labels == list(range(kept.phase + 1))
        partial = keeper.load_partial(kept.phase + 1)
        assert partial is None or (kept.phase, partial.epoch) == (0, 1)
        keeper.save(saved(1))
        again = keeper.load()
        assert again is not None
        assert again.phase == 1
        keeper.close()
        found.append(kept.phase)
    assert code == 0
    assert found == sorted(found)
    assert found[-1] == 1
    assert len(found) > 2


def test_no_temporary_file_outlives_the_next_process(tmp_path: Path) -> None:
    """A kill in the middle of a large checkpoint must not cost its space for ever."""
    process = FORK.Process(target=keep_two_phases, args=(tmp_path / "run", ("replace", 3)))
    process.start()
    process.join()
    assert list((tmp_path / "run").glob(".*.tmp"))
    RunFolder(tmp_path / "run", {"a": 1}, {}).close()
    assert not list((tmp_path / "run").glob(".*.tmp"))


def test_a_folder_without_a_config_yet_is_taken_up(tmp_path: Path) -> None:
    """Killed while the very first file was written."""
    (tmp_path / "lock").touch()
    (tmp_path / ".config.json.x.tmp").write_text("{")
    RunFolder(tmp_path, {"a": 1}, {}).close()
    assert json.loads((tmp_path / "config.json").read_text())["settings"] == {"a": 1}


def test_the_hundredth_phase_is_the_last(tmp_path: Path) -> None:
    """Phases are numbers, not text."""
    for phase in (9, 99, 100):
        (tmp_path / f"phase-{phase:02d}.safetensors").touch()
    assert last_checkpoint(tmp_path) == tmp_path / "phase-100.safetensors"


def test_a_phase_without_its_memory_is_not_gone_on_with(tmp_path: Path) -> None:
    """All classes of the phases before would be left out without a word."""
    keeper = RunFolder(tmp_path, {"a": 1}, {})
    keeper.save(saved(0))
    (tmp_path / "memory-00.mrdc").unlink()
    try:
        with pytest.raises(MrdcError, match=r"memory-00\.mrdc"):
            keeper.load()
    finally:
        keeper.close()


def test_damaged_checkpoints_are_named(
    tiny: list[str], unfinished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And never taken for others."""
    file = unfinished / "phase-02.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    assert main(["run", *tiny, "--out", str(unfinished), "--json"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"mrdc: {file}: cannot be read as a checkpoint")
    assert err.count("\n") == 1


def test_a_damaged_memory_is_not_gone_on_with(tmp_path: Path) -> None:
    """Its images would be learned, and stored anew as if they were sound."""
    keeper = RunFolder(tmp_path, {"a": 1}, {})
    keeper.save(saved(0))
    file = tmp_path / "memory-00.mrdc"
    content = bytearray(file.read_bytes())
    content[-5] ^= 1
    file.write_bytes(content)
    try:
        with pytest.raises(CheckpointError, match=r"memory-00\.mrdc: damaged \(image"):
            keeper.load()
    finally:
        keeper.close()


def test_one_thread_of_torch_changes_no_number_after_a_kill(data: Path, tmp_path: Path) -> None:
    """On a machine with one core, or under OMP_NUM_THREADS=1."""
    arguments = ["textures-lwf-mrdc", "--data", str(data), *SMALL]
    arguments += ["--train.epochs", "2", "--phases", "2"]
    whole = finish(*arguments, "--out", tmp_path / "whole", threads=1)
    folder = tmp_path / "killed"
    process = Running("run", *arguments, "--out", folder, threads=1)
    until((folder / "phase-00.safetensors").exists)
    process.kill()
    assert numbers(finish(*arguments, "--out", folder, threads=1)) == numbers(whole)


# The results


def test_a_torn_last_line_is_dropped(tmp_path: Path) -> None:
    """Whole lines stay, and new ones follow them."""
    path = tmp_path / RESULTS
    path.write_bytes(b'{"event": "a"}\n{"event": "b", "x')
    assert last_line(path) == {"event": "a"}
    with open_events(path) as file:
        file.write(b'{"event": "c"}\n')
    assert path.read_bytes() == b'{"event": "a"}\n{"event": "c"}\n'


def test_nothing_but_a_torn_line(tmp_path: Path) -> None:
    """Is nothing."""
    path = tmp_path / RESULTS
    assert last_line(path) is None
    path.write_bytes(b'{"event"')
    assert last_line(path) is None
    open_events(path).close()
    assert path.read_bytes() == b""


def test_a_torn_result_is_written_again_without_training(
    tiny: list[str], finished: Path, unbroken: tuple[Path, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Killed in the middle of the last line."""
    whole = (finished / RESULTS).read_bytes()
    (finished / RESULTS).write_bytes(whole[:-40])
    assert main(["run", *tiny, "--out", str(finished), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert numbers(result) == numbers(json.loads(unbroken[1]))
    assert [epochs(finished, phase) for phase in range(3)] == [2, 2, 2]
    assert events(finished)[-1] == result


def test_the_last_line_is_what_was_printed(unbroken: tuple[Path, str]) -> None:
    """One JSON object, with the fields that people may rely on."""
    folder, printed = unbroken
    assert printed.count("\n") == 1
    result = json.loads(printed)
    assert events(folder)[-1] == result
    fixed = ("method", "accuracy", "average_incremental_accuracy", "average_forgetting",
             "quality", "memory", "seconds")  # fmt: skip
    assert all(name in result for name in fixed)
    assert result["method"] == "lucir"
    assert len(result["accuracy"]) == 3
    assert all(0 <= score <= 100 for score in result["accuracy"])
    assert result["average_incremental_accuracy"] == pytest.approx(
        sum(result["accuracy"]) / 3, rel=1e-5
    )
    assert result["quality"] in (25, 50, None)
    assert set(result["memory"]) == {"bytes", "budget_bytes", "items"}
    assert 0 < result["memory"]["bytes"] <= result["memory"]["budget_bytes"]
    assert result["seconds"] > 0


def test_forgetting_by_hand(unbroken: tuple[Path, str]) -> None:
    """The last accuracy of each earlier task minus its best."""
    result = json.loads(unbroken[1])
    first, second, third = result["tasks"]
    falls = [third[0] - max(first[0], second[0], third[0]), third[1] - max(second[1], third[1])]
    assert result["average_forgetting"] == pytest.approx(sum(falls) / 2, abs=1e-3)
    assert result["initial_forgetting"] == pytest.approx(falls[0], abs=1e-3)


def test_the_memory_of_the_result_is_the_file(unbroken: tuple[Path, str]) -> None:
    """Items, bytes and budget."""
    found = audit(unbroken[0] / "memory-02.mrdc")
    assert found.problems == []
    assert json.loads(unbroken[1])["memory"] == {
        "bytes": found.payload_bytes, "budget_bytes": found.budget_bytes, "items": found.items,
    }  # fmt: skip


def test_a_result_names_every_commit_that_it_comes_from(tmp_path: Path) -> None:
    """Each once, in order; unknown ones are left out."""
    path = tmp_path / RESULTS
    starts = [{"event": "start", "commit": name} for name in ("a1", None, "a1", "b2", "a1")]
    lines = [*starts, {"event": "phase", "commit": "no start"}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert commits(path) == "a1, then b2"
    path.write_text(json.dumps({"event": "start", "commit": None}) + "\n")
    assert commits(path) is None


def test_a_damaged_line_does_not_keep_a_run_from_its_result(tmp_path: Path) -> None:
    """Its commits are those of the other lines."""
    start = b'{"event": "start", "commit": "abc"}\n'
    (tmp_path / RESULTS).write_bytes(start + b"\0\xff torn\n" + start)
    assert commits(tmp_path / RESULTS) == "abc"


def test_events_tell_the_whole_story(unbroken: tuple[Path, str]) -> None:
    """Every phase and epoch once, in order; and what was measured after a phase."""
    told = events(unbroken[0])
    kinds = ["start", *["phase_start", "epoch", "epoch", "phase"] * 3]
    assert [event.get("event") for event in told[:-1]] == kinds
    phases = [event for event in told if event.get("event") == "phase"]
    assert [event["accuracy"] for event in phases] == told[-1]["accuracy"]
    assert [event["classes"] for event in phases] == [3, 5, 6]


def test_a_finished_run_answers_at_once(
    tiny: list[str],
    finished: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """From the folder, which stays as it is, though free settings differ."""
    monkeypatch.setattr("mrdc.experiments.run.run_phases", None)
    before = contents(finished)
    flags = ["--threads", "7", "--no-cache", "--checkpoint-seconds", "9", "--device", "cpu"]
    assert main(["run", *tiny, "--out", str(finished), "--json", *flags]) == 0
    assert json.loads(capsys.readouterr().out) == events(finished)[-1]
    assert main(["run", *tiny, "--out", str(finished)]) == 0
    assert "Averaged incremental accuracy" in capsys.readouterr().out
    assert contents(finished) == before


# What is refused

CHANGES = [
    (["--memory.quality", "50"], "memory.quality: auto there, 50 now"),
    (["--train.epochs", "3"], "train.epochs: 2 there, 3 now"),
    (["--seed", "1"], "seed: 0 there, 1 now"),
    (["--phases", "3"], "phases: 2 there, 3 now"),
    (["--memory.candidates", "50"], "memory.candidates: [50, 25] there, [50] now"),
]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # see below
@pytest.mark.parametrize("state", ["finished", "unfinished"])
@pytest.mark.parametrize(("flags", "message"), CHANGES, ids=[flags[0] for flags, _ in CHANGES])
def test_other_settings_are_refused(
    tiny: list[str],
    flags: list[str],
    message: str,
    state: str,
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With what differs, and the folder as it was."""
    folder: Path = request.getfixturevalue(state)
    before = contents(folder)
    assert main(["run", *tiny, "--out", str(folder), "--json", *flags]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(f"mrdc: {folder}: was begun with other settings (")
    assert message in err
    assert contents(folder) == before


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_refusal_lets_others_in(tmp_path: Path) -> None:
    """Even while somebody looks at the error."""
    RunFolder(tmp_path, {"a": 1}, {}).close()
    free = False
    try:
        RunFolder(tmp_path, {"a": 2}, {})
    except UsageError:
        with suppress(UsageError):
            RunFolder(tmp_path, {"a": 1}, {}).close()
            free = True
    assert free


def test_only_what_differs_is_shown(
    tiny: list[str], finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two of many settings."""
    flags = ["--train.lr", "0.2", "--seed", "4"]
    assert main(["run", *tiny, "--out", str(finished), *flags]) == 2
    assert "(--seed: 0 there, 4 now; --train.lr: 0.1 there, 0.2 now)" in capsys.readouterr().err


@pytest.mark.parametrize(
    "flags", [["--set", "margin=0.4"], ["--train.batch-size", "8"]], ids=lambda flags: flags[0]
)
def test_what_differs_has_the_name_of_its_flag(
    tiny: list[str], flags: list[str], finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As people typed it."""
    assert main(["run", *tiny, "--out", str(finished), *flags]) == 2
    assert flags[0].removeprefix("--") in capsys.readouterr().err.replace("settings", "")


def test_a_second_process_in_a_folder_is_refused(
    tiny: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And does not disturb the first."""
    folder = tmp_path / "run"
    with running("run", *tiny, "--out", folder, "--json") as first:
        until(
            lambda: (folder / RESULTS).exists() and "phase_start" in (folder / RESULTS).read_text()
        )
        assert main(["run", *tiny, "--out", str(folder), "--json"]) == 2
        out, err = capsys.readouterr()
        assert (out, err) == ("", f"mrdc: {folder}: another process runs in it\n")
        first.result()
    assert [event.get("event") for event in events(folder)].count("start") == 1


def test_the_lock_ends_with_its_process(tmp_path: Path) -> None:
    """And with `close`."""
    first = RunFolder(tmp_path, {}, {})
    with pytest.raises(UsageError, match="another process runs in it"):
        RunFolder(tmp_path, {}, {})
    first.close()
    RunFolder(tmp_path, {}, {}).close()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_results_that_find_no_room_are_told_once(tmp_path: Path) -> None:
    """By the line that was to be written; closing the folder is no second fault."""
    keeper = RunFolder(tmp_path, {}, {})
    keeper._events.close()
    keeper._events = Path("/dev/full").open("ab")
    with pytest.raises(OutputError, match=f"{RESULTS}: cannot be written"):
        keeper.event("epoch", {})
    keeper.close()
    RunFolder(tmp_path, {}, {}).close()


def test_a_folder_of_other_things_is_refused_and_untouched(
    tiny: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not even a lock is left there."""
    folder = tmp_path / "thesis"
    folder.mkdir()
    (folder / "chapter.tex").write_text("words")
    assert main(["run", *tiny, "--out", str(folder), "--json"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "has files but no config.json: no run; name another --out" in err
    assert contents(folder) == {"chapter.tex": b"words"}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("config.json", '{"architectures": ["BertModel"]}'),
        ("config.json", "[]"),
        ("config.json", "port = 80"),
        ("results.jsonl", "hello\n"),
        ("results.jsonl", "3\n"),
    ],
)
def test_files_of_others_under_our_names_are_refused(
    tiny: list[str], name: str, text: str, tmp_path: Path
) -> None:
    """Many programs have a config.json."""
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / name).write_text(text)
    process = Running("run", *tiny, "--out", tmp_path / "other", "--json")
    assert process.wait() == 2
    assert process.text("err").count("\n") == 1
    assert contents(tmp_path / "other") == {name: text.encode()}


def test_an_output_that_is_a_file_is_refused(
    tiny: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And stays."""
    (tmp_path / "file").write_text("words")
    for out in (tmp_path / "file", tmp_path / "file" / "inside"):
        assert main(["run", *tiny, "--out", str(out), "--json"]) == 2
        assert capsys.readouterr().err.count("\n") == 1
    assert (tmp_path / "file").read_text() == "words"
    with pytest.raises(OutputError, match="is there already and is no folder"):
        RunFolder(tmp_path / "file", {}, {})


def test_tensorboard_in_a_new_folder(
    tiny: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its writer makes a folder as soon as there is one, as the real one does."""
    module = types.ModuleType("torch.utils.tensorboard")

    class SummaryWriter:
        def __init__(self, folder: str):
            Path(folder).mkdir(parents=True)

    vars(module)["SummaryWriter"] = SummaryWriter
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    monkeypatch.setattr("mrdc.experiments.run.run_phases", lambda *arguments: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main(["run", *tiny, "--out", str(tmp_path / "run"), "--tensorboard", "--json"])


# Small parts


def test_flat_settings_have_dotted_names() -> None:
    """However deep."""
    assert flat({"a": 1, "b": {"c": {"d": 2}, "e": [3]}}) == {"a": 1, "b.c.d": 2, "b.e": [3]}


def test_lines_have_six_digits() -> None:
    """In whatever they hold; whole numbers stay whole."""
    assert rounded({"a": 1 / 3, "b": [2e9 / 3, 12345678, None, True]}) == {
        "a": 0.333333, "b": [666667000.0, 12345678, None, True],
    }  # fmt: skip


# The network of a run


def test_plan_and_pack_embed_with_a_run(finished: Path, photos: Path, tmp_path: Path) -> None:
    """By its last network; without that, by the one before, which sees otherwise."""
    flags = [photos, "--budget", "4/class", "--embed", f"run:{finished}", "--json"]
    before = contents(finished)
    plan = Running("plan", *flags).result()
    packed = Running("pack", *flags, "-o", tmp_path / "m").result()
    assert packed["plan"]["chosen"] == plan["chosen"]
    assert audit(tmp_path / "m").problems == []
    assert contents(finished) == before
    (finished / "phase-02.safetensors").unlink()
    other = Running("plan", *flags).result()
    ratios = [[c["volume_ratio"] for c in found["candidates"]] for found in (plan, other)]
    assert len(ratios[0]) == 6
    assert all(one != two for one, two in zip(*(r[1:] for r in ratios), strict=True))


def test_the_network_of_a_run_is_that_of_its_last_phase(unbroken: tuple[Path, str]) -> None:
    """With its size."""
    embedder = load_embedder(f"run:{unbroken[0]}")
    assert embedder.size == 40
    checkpoint = read_checkpoint(unbroken[0] / "phase-02.safetensors")
    images = torch.randint(0, 256, (3, 3, 40, 40), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        expected = checkpoint.network().features(images)
        torch.testing.assert_close(embedder.network(images), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("missing", "no run folder with a finished phase"),
        ("empty", "no run folder with a finished phase"),
        ("photos", "no run folder with a finished phase"),
        ("file", "no run folder with a finished phase"),
        ("cut", "cannot be read as a checkpoint"),
        ("foreign", "not a checkpoint of mrdc"),
        ("weights", "--weights goes with --embed torchvision:NAME"),
    ],
)
def test_folders_that_are_no_run_are_refused(
    kind: str, message: str, finished: Path, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one line, by plan and pack."""
    folder, flags = finished, []
    if kind in ("missing", "empty"):
        folder = finished.parent / kind
        if kind == "empty":
            folder.mkdir()
    elif kind in ("photos", "file"):
        folder = photos if kind == "photos" else finished / RESULTS
    elif kind == "cut":
        file = finished / "phase-02.safetensors"
        file.write_bytes(file.read_bytes()[:1000])
    elif kind == "foreign":
        from safetensors.torch import save_file

        save_file({"x": torch.zeros(1)}, finished / "phase-02.safetensors")
    else:
        flags = ["--weights", str(finished / "phase-02.safetensors")]
    for command in (["plan"], ["pack", "-o", str(finished.parent / "m")]):
        given = [str(photos), "--budget", "4/class", "--embed", f"run:{folder}", *flags]
        assert main([command[0], *given, *command[1:]]) == 2
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1)
        assert message in err
    assert not (finished.parent / "m").exists()
