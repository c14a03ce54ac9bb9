"""`run`: one experiment from settings to result, in a folder that can be gone on with."""

import math
import os
import platform
import re
import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from mrdc import __version__
from mrdc.budget import parse_budget
from mrdc.data import Splits, Stream, make_stream, open_splits
from mrdc.data.textures import SIDE
from mrdc.errors import ImageError, TrainingError, UsageError
from mrdc.exemplars import Exemplars, fixed_quality
from mrdc.experiment.folder import (
    RESULTS,
    Listener,
    RunFolder,
    commits,
    last_line,
    read_config,
    refuse_changes,
)
from mrdc.experiment.presets import published
from mrdc.experiment.totals import totals
from mrdc.learner import run_phases
from mrdc.methods.base import names_first_phase
from mrdc.metrics import average_forgetting, average_incremental_accuracy, forgetting
from mrdc.prepare import charged_bytes, make_method, pick_device
from mrdc.settings import AnySettings, RunSettings
from mrdc.survey import check_readable

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


def run(
    settings: RunSettings,
    *,
    name: str | None = None,
    paper: float | None = None,
    listener: Listener = lambda kind, fields: None,
) -> dict[str, Any]:
    """Run an experiment, or go on with it; its result, also the last line of results.jsonl.

    Raises:
        MrdcError: settings, data or a folder that cannot be used.
    """
    name = name or settings.method
    check(settings)
    path = settings.out or Path("runs") / folder_name(settings, name)
    splits, stream = open_stream(settings)
    settings = replace(settings, size=settings.size or usual_size(settings.data))
    decisive = {**decisive_settings(settings), "stream": stream.fingerprint()[:16]}
    method = make_method(settings)
    settings = replace(settings, cache=settings.cache and names_first_phase(method))

    def begin() -> None:
        if method.replays:
            charge = charged_bytes(settings, method)
            with suppress(ImageError):  # told of below, with all others
                Exemplars(settings, stream, method.arrange, charge).check()
        sides = {"training": stream.train, "test": stream.test}  # may have files of one name
        photos = (
            photo._replace(id=f"{side} image {photo.id}")
            for side, images in sides.items()
            for photo in images.all_photos
        )
        check_readable(list(photos), settings.threads)

    def work(keeper: RunFolder) -> dict[str, Any]:
        phases = run_phases(settings, stream, keeper)
        return {
            **summary(settings, phases),
            "sizes": list(stream.sizes),
            "paper": paper or published(name, settings, stream.train.classes),
            "held_out": splits.held_out,
            "ignored": sorted({*splits.train.ignored, *splits.test.ignored}),
            "synthetic": built_in(settings.data),
        }

    return in_folder(path, name, settings, decisive, listener, begin, work)


def open_stream(settings: RunSettings) -> tuple[Splits, Stream]:
    """The images of a run, and the phases that they arrive in.

    Raises:
        MrdcError: data that cannot be used, or not with these phases.
    """
    splits = open_splits(settings.data, holdout=settings.holdout, seed=0)
    stream = make_stream(
        splits, settings.phases, settings.first, settings.order, settings.superclasses
    )
    return splits, stream


def in_folder(
    path: Path,
    name: str,
    settings: AnySettings,
    decisive: dict[str, Any],
    listener: Listener,
    begin: Callable[[], None],
    work: Callable[[RunFolder], dict[str, Any]],
) -> dict[str, Any]:
    """Do a run's work in its folder, or go on with it; the result that is written there.

    Args:
        begin: what is checked before a folder is made.
        work: gives the result.
    """
    done, known = finished(path), read_config(path)
    if done is not None and known is not None:
        refuse_changes(path, known, decisive)
        return done
    if known is None:
        begin()
    about = {"name": name, **machine()}
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


def summary(settings: RunSettings, phases: list[dict[str, Any]]) -> dict[str, Any]:
    """What a run comes to."""
    head = [phase["head_accuracy"] for phase in phases]
    tasks = [phase["tasks"] for phase in phases]
    return {
        **totals(settings, phases),
        "average_forgetting": average_forgetting(tasks),
        "initial_forgetting": forgetting(tasks, 0),
        "head_accuracy": head,
        "head_average_incremental_accuracy": average_incremental_accuracy(head),
        "tasks": tasks,
        "first_phase_seconds": phases[0].get("first_phase_seconds"),
        "strict_budget": settings.memory.strict_budget,
        "order": settings.order,
    }


def check(settings: RunSettings) -> None:
    """Refuse before any work what cannot be run.

    Raises:
        UsageError: with the flag and what it takes.
    """
    train = settings.train
    least: tuple[tuple[str, float | None, float], ...] = (
        ("--phases", settings.phases, 1),
        ("--train.epochs", train.epochs, 1),
        ("--train.batch-size", train.batch_size, 2),
        ("--train.momentum", train.momentum, 0),
        ("--train.weight-decay", train.weight_decay, 0),
        ("--train.brightness", train.brightness, 0),
        ("--seed", settings.seed, 0),
        ("--size", settings.size, 16),
        ("--threads", settings.threads, 1),
    )
    check_numbers(least)
    check_common(settings)
    if not (all(0 < part <= 1 for part in train.milestones) and 0 < train.gamma <= 1):
        raise UsageError(
            f"--train.milestones must be parts of the epochs, above 0 up to 1, and --train.gamma "
            f"likewise; got {' '.join(map(str, train.milestones))} and {train.gamma}"
        )
    if train.momentum >= 1 or train.brightness > 1:
        raise UsageError(
            f"--train.momentum must be below 1 and --train.brightness at most 1, got "
            f"{train.momentum} and {train.brightness}"
        )
    device = pick_device(settings.device).type
    if settings.resident == "gpu" and device != "cuda":
        raise UsageError("--resident gpu needs a CUDA device; use auto, ram or stream")
    if settings.precision == "bf16" and device != "cuda":
        raise UsageError("--precision bf16 needs a CUDA device; use auto or fp32")
    if parse_budget(settings.memory.budget, original_bytes=1.0).unit == "phase":
        raise UsageError(
            f"--memory.budget {settings.memory.budget}: counts phases of scenes, but classes come "
            "here; write 20/class, '2000 originals' or bytes"
        )
    make_method(settings)


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


def usual_size(data: str) -> int:
    """Side of the views: 224, or the data set's own."""
    if built_in(data):
        return SIDE
    return 32 if data.startswith("cifar100:") else 224


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


def both(first: Listener, second: Listener | None) -> Listener:
    """Tell both."""
    if second is None:
        return first

    def tell(kind: str, fields: dict[str, Any]) -> None:
        first(kind, fields)
        second(kind, fields)

    return tell


def tensorboard(path: Path) -> Callable[[str, dict[str, Any]], None]:
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
