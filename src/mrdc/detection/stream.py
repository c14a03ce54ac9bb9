"""Scenes that arrive in phases, some with boxes and some without (Sec. 5.2).

Phases are drawn at random and bring no new classes: only data is lost between them.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mrdc._utils.errors import DataError
from mrdc.data.images import ImageSet
from mrdc.data.photo import Photo
from mrdc.data.scenes import Boxes, Scenes, SceneSplits
from mrdc.data.stream import Stream


@dataclass(frozen=True)
class SceneStream:
    """Scenes in phases."""

    train: Scenes  # all scenes that may be labelled
    test: Scenes  # scenes to evaluate on
    labelled: tuple[tuple[int, ...], ...]  # indices in `train` of the labelled scenes of each phase
    unlabelled: tuple[tuple[Photo, ...], ...]  # photos of each phase, without boxes
    truth: tuple[tuple[Boxes, ...], ...] | None  # their boxes if known, to judge pseudo labels

    def fresh(self, phase: int) -> Scenes:
        """The labelled scenes of a phase."""
        return self.train.pick(self.labelled[phase])

    def seen(self, phase: int) -> Scenes:
        """The labelled scenes of all phases up to this one."""
        return self.train.pick([place for part in self.labelled[: phase + 1] for place in part])

    def as_classes(self) -> Stream:
        """The stream with phases as classes, between which a memory shares its bytes."""
        scenes = [self.fresh(phase) for phase in range(len(self.labelled))]
        names = tuple(f"phase {phase}" for phase in range(len(scenes)))
        photos = tuple(list(part.photos) for part in scenes)
        sizes = tuple(list(part.sizes) for part in scenes)
        empty = ImageSet(names, tuple([] for _ in names), tuple([] for _ in names))
        boxed = self.seen(len(self.labelled) - 1)
        return Stream(ImageSet(names, photos, sizes, scenes=boxed), empty, (1,) * len(names))

    def fingerprint(self) -> str:
        """SHA-256 of names, bytes and boxes, phase by phase."""
        digest = hashlib.sha256(json.dumps(self.train.classes).encode())
        for part in (*(self.fresh(phase) for phase in range(len(self.labelled))), self.test):
            digest.update(json.dumps([[p.id for p in part.photos], part.sizes]).encode())
            for boxes in part.boxes:
                digest.update(boxes.tobytes())
            for place, boxes in enumerate(part.crowds):
                if len(boxes):
                    digest.update(f"crowds of {place}".encode() + boxes.tobytes())
        digest.update(json.dumps([[p.id for p in photos] for photos in self.unlabelled]).encode())
        return digest.hexdigest()


def make_scenes(
    splits: SceneSplits, phases: int, labelled: int, unlabelled: int, seed: int
) -> SceneStream:
    """Draw phases without replacement, as a function of the seed and the names alone.

    Unlabelled images come from their own pool if there is one, else from the training scenes
    that no phase labels.

    Raises:
        DataError: not enough images.
    """
    train, pool = splits.train, splits.unlabelled
    order = _drawn([photo.id for photo in train.photos], seed, "labelled")
    known = _cut(order, phases, labelled, "labelled")
    if pool is None:
        rest = order[phases * labelled :]
        places = _cut(rest, phases, unlabelled, "unlabelled (no pool of their own)")
        truth = tuple(tuple(train.boxes[i] for i in part) for part in places)
    else:
        order = _drawn([photo.id for photo in pool], seed, "unlabelled")
        places, truth = _cut(order, phases, unlabelled, "unlabelled"), None
    photos = train.photos if pool is None else pool
    unknown = tuple(tuple(photos[i] for i in part) for part in places)
    return SceneStream(train, splits.test, known, unknown, truth)


def _drawn(names: Sequence[str], seed: int, what: str) -> list[int]:
    """Indices in a random order that does not depend on the order of the names."""
    digest = hashlib.sha256(f"{seed} {what}".encode()).digest()
    rng = np.random.default_rng(int.from_bytes(digest[:8], "little"))
    by_name = sorted(range(len(names)), key=lambda place: names[place])
    return [by_name[place] for place in rng.permutation(len(names))]


def _cut(order: list[int], phases: int, count: int, what: str) -> tuple[tuple[int, ...], ...]:
    """The first `count` indices, the next ones and so on, phase by phase."""
    if phases * count > len(order):
        raise DataError(
            f"{phases} phases need {phases * count:,} {what} images, but there are "
            f"{len(order):,}: lower --phases or --{what.split()[0]}"
        )
    return tuple(tuple(order[p * count : (p + 1) * count]) for p in range(phases))
