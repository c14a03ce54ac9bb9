"""Detections, AP, the quality of pseudo labels, and albums."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from mrdc.data.photo import Photo
from mrdc.data.scenes import Scenes
from mrdc.detection.album import Album
from mrdc.detection.evaluate import (
    Found,
    average_precision,
    detect,
    label_quality,
    matched,
    overlap,
)
from tests.scenes import CPU, SIDE, rows, scenes, tiny

pytestmark = pytest.mark.usefixtures("seeded")


def perfect(found: Scenes) -> list[Found]:
    return [Found(boxes, np.ones(len(boxes), np.float32)) for boxes in found.boxes]


def test_perfect_detections_have_full_ap() -> None:
    """Without detections, AP is 0."""
    truth = scenes(range(6))
    scores = average_precision(perfect(truth), truth)
    assert (scores["ap"], scores["ap50"], scores["ap75"]) == pytest.approx((100, 100, 100))
    assert scores["by_class"] == {"dark": pytest.approx(100), "bright": pytest.approx(100)}
    one = truth.pick([0])  # the other class is absent: left out of the mean
    scores = average_precision(perfect(one), one)
    assert scores["ap"] == pytest.approx(100)
    assert scores["by_class"] == {"dark": pytest.approx(100), "bright": None}
    none = [Found(np.zeros((0, 5), np.float32), np.zeros(0, np.float32))] * 6
    assert average_precision(none, truth)["ap"] == 0


def test_ap_by_hand() -> None:
    """Half of a class found first, then a miss: precision 1 up to recall 1/2, so 51 of 101."""
    truth = scenes(range(0, 4, 2))
    found = perfect(truth)
    wrong = np.array([[0, 0, 5, 5, 0]], np.float32)
    found[1] = Found(wrong, np.array([0.5], np.float32))
    assert average_precision(found, truth)["by_class"]["dark"] == pytest.approx(100 * 51 / 101)


def test_crowds_count_neither_for_nor_against() -> None:
    """A detection inside one is ignored."""
    truth = scenes(range(1))
    crowd = np.array([[0, 0, 10, 10, 0]], np.float32)
    with_crowd = replace(truth, crowds=(crowd,))
    found = [Found(np.concatenate([truth.boxes[0], crowd]), np.array([0.5, 0.9], np.float32))]
    assert average_precision(found, with_crowd)["ap"] == pytest.approx(100)
    assert average_precision(found, truth)["ap"] < 60


def test_overlap_by_hand() -> None:
    """Two 2 x 2 squares that share a 1 x 2 strip: 2 of 6."""
    a, b = rows([0, 0, 2, 2]), rows([1, 0, 3, 2])
    assert overlap(a, b) == pytest.approx(1 / 3)
    assert overlap(a, rows([5, 5, 6, 6])) == 0


def test_a_true_box_is_matched_once() -> None:
    """One of two labels on a box is right; no labels: no precision; no boxes: no recall."""
    truth = rows([[0, 0, 10, 10, 1]])
    assert matched(rows([[0, 0, 10, 10, 1], [0, 0, 10, 9, 1]]), truth) == 1
    assert matched(rows([[0, 0, 10, 10, 0]]), truth) == 0
    quality = label_quality([rows([[0, 0, 10, 10, 1], [0, 0, 3, 3, 1]])], [truth])
    assert quality == {"labels_per_image": 2, "precision": 50, "recall": 100}
    none = truth[:0]
    assert label_quality([none], [truth]) == {"labels_per_image": 0, "precision": None, "recall": 0}
    assert label_quality([truth], [none]) == {"labels_per_image": 1, "precision": 0, "recall": None}


def test_detecting_keeps_the_mode_and_the_order() -> None:
    """Boxes are in the image's own pixels, labels from 0."""
    album = Album(scenes(range(5)).photos, CPU, 2)
    model = tiny().train()
    found = list(detect(model, album, 2))
    assert len(found) == 5 and model.training
    boxes = np.concatenate([one.boxes for one in found])
    assert boxes[:, :4].min() >= 0 and boxes[:, :4].max() <= SIDE
    assert set(boxes[:, 4]) <= {0.0, 1.0}


def test_an_album_decodes_once_if_there_is_room() -> None:
    """Without room it decodes again, to the same images."""
    loads: list[str] = []

    def photo(one: Photo) -> Photo:
        def load() -> Any:
            loads.append(one.id)
            return one.load()

        return Photo(one.id, load)

    photos = [photo(one) for one in scenes(range(3)).photos]
    roomy, full = Album(photos, CPU, 1), Album(photos, CPU, 1)
    full._room = 0
    first = [list(roomy.batches(2)) for _ in range(2)]
    assert len(loads) == 3
    second = [list(full.batches(2)) for _ in range(2)]
    assert len(loads) == 9
    for a, b in zip(first[1], second[1], strict=True):
        assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))
