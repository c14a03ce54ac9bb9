"""Refuse settings of a run that cannot be used, before any training."""

import math
from typing import Any

from mrdc._utils.errors import UsageError
from mrdc._utils.typed import check_words
from mrdc.distributed.group import world
from mrdc.memory.budget import parse_budget
from mrdc.nn.embedder import pick_device
from mrdc.training.exemplars import fixed_quality
from mrdc.training.settings import LearnSettings, MemorySettings

MOST_LR = 1e38  # float32 ends a little above


def check_learning(settings: LearnSettings) -> None:
    """Check how a stream of classes is learned.

    Raises:
        UsageError: a value is not allowed; it is called by its flag.
    """
    train = settings.train
    check_words(settings)
    check_common(train, settings.memory, settings.seed, settings.threads)
    check_numbers(
        ("--train.epochs", train.epochs, 1),
        ("--train.batch-size", train.batch_size, 2),
        ("--train.brightness", train.brightness, 0),
        ("--size", settings.size, 16),
    )
    if not (all(0 < part <= 1 for part in train.milestones) and 0 < train.gamma <= 1):
        raise UsageError(
            "--train.milestones must be fractions of the epochs, above 0 and up to 1, and "
            f"--train.gamma likewise; got {' '.join(map(str, train.milestones))} and {train.gamma}"
        )
    if train.brightness > 1:
        raise UsageError(f"--train.brightness must be at most 1, got {train.brightness}")
    device = pick_device(settings.device)
    if settings.resident == "gpu" and device.type != "cuda":
        raise UsageError("--resident gpu needs a CUDA device; use auto, ram or stream")
    if parse_budget(settings.memory.budget, original_bytes=1.0).unit == "phase":
        raise UsageError(
            f"--memory.budget {settings.memory.budget}: counts phases of scenes, but this run "
            "learns classes; write 20/class, '2000 originals' or bytes"
        )


def check_common(train: Any, memory: MemorySettings, seed: int, threads: int | None) -> None:
    """Check what runs on classes and on scenes have in common; `train` are those of either."""
    check_words(train)
    check_words(memory)
    check_numbers(
        ("--train.batch-size", train.batch_size, 1),
        ("--train.momentum", train.momentum, 0),
        ("--train.weight-decay", train.weight_decay, 0),
        ("--train.match", train.match, 0),
        ("--seed", seed, 0),
        ("--threads", threads, 1),
    )
    if train.momentum >= 1:
        raise UsageError(f"--train.momentum must be below 1, got {train.momentum}")
    if train.match > 1:
        raise UsageError(f"--train.match must be at most 1, got {train.match}")
    if not 0 < train.lr <= MOST_LR:
        raise UsageError(f"--train.lr must be above 0 and at most {MOST_LR:g}, got {train.lr}")
    parse_budget(memory.budget, original_bytes=1.0)
    fixed_quality(memory)
    check_ranks("--train.batch-size", train.batch_size)


def check_numbers(*least: tuple[str, float | None, float]) -> None:
    """Refuse values below their bounds, and infinite ones."""
    for flag, value, bound in least:
        if value is not None and not bound <= value < math.inf:
            finite = " and finite" if value == math.inf else ""
            raise UsageError(f"{flag} must be {bound:g} or more{finite}, got {value}")


def check_ranks(flag: str, images: int) -> None:
    """Refuse a batch with fewer images than processes."""
    if images < (ranks := world().size):
        raise UsageError(
            f"{flag} {images}: too few for {ranks} processes, which take at least one image each"
        )
