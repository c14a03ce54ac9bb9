"""`mrdc` in processes of its own, which may die at any moment of a write, and what they leave."""

import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Literal

import torch

from mrdc.cli.main import main
from mrdc.experiments.folder import RESULTS
from mrdc.memory.audit import audit
from mrdc.memory.replay import ReplayMemory
from mrdc.nn.checkpoint import Architecture, Checkpoint, read_checkpoint
from mrdc.training.resume import Saved
from tests.conftest import jpeg

# Two threads that spin while they wait for each other crawl beside other processes
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
FORK = multiprocessing.get_context("forkserver")
FORK.set_forkserver_preload(
    ["pytest", "mrdc.cli.main", "mrdc.experiments.run", "torch._dynamo", "sklearn.cluster"]
)

SMALL = ["--stem", "7x7", "--size", "40", "--memory.candidates", "50", "25"]
SMALL += ["--memory.budget", "3/class", "--network", "resnet18-narrow", "--train.batch-size", "16"]

Moment = Literal["half", "fsync", "replace", "replaced", "unlink"]
MOMENTS: tuple[Moment, ...] = ("half", "fsync", "replace", "replaced", "unlink")


# Processes


def mortal(moment: Moment, count: int) -> None:
    """Die as by `kill -9` at the `count`th time of this moment of a write.

    half: some of a file is written; replaced: it has got its name; else before the call.
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
    """A file that kills its writer when it has got half of what is worth a name."""

    def __init__(self, file: IO[bytes]):
        self.file = file

    def __enter__(self) -> "Half":
        return self

    def __exit__(self, *error: object) -> None:
        self.file.close()

    def write(self, data: bytes) -> None:
        self.file.write(data[: max(8, len(data) // 2)])
        self.file.flush()
        if len(data) > 8:
            os._exit(9)


def work(
    arguments: list[str], log: Path, cache: str, death: tuple[Moment, int] | None, threads: int
) -> None:
    """What a process of its own does: a command, with its output in files."""
    os.environ["MRDC_CACHE"] = cache
    for ending, descriptor in (("out", 1), ("err", 2)):
        os.dup2(os.open(f"{log}.{ending}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
    torch.set_num_threads(threads)
    if death is not None:
        mortal(*death)
    code = main(arguments)
    sys.stdout.flush()
    os._exit(code)


class Running:
    """`mrdc` in a process of its own."""

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
        """With SIGKILL, if it is still there."""
        self.process.kill()
        self.process.join()

    def wait(self) -> int:
        """Its exit code."""
        self.process.join(120)
        code = self.process.exitcode
        assert code is not None, "does not end"
        return code

    def text(self, ending: str) -> str:
        """What it has said on `out` or `err`."""
        return Path(f"{self.log}.{ending}").read_text()

    def result(self) -> dict[str, Any]:
        """What it printed at its good end."""
        assert self.wait() == 0, self.text("err")
        found: dict[str, Any] = json.loads(self.text("out"))
        return found


@contextmanager
def running(*arguments: object) -> Iterator[Running]:
    """One that is surely gone afterwards."""
    process = Running(*arguments)
    try:
        yield process
    finally:
        process.kill()


def finish(*arguments: object, threads: int = 2) -> dict[str, Any]:
    """The result of a run that nobody disturbs."""
    return Running("run", *arguments, "--json", threads=threads).result()


def until(there: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait for something, a millisecond at a time."""
    end = time.monotonic() + seconds
    while not there():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.001)


# What is compared

NUMBERS = (
    "accuracy", "head_accuracy", "tasks", "average_incremental_accuracy", "average_forgetting",
    "initial_forgetting", "quality", "memory", "volume_ratios", "sizes",
)  # fmt: skip


def numbers(result: dict[str, Any]) -> dict[str, Any]:
    """What must not depend on when a run was killed."""
    return {name: result[name] for name in NUMBERS}


def events(folder: Path) -> list[dict[str, Any]]:
    """All lines of a results file; each is JSON."""
    return [json.loads(line) for line in (folder / RESULTS).read_text().splitlines()]


def epochs(folder: Path, phase: int) -> int:
    """Epochs trained in a phase by all processes that worked in the folder."""
    return sum(e.get("event") == "epoch" and e["phase"] == phase for e in events(folder))


def check_whole(folder: Path) -> None:
    """Whatever has its final name is complete."""
    if (folder / "config.json").exists():
        json.loads((folder / "config.json").read_text())
    for file in folder.glob("[!.]*.mrdc"):
        assert audit(file).problems == [], file
    for file in folder.glob("[!.]*.safetensors"):
        read_checkpoint(file)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def saved(phase: int) -> Saved:
    """Something small to keep: a tensor, and a memory of phase + 1 classes."""
    memory = ReplayMemory("1MB", "jpeg", 50)
    memory.add({label: [jpeg(10 * label + number) for number in range(3)] for label in
                range(phase + 1)})  # fmt: skip
    architecture = Architecture("plain", "Linear", 16, "7x7", 16)
    tensors = {"model": {"x": torch.full((4,), float(phase))}, "method": {}}
    return Saved(phase, Checkpoint(architecture, tensors, {"phase": phase}), memory)
