"""`run`: one experiment from settings to result, in a folder that can be gone on with."""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from mrdc._utils.errors import ImageError, UsageError
from mrdc.data import Splits, Stream, make_stream, open_splits
from mrdc.data.textures import SIDE
from mrdc.experiments.common import (
    built_in,
    check_common,
    check_numbers,
    decisive_settings,
    folder_name,
    in_folder,
)
from mrdc.experiments.folder import Listener, RunFolder
from mrdc.experiments.presets import published
from mrdc.experiments.summary import totals
from mrdc.memory.budget import parse_budget
from mrdc.methods.base import names_first_phase
from mrdc.planning.scan import check_photos
from mrdc.training.classes import run_phases
from mrdc.training.exemplars import Exemplars
from mrdc.training.metrics import average_forgetting, average_incremental_accuracy, forgetting
from mrdc.training.prepare import charged_bytes, make_method, pick_device
from mrdc.training.settings import RunSettings


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

    def begin() -> list[str]:
        if method.replays:
            charge = charged_bytes(settings, method)
            with suppress(ImageError):  # told of below, with all others
                Exemplars(settings, stream, method.arrange, charge).check()
        sides = (stream.train.all_photos, stream.test.all_photos)
        return check_photos(*sides, settings.threads, listener)

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


def usual_size(data: str) -> int:
    """Side of the views: 224, or the data set's own."""
    if built_in(data):
        return SIDE
    return 32 if data.startswith("cifar100:") else 224
