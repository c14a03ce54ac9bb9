"""Test images, and accuracy over all classes seen."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from mrdc.data.examples import Examples
from mrdc.data.views import centre_views
from mrdc.distributed.group import world
from mrdc.nn.embedder import exact
from mrdc.nn.net import Net, Output
from mrdc.training.feed import SHARE, Resident, free_memory

BATCH = 128


class Views:
    """Evaluation views of this process's part of examples, made once and kept if there is room."""

    def __init__(self, size: int, device: torch.device, resident: Resident, threads: int | None):
        self.size, self.device, self.resident, self.threads = size, device, resident, threads
        self._parts: list[list[tuple[Tensor, Tensor]] | Examples] = []

    def add(self, examples: Examples) -> None:
        examples = examples.pick(world().part(range(len(examples))))
        room = SHARE * free_memory(self.device)
        large = self.resident == "stream" or 3 * self.size**2 * len(examples) > room
        self._parts.append(examples if large else list(self._make(examples)))

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Uint8 batches and labels, on the device."""
        for part in self._parts:
            yield from self._make(part) if isinstance(part, Examples) else part

    def _make(self, examples: Examples) -> Iterator[tuple[Tensor, Tensor]]:
        labels = torch.split(torch.tensor(examples.labels, device=self.device), BATCH)
        views = centre_views(examples.photos, self.size, BATCH, self.threads)
        yield from zip((images.to(self.device) for images in views), labels, strict=False)


def evaluate(
    model: Net,
    predict: Callable[[Output], Tensor],
    views: Iterable[tuple[Tensor, Tensor]],
    tasks: Sequence[range],
) -> dict[str, Any]:
    """Accuracy in percent: over all classes, by task, and of the plain head.

    `views` has images and labels of this process, on the device of the network; counts are summed
    over all processes. `tasks` are the classes of each task.
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
        **sides(pairs.view(len(tasks), -1)),
    }


def sides(confusion: Tensor) -> dict[str, float]:
    """Percent of the test images of old classes assigned to an old class; likewise for new.

    Empty after the first phase, which has no old classes. Low numbers show a network that
    mistakes one side for the other, whatever it knows about the classes within a side.
    """
    old, new = confusion[:-1], confusion[-1]
    if not len(old):
        return {}
    return {
        "old_as_old": 100 * int(old[:, :-1].sum()) / int(old.sum()),
        "new_as_new": 100 * int(new[-1]) / int(new.sum()),
    }
