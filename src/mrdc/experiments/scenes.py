"""`run` for detectors: phases of scenes, from settings to result."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mrdc._utils.errors import UsageError
from mrdc.data.coco import check_sides, open_scenes
from mrdc.data.scenes import check_strips, shown_sides
from mrdc.data.shapes import shapes_splits
from mrdc.detection.detectors import build_detector
from mrdc.detection.evaluate import NEEDS
from mrdc.detection.learner import make_learner, run_scenes
from mrdc.detection.settings import DetectSettings
from mrdc.detection.stream import SceneStream, make_scenes
from mrdc.experiments.common import (
    built_in,
    check_common,
    check_numbers,
    decisive_settings,
    folder_name,
    in_folder,
)
from mrdc.experiments.folder import Listener, RunFolder
from mrdc.experiments.summary import totals
from mrdc.planning.scan import check_photos
from mrdc.training.exemplars import Exemplars
from mrdc.training.prepare import pick_device


def detect(
    settings: DetectSettings,
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
    check_detect(settings)
    stream = open_stream(settings)
    path = settings.out or Path("runs") / folder_name(settings, name)
    decisive = {**decisive_settings(settings), "stream": stream.fingerprint()[:16]}

    def begin() -> list[str]:
        if settings.replay == "memory":
            Exemplars(settings, stream.as_classes(), lambda ids, ranking, label: ranking).check()
        for scenes in (stream.train, stream.test):
            check_sides(scenes, settings.threads)
            check_strips(scenes.photos, scenes.sides, settings.long)
        drawn = [photo for photos in stream.unlabelled for photo in photos]
        if stream.truth is None:  # a pool of its own; else they are among those above
            check_strips(drawn, shown_sides(drawn, settings.threads), settings.long)
        known = stream.seen(settings.phases - 1).photos
        sides = ([*known, *drawn], stream.test.photos)
        in_training = check_photos(*sides, settings.threads, listener)
        if settings.weights is not None:
            build_detector(
                settings.detector, 1, short=settings.short, long=settings.long,
                weights=settings.weights,
            )  # fmt: skip
        return in_training

    def work(keeper: RunFolder) -> dict[str, Any]:
        phases = run_scenes(settings, stream, keeper)
        dropped = stream.train.dropped + stream.test.dropped
        more = {"paper": paper, "synthetic": built_in(settings.data, "shapes"), "dropped": dropped}
        return {**summary(settings, phases), **more}

    return in_folder(path, name, settings, decisive, listener, begin, work)


def open_stream(settings: DetectSettings) -> SceneStream:
    """The scenes of a run, in phases.

    Raises:
        MrdcError: data that cannot be used, or too little for these phases.
    """
    made = built_in(settings.data, "shapes")
    splits = shapes_splits() if made else open_scenes(Path(settings.data))
    return make_scenes(
        splits, settings.phases, settings.labelled, settings.unlabelled, settings.seed
    )


def summary(settings: DetectSettings, phases: list[dict[str, Any]]) -> dict[str, Any]:
    """What a run comes to; forgetting is that of AP."""
    scores = [phase["ap"] for phase in phases]
    return {
        **totals(settings, phases),
        "average_forgetting": scores[-1] - max(scores),
        **{key: [phase[key] for phase in phases] for key in ("ap", "ap50", "ap75")},
        "by_class": phases[-1]["by_class"],
        "reports": [phase["report"] for phase in phases],
        "detection": True,
        "detector": settings.detector,
        "replay": settings.replay,
        "labelled": settings.labelled,
        "unlabelled": settings.unlabelled,
        "steps": settings.train.steps,
    }


def check_detect(settings: DetectSettings) -> None:
    """Refuse settings that cannot be used, before any image is read.

    Raises:
        UsageError: with the flag and what is allowed.
    """
    train = settings.train
    check_numbers(
        (
            ("--phases", settings.phases, 1),
            ("--labelled", settings.labelled, 1),
            ("--unlabelled", settings.unlabelled, 0),
            ("--short", settings.short, 32),
            ("--long", settings.long, settings.short),
            ("--train.steps", train.steps, 1),
            ("--train.batch-size", train.batch_size, 1),
            ("--train.unlabelled-batch", train.unlabelled_batch, 1),
            ("--train.momentum", train.momentum, 0),
            ("--train.weight-decay", train.weight_decay, 0),
            ("--train.warmup", train.warmup, 0),
            ("--seed", settings.seed, 0),
            ("--threads", settings.threads, 1),
        )
    )
    if train.momentum >= 1 or train.warmup > 1:
        raise UsageError(
            f"--train.momentum must be below 1 and --train.warmup at most 1, got {train.momentum} "
            f"and {train.warmup}"
        )
    check_common(settings)
    pick_device(settings.device)
    if make_learner(settings).wants_unlabelled and not settings.unlabelled:
        raise UsageError(f"{settings.method} needs --unlabelled of 1 or more, got 0")
    if settings.weights is not None and not settings.weights.is_file():
        raise UsageError(f"--weights {settings.weights}: no such file")
    if find_spec("pycocotools") is None:
        raise UsageError(NEEDS)
