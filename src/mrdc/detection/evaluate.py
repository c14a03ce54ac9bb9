"""Detections, and AP by COCO's own protocol."""

import contextlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torchvision.models.detection import FasterRCNN

from mrdc._utils.errors import UsageError
from mrdc.data.scenes import Boxes, Scenes
from mrdc.detection.album import Album
from mrdc.distributed.group import world

NEEDS = "detection needs pycocotools: pip install 'mrdc[detection]'"


@dataclass(frozen=True)
class Found:
    """Detections in one image: boxes with labels (n, 5), and scores (n,), best first."""

    boxes: Boxes
    scores: NDArray[np.float32]

    def above(self, threshold: float) -> Boxes:
        """Boxes with a higher score."""
        return self.boxes[self.scores > threshold]


def detect(model: FasterRCNN, album: Album, batch_size: int) -> list[Found]:
    """Detections in every image, in its own pixels; the mode of the model is restored."""
    before, found = model.training, list[Found]()
    model.eval()
    try:
        for images in album.batches(batch_size):
            with torch.no_grad():
                found += map(as_found, model(images))
    finally:
        model.train(before)
    return world().join(found)


def as_found(answer: dict[str, Tensor]) -> Found:
    """Torchvision's output, in which label 0 is background, as ours."""
    boxes, labels = answer["boxes"].float(), answer["labels"].float() - 1
    rows = torch.cat([boxes, labels[:, None]], 1).cpu().numpy()
    return Found(rows, answer["scores"].float().cpu().numpy())


def average_precision(found: Sequence[Found], scenes: Scenes) -> dict[str, Any]:
    """AP, AP50 and AP75 in percent, and AP by class (None for a class without boxes)."""
    try:
        from pycocotools.coco import COCO
        from pycocotools.cocoeval import COCOeval
    except ImportError:
        raise UsageError(NEEDS) from None
    detections = [
        _entry(place, box) | {"score": float(score)}
        for place, one in enumerate(found)
        for box, score in zip(one.boxes, one.scores, strict=True)
    ]
    present = {int(box[4]) for boxes in scenes.boxes for box in boxes}
    if not detections or not present:
        by_class = {name: 0.0 if k in present else None for k, name in enumerate(scenes.classes)}
        return {"ap": 0.0, "ap50": 0.0, "ap75": 0.0, "by_class": by_class}
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO()
        truth.dataset = _dataset(scenes)
        truth.createIndex()
        judge = COCOeval(truth, truth.loadRes(detections), "bbox")
        judge.evaluate()
        judge.accumulate()
        judge.summarize()
    precision = judge.eval["precision"][:, :, :, 0, -1]  # thresholds, recalls, classes
    ap, ap50, ap75 = (100 * float(value) for value in judge.stats[:3])
    by_class = {
        name: 100 * float(one[one > -1].mean()) if (one > -1).any() else None
        for name, one in zip(scenes.classes, np.moveaxis(precision, 2, 0), strict=True)
    }
    return {"ap": ap, "ap50": ap50, "ap75": ap75, "by_class": by_class}


def _dataset(scenes: Scenes) -> dict[str, Any]:
    """Scenes in the form of pycocotools."""
    annotations: list[dict[str, Any]] = []
    for place, (boxes, crowds) in enumerate(zip(scenes.boxes, scenes.crowds, strict=True)):
        for crowd, part in enumerate((boxes, crowds)):
            for box in part:
                entry = _entry(place, box)
                area = entry["bbox"][2] * entry["bbox"][3]
                entry |= {"id": len(annotations) + 1, "iscrowd": crowd, "area": area}
                annotations.append(entry)
    sides = enumerate(scenes.sides)
    return {
        "info": {},
        "images": [{"id": place, "width": w, "height": h} for place, (w, h) in sides],
        "annotations": annotations,
        "categories": [{"id": label, "name": name} for label, name in enumerate(scenes.classes)],
    }


def _entry(place: int, box: NDArray[np.float32]) -> dict[str, Any]:
    left, top, right, bottom, label = map(float, box)
    corner = [left, top, right - left, bottom - top]
    return {"image_id": place, "category_id": int(label), "bbox": corner}


def label_quality(found: Sequence[Boxes], truth: Sequence[Boxes]) -> dict[str, float | None]:
    """Pseudo labels per image, and their precision and recall in percent (None if undefined).

    A label is right if it overlaps a box of its class with an IoU of at least 0.5, each box once.
    """
    right = sum(matched(a, b) for a, b in zip(found, truth, strict=True))
    labels, boxes = sum(map(len, found)), sum(map(len, truth))
    return {
        "labels_per_image": labels / max(len(found), 1),
        "precision": 100 * right / labels if labels else None,
        "recall": 100 * right / boxes if boxes else None,
    }


def matched(found: Boxes, truth: Boxes) -> int:
    """Number of boxes that match a true box of their own, taken in order."""
    free = list(range(len(truth)))
    count = 0
    for box in found:
        same = [i for i in free if truth[i, 4] == box[4]]
        overlaps = [overlap(box, truth[i]) for i in same]
        if overlaps and max(overlaps) >= 0.5:
            free.remove(same[int(np.argmax(overlaps))])
            count += 1
    return count


def overlap(a: NDArray[np.float32], b: NDArray[np.float32]) -> float:
    """Intersection over union of two boxes."""
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    common = float(max(width, 0) * max(height, 0))
    areas = sum(float((box[2] - box[0]) * (box[3] - box[1])) for box in (a, b))
    return common / (areas - common) if areas > common else 0.0
