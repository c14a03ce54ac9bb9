"""Commands in this process, and in others that may die at any point of a write."""

import json
import multiprocessing
import os
import runpy
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Literal

import pytest
import torch

from mrdc.cli.main import main
from mrdc.experiments.folder import RESULTS
from mrdc.memory.audit import audit
from mrdc.memory.replay import ReplayMemory
from mrdc.nn.checkpoint import Architecture, Checkpoint, read_checkpoint
from mrdc.training.resume import Saved
from tests.conftest import jpeg

# Two threads that spin while they wait for each other are slow next to other processes
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
FORK = multiprocessing.get_context("forkserver")
FORK.set_forkserver_preload(
    ["pytest", "mrdc.cli.main", "mrdc.experiments.run", "torch._dynamo", "sklearn.cluster"]
)

SMALL = ["--stem", "7x7", "--size", "40", "--memory.qualities", "50", "25"]
SMALL += ["--memory.budget", "3/class", "--network", "resnet18-narrow", "--train.batch-size", "16"]

Moment = Literal["half", "fsync", "replace", "replaced", "unlink"]
MOMENTS: tuple[Moment, ...] = ("half", "fsync", "replace", "replaced", "unlink")


class Cli:
    """`mrdc` in this process, and its last output."""

    def __init__(self, capsys: pytest.CaptureFixture[str]):
        self.capsys, self.out, self.err = capsys, "", ""

    def __call__(self, *arguments: object) -> int:
        """Its exit code."""
        self.capsys.readouterr()
        try:
            return main([str(argument) for argument in arguments])
        finally:
            self.out, self.err = self.capsys.readouterr()

    def json(self, *arguments: object) -> dict[str, Any]:
        """The JSON object that a command prints, and nothing else."""
        assert self(*arguments, "--json") == 0, self.err
        assert (self.err, self.out.count("\n")) == ("", 1)
        found: dict[str, Any] = json.loads(self.out)
        return found

    def refused(self, *arguments: object) -> str:
        """The single line of a refused command, on standard error."""
        assert self(*arguments) == 2, self.out
        assert self.err.startswith("mrdc: ")
        assert (self.out, self.err.count("\n")) == ("", 1)
        return self.err


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(capsys)


# Processes


def mortal(moment: Moment, count: int) -> None:
    """Die as by `kill -9` when this moment of a write comes for the `count`th time.

    half: part of a file is written; replaced: it has its final name; else before the call.
    """
    name = {"half": "open", "replaced": "replace"}.get(moment, moment)
    owner: Any = Path if moment == "half" else os
    original = getattr(owner, name)
    calls = 0

    def call(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        if moment == "half" and "xb" not in arguments:
            return original(*arguments, **options)
        calls += 1
        if calls == count and moment not in ("half", "replaced"):
            os._exit(9)
        result = original(*arguments, **options)
        if calls == count and moment == "replaced":
            os._exit(9)
        return Half(result) if calls == count else result

    setattr(owner, name, call)


class Half:
    """A file that kills its process after half of a write."""

    def __init__(self, file: IO[bytes]):
        self.file = file

    def __enter__(self) -> "Half":
        return self

    def __exit__(self, *error: object) -> None:
        self.file.close()

    def fileno(self) -> int:
        return self.file.fileno()

    def write(self, data: bytes) -> None:
        self.file.write(data[: max(8, len(data) // 2)])
        self.file.flush()
        if len(data) > 8:
            os._exit(9)


def work(
    arguments: list[str], log: Path, cache: str, death: tuple[Moment, int] | None, threads: int
) -> None:
    """Run a command with its output in files: the work of a process."""
    os.environ["MRDC_CACHE"] = cache
    write_to(log)
    torch.set_num_threads(threads)
    if death is not None:
        mortal(*death)
    code = main(arguments)
    sys.stdout.flush()
    os._exit(code)


def write_to(log: Path) -> None:
    """Send the output of this process to files."""
    for ending, descriptor in (("out", 1), ("err", 2)):
        os.dup2(os.open(f"{log}.{ending}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)


def run_script(path: Path, log: Path, cache: str) -> None:
    """Run a script as `python PATH` does, but with torch imported already."""
    os.environ["MRDC_CACHE"] = cache
    write_to(log)
    sys.argv, sys.path[:0] = [str(path)], [str(path.parent)]
    runpy.run_path(str(path), run_name="__main__")


def script_output(path: Path, folder: Path) -> str:
    """The standard output of a script in a process of its own; `folder` takes its files."""
    log = folder / path.stem
    process = FORK.Process(target=run_script, args=(path, log, os.environ["MRDC_CACHE"]))
    process.start()
    process.join(120)
    process.kill()  # if it does not end
    process.join()
    assert process.exitcode == 0, Path(f"{log}.err").read_text()
    return Path(f"{log}.out").read_text()


class Running:
    """`mrdc` in another process."""

    def __init__(
        self, *arguments: object, death: tuple[Moment, int] | None = None, threads: int = 2
    ):
        cache = Path(os.environ["MRDC_CACHE"])
        cache.mkdir(parents=True, exist_ok=True)
        self.log = cache.with_name(f"log{time.monotonic_ns()}")
        words = [str(argument) for argument in arguments]
        given = (words, self.log, str(cache), death, threads)
        self.process = FORK.Process(target=work, args=given)
        self.process.start()

    def kill(self) -> None:
        """Send SIGKILL if it is still running."""
        self.process.kill()
        self.process.join()

    def interrupt(self) -> int:
        """Press Ctrl-C; returns its exit code."""
        assert self.process.pid is not None
        os.kill(self.process.pid, signal.SIGINT)
        return self.wait()

    def wait(self) -> int:
        """Its exit code."""
        self.process.join(120)
        code = self.process.exitcode
        assert code is not None, "it does not end"
        return code

    def text(self, ending: str) -> str:
        """Its output so far, on `out` or `err`."""
        return Path(f"{self.log}.{ending}").read_text()

    def result(self) -> dict[str, Any]:
        """The JSON object that it prints."""
        assert self.wait() == 0, self.text("err")
        found: dict[str, Any] = json.loads(self.text("out"))
        return found


@contextmanager
def running(*arguments: object) -> Iterator[Running]:
    """A process that is ended afterwards in any case."""
    process = Running(*arguments)
    try:
        yield process
    finally:
        process.kill()


def finish(*arguments: object, threads: int = 2) -> dict[str, Any]:
    """The result of an uninterrupted run."""
    return Running("run", *arguments, "--json", threads=threads).result()


def until(there: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait for a condition, checking every millisecond."""
    end = time.monotonic() + seconds
    while not there():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.001)


# Results and folders

NUMBERS = ["accuracy", "head_accuracy", "tasks", "average_incremental_accuracy", "quality"]
NUMBERS += ["average_forgetting", "initial_forgetting", "memory", "volume_ratios", "sizes"]


def numbers(result: dict[str, Any]) -> dict[str, Any]:
    """Fields of a result that must not depend on when a run was killed."""
    return {name: result[name] for name in NUMBERS}


def events(folder: Path) -> list[dict[str, Any]]:
    """All lines of a results file."""
    return [json.loads(line) for line in (folder / RESULTS).read_text().splitlines()]


def epochs(folder: Path, phase: int) -> int:
    """Number of epochs of a phase, trained by all processes that used the folder."""
    return sum(e.get("event") == "epoch" and e["phase"] == phase for e in events(folder))


def check_whole(folder: Path) -> None:
    """Check that every file with its final name is complete."""
    if (folder / "config.json").exists():
        json.loads((folder / "config.json").read_text())
    for file in folder.glob("[!.]*.mrdc"):
        assert audit(file).problems == [], file
    for file in folder.glob("[!.]*.safetensors"):
        read_checkpoint(file)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def saved(phase: int) -> Saved:
    """A small checkpoint: a tensor, and a memory of phase + 1 classes."""
    memory = ReplayMemory("1MB", "jpeg", 50)
    memory.add({label: [jpeg(10 * label + n) for n in range(3)] for label in range(phase + 1)})
    architecture = Architecture("plain", "Linear", 16, "7x7", 16)
    tensors = {"model": {"x": torch.full((4,), float(phase))}, "method": {}}
    return Saved(phase, Checkpoint(architecture, tensors, {"phase": phase}), memory)
