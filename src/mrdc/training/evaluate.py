"""Accuracy on the test images of all classes seen."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from mrdc.distributed.group import world
from mrdc.nn.embed import exact
from mrdc.nn.net import Net, Output


def evaluate(
    model: Net,
    predict: Callable[[Output], Tensor],
    views: Iterable[tuple[Tensor, Tensor]],
    tasks: Sequence[range],
) -> dict[str, Any]:
    """Accuracy in percent: over all classes, by task, and of the plain head.

    Views are images and labels on the device of the network, of all processes together; tasks
    are the classes of each.
    """
    device, classes = model.mean.device, model.classes
    right = {name: torch.zeros(classes, device=device) for name in ("method", "head")}
    count = torch.zeros(classes, device=device)
    task = torch.repeat_interleave(torch.tensor(list(map(len, tasks)))).to(device)
    pairs = torch.zeros(len(tasks) ** 2, device=device)
    with torch.inference_mode(), exact():
        for images, labels in views:
            out = model(images)
            count += torch.bincount(labels, minlength=classes)
            for name, scores in (("method", predict(out)), ("head", out.scores)):
                answers = scores.argmax(1)
                right[name] += torch.bincount(labels[answers == labels], minlength=classes)
                if name == "method":
                    both = task[labels] * len(tasks) + task[answers]
                    pairs += torch.bincount(both, minlength=len(pairs))

    count, pairs = world().sum(count), world().sum(pairs)
    right = {name: world().sum(hits) for name, hits in right.items()}

    def percent(hits: Tensor, labels: range) -> float:
        part = slice(labels.start, labels.stop)
        return 100 * int(hits[part].sum()) / int(count[part].sum())

    return {
        "accuracy": percent(right["method"], range(classes)),
        "head_accuracy": percent(right["head"], range(classes)),
        "tasks": [percent(right["method"], labels) for labels in tasks],
        "confusion": pairs.long().view(len(tasks), -1).tolist(),
    }
