"""What runs on classes and on scenes share: a folder to work in, and what makes a run this run."""

import math
import os
import platform
import re
import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from mrdc import __version__
from mrdc._utils.errors import TrainingError, UsageError
from mrdc.experiments.folder import (
    RESULTS,
    Listener,
    RunFolder,
    commits,
    last_line,
    read_config,
    read_in_training,
    refuse_changes,
)
from mrdc.experiments.settings import AnySettings
from mrdc.memory.budget import parse_budget
from mrdc.training.exemplars import fixed_quality

# Where and how, not what. On a CPU these do not change the numbers; on a GPU, whose sums differ
# from run to run anyway, kernels and the order of draws may.
FREE = (
    "out",
    "device",
    "compile",
    "resident",
    "threads",
    "checkpoint_seconds",
    "cache",
    "tensorboard",
)


def in_folder(
    path: Path,
    name: str,
    settings: AnySettings,
    decisive: dict[str, Any],
    listener: Listener,
    begin: Callable[[], list[str]],
    work: Callable[[RunFolder], dict[str, Any]],
) -> dict[str, Any]:
    """Do a run's work in its folder, or go on with it; the result that is written there.

    Args:
        begin: what is checked before a folder is made; gives test images that are learned from.
        work: gives the result.
    """
    done, known = finished(path), read_config(path)
    if done is not None and known is not None:
        refuse_changes(path, known, decisive)
        return done
    in_training = begin() if known is None else read_in_training(path)
    about = {"name": name, "in_training": in_training, **machine()}
    keeper = RunFolder(
        path,
        decisive,
        about,
        every=settings.checkpoint_seconds,
        cache=getattr(settings, "cache", False),
        listener=listener,
    )
    try:
        if settings.tensorboard:
            keeper.listener = both(listener, tensorboard(path))
        with memory_errors():
            result = {"name": name, **work(keeper), "folder": str(path), **about}
        keeper.write_line(result | {"commit": commits(path / RESULTS)})
    finally:
        keeper.close()
    written = finished(path)
    assert written is not None
    return written


@contextmanager
def memory_errors() -> Iterator[None]:
    """Tell in a line that training needs more memory than there is.

    Raises:
        TrainingError: with what takes less.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        lacking = isinstance(error, MemoryError | torch.OutOfMemoryError)
        if not lacking and "can't allocate memory" not in str(error):
            raise
        raise TrainingError(
            "there is not enough memory: lower --train.batch-size or the size of images, in "
            "another --out"
        ) from None


def finished(path: Path) -> dict[str, Any] | None:
    """The result of a run folder, if the run is over."""
    line = last_line(path / RESULTS)
    return line if line is not None and "average_incremental_accuracy" in line else None


def check_numbers(least: Iterable[tuple[str, float | None, float]]) -> None:
    """Refuse values below their bounds, and endless ones.

    Raises:
        UsageError: with the flag.
    """
    for flag, value, bound in least:
        if value is not None and not bound <= value < math.inf:
            finite = ", and finite" if value == math.inf else ""
            raise UsageError(f"{flag} must be {bound:g} or more{finite}, got {value}")


def check_common(settings: AnySettings) -> None:
    """What all experiments share.

    Raises:
        UsageError: something that cannot be used.
    """
    if not 0 < settings.train.lr < math.inf:
        raise UsageError(f"--train.lr must be above 0, and finite, got {settings.train.lr}")
    if settings.tensorboard and find_spec("tensorboard") is None:
        raise UsageError("--tensorboard needs it: pip install mrdc[tensorboard]")
    parse_budget(settings.memory.budget, original_bytes=1.0)
    fixed_quality(settings.memory)


def decisive_settings(settings: AnySettings) -> dict[str, Any]:
    """What decides the numbers, as JSON values."""
    values = {name: value for name, value in asdict(settings).items() if name not in FREE}
    if Path(settings.data).exists():
        values["data"] = str(Path(settings.data).resolve())
    return {name: _plain(value) for name, value in values.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(entry) for name, entry in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(entry) for entry in value]
    return str(value) if isinstance(value, Path) else value


def folder_name(settings: AnySettings, name: str) -> str:
    """Made of the recipe, the data, the phases and the seed."""
    data = re.sub(r"[^\w.-]+", "_", Path(settings.data).resolve().name)
    return f"{name}-{data}-{settings.phases}-seed{settings.seed}"


def built_in(data: str, name: str = "textures") -> bool:
    """Whether this names synthetic images, and not a folder that is called so."""
    return data == name and not Path(data).exists()


def machine() -> dict[str, Any]:
    """Commit, hardware and versions."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "mrdc": __version__,
        "commit": os.environ.get("MRDC_COMMIT") or _commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        **{package.lower(): version(package) for package in ("numpy", "Pillow")},
        "gpu": gpu,
        "cores": len(os.sched_getaffinity(0)),
    }


def _commit() -> str | None:
    """Of the checkout that this file is in, if it is in one; `-dirty` if files differ from it."""
    here = Path(__file__).resolve().parent
    command = ["git", "-C", str(here), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip() or None


def both(first: Listener, second: Listener) -> Listener:
    """Tell both."""

    def tell(kind: str, fields: dict[str, Any]) -> None:
        first(kind, fields)
        second(kind, fields)

    return tell


def tensorboard(path: Path) -> Listener:
    """A listener that writes TensorBoard events."""
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(path / "tensorboard"))
    steps = 0

    def tell(kind: str, fields: dict[str, Any]) -> None:
        nonlocal steps
        if kind == "epoch":
            steps += 1
            for name in ("loss", "images_per_second"):
                writer.add_scalar(f"train/{name}", fields[name], steps)
        elif kind == "phase":
            for name in ("accuracy", "seconds"):
                writer.add_scalar(f"phase/{name}", fields[name], fields["phase"])
            writer.flush()

    return tell
