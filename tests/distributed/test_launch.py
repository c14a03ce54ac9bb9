"""`mrdc run --nproc`: processes that start, fail and are killed together."""

import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mrdc._utils.errors import RanksError, UsageError
from mrdc.distributed.group import world
from mrdc.distributed.launch import launch
from mrdc.experiments.folder import lock
from tests.conftest import make_photos
from tests.processes import SMALL, Cli, epochs, until
from tests.processes import cli as cli


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Restore signal handlers, which torch changes."""
    names = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
    before = {name: signal.getsignal(name) for name in names}
    yield
    for name, handler in before.items():
        signal.signal(name, handler)


def test_every_process_knows_its_rank(tmp_path: Path) -> None:
    code = "import os; open(os.environ['RANK'], 'w').write(os.environ['WORLD_SIZE'])"
    before = os.fstat(0)
    assert launch(2, ["-c", f"import os; os.chdir({str(tmp_path)!r}); {code}"]) == 0
    assert [(tmp_path / rank).read_text() for rank in "01"] == ["2", "2"]
    assert os.fstat(0) == before  # standard input is unchanged
    assert logging.root.manager.disable == 0


@pytest.mark.parametrize(
    ("end", "message"),
    [
        ("os.kill(os.getpid(), 9)", "process 1 was killed by SIGKILL: run the same command"),
        ("sys.exit(3)", "process 1 ended with exit code 3: run the same command to resume"),
    ],
)
def test_a_process_that_ends_early_ends_all(end: str, message: str, tmp_path: Path) -> None:
    """One message names it; the others are terminated, not waited for."""
    code = f"import os, sys, time; {end} if os.environ['RANK'] == '1' else time.sleep(60)"
    with pytest.raises(RanksError, match=message):
        launch(2, ["-c", code])


def test_refusals(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """A number of processes that is invalid or differs from torchrun's; other commands."""
    run = ("run", "lucir", "--data", "textures", "--nproc")
    assert "--nproc must be 1 or more, got 0" in cli.refused(*run, 0)
    world()  # join first, so that it waits for no other process
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "here"}.items():
        monkeypatch.setenv(name, value)
    assert "--nproc 3: torchrun has started 2 processes" in cli.refused(*run, 3)
    assert "torchrun is for `mrdc run`" in cli.refused("list")


# With `mrdc` itself


def start(*arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "mrdc", *map(str, arguments)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True)


@pytest.mark.slow
def test_runs_with_two_processes_and_prints_one_result(tmp_path: Path, cli: Cli) -> None:
    """Afterwards one process finds the run finished."""
    photos = make_photos(tmp_path / "photos", classes=4, images=8)
    arguments = ["run", "lucir-mrdc", "--data", photos, "--phases", 1, "--out", tmp_path / "run"]
    arguments += [*SMALL, "--train.epochs", 1, "--device", "cpu"]
    out, err = start(*arguments, "--nproc", 2, "--json").communicate()
    found = json.loads(out)
    assert (err, found["ranks"]) == ("", 2)
    assert found["memory"]["bytes"] <= found["memory"]["budget_bytes"]
    assert cli.json(*arguments) == found


@pytest.mark.slow
def test_processes_refuse_settings_with_one_message(tmp_path: Path) -> None:
    run = start(
        "run",
        "lucir",
        "--data",
        "textures",
        "--out",
        tmp_path / "run",
        "--nproc",
        3,
        "--train.batch-size",
        2,
        "--device",
        "cpu",
    )
    out, err = run.communicate()
    assert (run.returncode, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("mrdc: --train.batch-size 2: too few for 3 processes")


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_processes_end_with_the_one_that_started_them(how: signal.Signals, tmp_path: Path) -> None:
    """Interrupted, with one message; even if it is killed, the folder is unlocked."""
    out = tmp_path / "run"
    run = start(
        "run",
        "lucir",
        "--data",
        "textures",
        "--out",
        out,
        "--nproc",
        2,
        "--device",
        "cpu",
        "--network",
        "resnet18-narrow",
        "--json",
    )
    until(lambda: (out / "results.jsonl").exists() and epochs(out, 0) >= 2)
    run.send_signal(how)
    printed, err = run.communicate()
    assert printed == ""
    if how == signal.SIGTERM:
        assert err == "mrdc: interrupted: run the same command to resume\n"
        assert (out / "partial.safetensors").exists()

    def free() -> bool:
        try:
            lock(out / "lock", "in use").close()
        except UsageError:
            return False
        return True

    until(free)
