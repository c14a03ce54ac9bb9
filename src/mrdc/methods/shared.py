"""Steps that several methods share."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mrdc.data.examples import Examples
from mrdc.methods.lesson import Lesson
from mrdc.nn.heads import SplitCosine


def grow_imprinted(lesson: Lesson) -> None:
    """Grow a cosine head by the mean feature directions, scaled to the mean length of old rows."""
    head = lesson.model.head
    assert isinstance(head, SplitCosine)
    if lesson.phase == 0:
        head.grow(lesson.new)
        return
    labels = torch.tensor(lesson.fresh.labels)
    rows = imprint(lesson.features(lesson.fresh), labels, lesson.old, lesson.new)
    head.grow(lesson.new, rows * head.mean_norm().cpu())


def imprint(features: Tensor, labels: Tensor, first: int, count: int) -> Tensor:
    """Unit rows (count, d): for each class the direction of its mean unit feature."""
    rows = F.normalize(features, dim=1)
    means = torch.stack([rows[labels == first + c].mean(0) for c in range(count)])
    return F.normalize(means, dim=1)


def balanced(examples: Examples) -> Examples:
    """Equally many images per class: the mean number, in order.

    Classes share bytes, not numbers of images: a class with fewer images repeats some of
    them, a class with more drops its last ones.
    """
    places: dict[int, list[int]] = {}
    for place, label in enumerate(examples.labels):
        places.setdefault(label, []).append(place)
    count = round(len(examples) / len(places))
    chosen = [np.resize(of_class, count) for of_class in places.values()]
    return examples.pick(np.sort(np.concatenate(chosen)).tolist())
