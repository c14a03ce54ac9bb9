"""The buffer for Mammoth, used as er, derpp and icarl use theirs."""

import os
import sys
from importlib import import_module
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
from torch import Tensor

from mrdc._utils.errors import UsageError
from mrdc.adapters.mammoth import ByteBuffer, use_mrdc
from tests.adapters.clones import importing_from
from tests.conftest import pixels

CLONE = os.environ.get("MRDC_MAMMOTH")  # a clone of Mammoth, if there is one


def batch(start: int, count: int = 8) -> tuple[Tensor, Tensor, Tensor]:
    """Images between 0 and 1, labels, logits."""
    made = np.stack([pixels(start + n, 32, 32) for n in range(count)])
    images = torch.from_numpy(made).permute(0, 3, 1, 2).float() / 255
    return images, torch.arange(count) % 4, torch.randn(count, 4)


@pytest.fixture(autouse=True)
def _seeded(seeded: None) -> None:
    np.random.seed(0)


def test_a_stream_stays_within_the_budget() -> None:
    """Draw, then add, as er does; the budget covers logits."""
    buffer = use_mrdc(SimpleNamespace(buffer=None), "20kB", quality=50)
    for step in range(20):
        images, labels, logits = batch(8 * step)
        if not buffer.is_empty():
            drawn, classes, held = buffer.get_data(6, transform=lambda image: image.flip(2))
            assert drawn.shape[1:] == (3, 32, 32) and len(drawn) == len(classes) == len(held)
        buffer.add_data(images, labels=labels, logits=logits)
    assert buffer.num_seen_examples == 160
    assert 8 < len(buffer) < 160
    assert buffer.memory.nbytes <= 20_000
    assert buffer.logits.shape == (len(buffer), 4)


def test_what_is_drawn_belongs_together() -> None:
    """Image, label, logits and index belong to one example; the image is equal up to JPEG error."""
    buffer = ByteBuffer("1MB", quality=95)
    images, labels, logits = batch(0)
    buffer.add_data(images, labels, logits)
    index, drawn, classes, held = buffer.get_data(8, return_index=True)
    for image, label, row in zip(drawn, classes, held, strict=True):
        (place,) = torch.nonzero((logits == row).all(1)).flatten().tolist()
        assert labels[place] == label
        assert (image - images[place]).abs().mean() < 0.05
    assert sorted(index.tolist()) == list(range(8))
    assert torch.equal(buffer.examples[index], drawn)
    assert torch.equal(buffer.labels[index], classes)


def test_tasks_can_be_masked() -> None:
    """Masks by task labels or by classes per task; indices and both views on request."""
    buffer = ByteBuffer("1MB")
    images, labels, _ = batch(0)
    buffer.add_data(images, labels, task_labels=labels // 2)
    _, classes, tasks = buffer.get_data(99, mask_task_out=0)
    assert set(classes.tolist()) == {2, 3} and set(tasks.tolist()) == {1}
    plain = ByteBuffer("1MB")
    plain.add_data(images, labels)
    assert set(plain.get_data(99, mask_task_out=1, cpt=2)[1].tolist()) == {0, 1}
    same, flipped, _ = plain.get_data(3, transform=lambda image: image.flip(2), return_not_aug=True)
    assert torch.equal(same.flip(3), flipped)
    with pytest.raises(AttributeError):
        _ = plain.logits


def test_what_is_added_again_is_not_encoded_again() -> None:
    """Read all, empty, and add the best again, as icarl does at the end of a task."""
    buffer = ByteBuffer("1MB", quality=30)
    images, labels, _ = batch(0)
    buffer.add_data(images, labels)
    before = {buffer.memory.encoded(index) for index in range(len(buffer))}
    examples, classes = buffer.get_all_data()
    buffer.empty()
    assert buffer.is_empty()
    buffer.add_data(examples[:5], classes[:5])
    assert {buffer.memory.encoded(index) for index in range(5)} <= before


def test_refusals() -> None:
    """Normalised images, other attributes, models without a buffer."""
    buffer = ByteBuffer("1MB")
    images, labels, _ = batch(0)
    with pytest.raises(UsageError, match="examples must lie between 0 and 1"):
        buffer.add_data(images * 4 - 2, labels)
    with pytest.raises(UsageError, match="true_labels: not stored"):
        buffer.add_data(images, labels, true_labels=labels)
    with pytest.raises(UsageError, match="is a bfloat16 tensor: convert it to float16 first"):
        buffer.add_data(images, labels, logits=torch.zeros(8, 3).bfloat16())
    buffer.add_data(images[:0], labels[:0])
    assert buffer.is_empty()
    with pytest.raises(UsageError, match="SimpleNamespace has no buffer"):
        use_mrdc(SimpleNamespace(), "1MB")


@pytest.mark.skipif(CLONE is None, reason="MRDC_MAMMOTH names no clone")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("method", ["Er", "Der", "Derpp", "ErACE", "Fdr"])
def test_methods_of_mammoth(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The method's own `observe`, over a small network and a few tasks."""
    monkeypatch.setitem(sys.modules, "open_clip", MagicMock())  # else importing downloads weights
    with importing_from(CLONE):
        name = {"ErACE": "er_ace"}.get(method, method.lower())
        kind: Any = getattr(import_module(f"models.{name}"), method)
        net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 32 * 32, 4))
        model = SimpleNamespace(
            net=net,
            loss=torch.nn.functional.cross_entropy,
            opt=torch.optim.SGD(net.parameters(), lr=0.01),
            args=SimpleNamespace(minibatch_size=4, alpha=0.5, beta=0.5),
            transform=lambda image: image,
            device="cpu",
            buffer=None,
            i=0,
            soft=torch.nn.Softmax(dim=1),
            seen_so_far=torch.tensor([]).long(),
        )
        model.args.batch_size = model.args.buffer_size = 8
        model.args.task_free = False
        buffer = use_mrdc(model, "20kB", quality=50)
        for model.current_task in range(3):
            images, labels, _ = batch(8 * model.current_task)
            assert np.isfinite(kind.observe(model, images, labels, images))
            if method == "Fdr":
                kind.end_task(model, SimpleNamespace(train_loader=[(images, labels, images)]))
        assert 0 < len(buffer) <= 48
