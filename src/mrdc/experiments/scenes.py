"""Runs on scenes: detectors."""

from dataclasses import replace
from pathlib import Path

from mrdc.data.coco import open_scenes
from mrdc.data.scenes import SceneSplits, check_sides, check_strips, shown_sides
from mrdc.data.shapes import shapes_splits
from mrdc.detection.detectors import build_detector
from mrdc.detection.learner import make_scene_exemplars, run_scenes
from mrdc.detection.settings import DetectSettings
from mrdc.detection.stream import make_scenes
from mrdc.experiments.check import Checked, Listener, check_photos
from mrdc.experiments.settings import built_in
from mrdc.training.results import RunResult
from mrdc.training.resume import Keeper


class SceneExperiment:
    """A run on scenes, without the unreadable images that `kept`, from its folder, lists."""

    def __init__(self, settings: DetectSettings, kept: Checked | None = None):
        self.settings = settings
        made = built_in(settings.data, "shapes")
        self.splits = shapes_splits() if made else open_scenes(Path(settings.data))
        if kept is not None:
            self.splits = without(self.splits, kept)
        self.stream = make_scenes(
            self.splits, settings.phases, settings.labelled, settings.unlabelled, settings.seed
        )

    def fingerprint(self) -> str:
        """Hash of the images and their phases."""
        return self.stream.fingerprint()[:16]

    def check(self, listener: Listener) -> Checked:
        """Read every image, and refuse a budget that is too small."""
        settings, stream = self.settings, self.stream
        known = stream.seen(settings.phases - 1).photos
        drawn = [photo for photos in stream.unlabelled for photo in photos]
        if settings.skip_bad:  # any of them may be drawn once others are left out
            every = [*self.splits.train.photos, *(self.splits.unlabelled or ())]
            found = check_photos(every, stream.test.photos, settings.threads, listener, skip=True)
            if found.skipped:
                drawn_now = SceneExperiment(settings, found).check(listener)
                return found._replace(in_training=drawn_now.in_training)
        exemplars = make_scene_exemplars(settings, stream)
        if exemplars is not None:
            exemplars.check()
        for scenes in (stream.train, stream.test):
            check_sides(scenes, settings.threads)
            check_strips(scenes.photos, scenes.sides, settings.long)
        if stream.truth is None:  # a separate pool; otherwise they are among the above
            check_strips(drawn, shown_sides(drawn, settings.threads), settings.long)
        found = check_photos(
            [*known, *drawn], stream.test.photos, settings.threads, listener, settings.skip_bad
        )
        if settings.weights is not None:
            sides = {"short": settings.short, "long": settings.long}
            build_detector(settings.detector, 1, **sides, weights=settings.weights)
        return found

    def learn(self, keeper: Keeper) -> RunResult:
        result = run_scenes(self.settings, self.stream, keeper)
        return replace(result, synthetic=built_in(self.settings.data, "shapes"))


def without(splits: SceneSplits, kept: Checked) -> SceneSplits:
    """Splits without the images that are left out."""
    train, test, pool = splits.train, splits.test, splits.unlabelled
    return replace(
        splits,
        train=train.pick(i for i, p in enumerate(train.photos) if p.id not in kept.train_ids),
        test=test.pick(i for i, p in enumerate(test.photos) if p.id not in kept.test_ids),
        unlabelled=None if pool is None else tuple(p for p in pool if p.id not in kept.train_ids),
    )
