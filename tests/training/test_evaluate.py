"""Accuracy over all classes, by task, and of the plain head, by hand."""

import pytest
import torch
from torch import Tensor, nn

from mrdc.nn.net import Net, Output
from mrdc.training.evaluate import evaluate, sides


class Known(Net):
    """Scores of image n, whose first pixel is n, are row n of a table."""

    def __init__(self, table: Tensor):
        nn.Module.__init__(self)
        self.table = table
        self.mean = torch.zeros(3, 1, 1)

    @property
    def classes(self) -> int:
        return self.table.shape[1]

    def forward(self, images: Tensor) -> Output:
        scores = self.table[images[:, 0, 0, 0].long()]
        return Output((), scores, scores, 2 * scores)


def views(labels: list[int], size: int) -> list[tuple[Tensor, Tensor]]:
    """Images numbered from 0, in batches."""
    numbered = torch.arange(len(labels)).view(-1, 1, 1, 1).expand(-1, 3, 1, 1)
    parts = (torch.split(whole, size) for whole in (numbered, torch.tensor(labels)))
    return list(zip(*parts, strict=True))


LABELS = [0, 0, 1, 1, 2, 2, 2]
HEAD = Known(torch.eye(3)[[0, 2, 1, 1, 0, 2, 0]])  # its answers


@pytest.mark.parametrize("size", [1, 3, 7])
def test_accuracy_by_hand(size: int) -> None:
    """Three of four right, and one of three; a method may differ from its head."""
    seen = views(LABELS, size)
    found = evaluate(HEAD, lambda out: out.scores, seen, [range(2), range(2, 3)])
    assert found["accuracy"] == found["head_accuracy"] == pytest.approx(400 / 7)
    assert found["tasks"] == pytest.approx([75.0, 100 / 3])
    assert found["confusion"] == [[3, 1], [2, 1]]
    assert (found["old_as_old"], found["new_as_new"]) == pytest.approx((75.0, 100 / 3))
    tasks = [range(1), range(1, 3)]
    found = evaluate(HEAD, lambda out: torch.eye(3)[[2] * len(out.scores)], seen, tasks)
    assert (found["accuracy"], found["head_accuracy"]) == pytest.approx((300 / 7, 400 / 7))
    assert found["tasks"] == pytest.approx([0.0, 60.0])
    assert found["confusion"] == [[0, 2], [0, 5]]
    assert (found["old_as_old"], found["new_as_new"]) == (0.0, 100.0)


def test_old_and_new_by_hand() -> None:
    """Old classes are those of all earlier tasks, whichever of them is predicted."""
    counts = torch.tensor([[4, 1, 5], [2, 6, 2], [1, 2, 7]])
    assert sides(counts) == {"old_as_old": 65.0, "new_as_new": 70.0}
    assert sides(counts[:1, :1]) == {}
