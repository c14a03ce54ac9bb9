"""Runs on scenes: detectors."""

from dataclasses import replace
from pathlib import Path

from mrdc.data.coco import open_scenes
from mrdc.data.photo import Photo
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
        """Read every image once, and refuse what cannot be used."""
        test, threads = self.stream.test.photos, self.settings.threads
        if not self.settings.skip_bad:
            self._check_rest()
            return check_photos(self._trained_on(), test, threads, listener)
        # Any image may be drawn once others are left out
        every = [*self.splits.train.photos, *(self.splits.unlabelled or ())]
        found = check_photos(every, test, threads, listener, skip=True)
        drawn = SceneExperiment(self.settings, found) if found.skipped else self
        drawn._check_rest()
        return found.training_on(drawn._trained_on())

    def _trained_on(self) -> list[Photo]:
        """Images of all phases, with and without labels."""
        known = self.stream.seen(self.settings.phases - 1).photos
        return [*known, *(photo for photos in self.stream.unlabelled for photo in photos)]

    def _check_rest(self) -> None:
        """Refuse a budget that is too small, wrong sizes, and weights that do not fit."""
        settings, stream = self.settings, self.stream
        exemplars = make_scene_exemplars(settings, stream)
        if exemplars is not None:
            exemplars.check()
        for scenes in (stream.train, stream.test):
            check_sides(scenes, settings.threads)
            check_strips(scenes.photos, scenes.sides, settings.long)
        if stream.truth is None:  # a separate pool; otherwise they are among the above
            drawn = [photo for photos in stream.unlabelled for photo in photos]
            check_strips(drawn, shown_sides(drawn, settings.threads), settings.long)
        if settings.weights is not None:
            sides = {"short": settings.short, "long": settings.long}
            build_detector(settings.detector, 1, **sides, weights=settings.weights)

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
