"""`run_phases` refuses what cannot be learned, before it trains."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mrdc._utils.errors import UsageError
from mrdc.data.stream import Stream
from mrdc.methods import LUCIR
from mrdc.training.classes import run_phases
from mrdc.training.settings import MemorySettings, TrainSettings
from tests.helpers import small_stream

pytestmark = pytest.mark.usefixtures("quick")
STREAM = small_stream(2, 1, images=3)


def run(method: Any = None, stream: Any = STREAM, **given: Any) -> Any:
    usual: dict[str, Any] = {
        "network": "resnet18-narrow",
        "size": 16,
        "device": "cpu",
        "train": TrainSettings(epochs=1, batch_size=4),
        "memory": MemorySettings("2/class", "original"),
    }
    return run_phases(method or LUCIR(), stream, **usual | given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"train": TrainSettings(schedule="Cosine")}, "schedule must be one of multistep, cosine"),  # type: ignore[arg-type]
        ({"train": TrainSettings(epochs=0)}, "epochs must be 1 or more, got 0"),
        ({"train": TrainSettings(batch_size=0)}, "batch-size must be 1 or more, got 0"),
        ({"train": TrainSettings(match=7)}, "match must be at most 1, got 7"),
        ({"train": TrainSettings(lr=0)}, "lr must be above 0"),
        ({"size": 0}, "size must be 16 or more, got 0"),
        ({"resident": "gpu"}, "resident gpu needs a CUDA device"),
        ({"precision": "fp64"}, "precision must be one of auto, fp32, bf16, got 'fp64'"),
        ({"memory": MemorySettings("2/class", "best")}, "quality best: give auto, dynamic, or"),
        ({"memory": MemorySettings("2/phase")}, "counts phases of scenes"),
        ({"method": "lucir"}, "give a method, such as LUCIR.., and a stream"),
        ({"method": LUCIR}, "give a method, such as LUCIR.., and a stream"),
        ({"stream": "photos"}, "and a stream, such as open_stream"),
        ({"stream": replace(STREAM, sizes=(2, 2))}, "phases of 2, 2 classes, 3 classes to train"),
        ({"stream": replace(STREAM, sizes=(2, 0, 1))}, "each phase needs a class or more"),
        ({"network": nn.Conv2d(3, 4, 3).half()}, "type torch.float16: make it float32"),
    ],
)
def test_what_cannot_be_learned_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        run(**given)


def without_images(stream: Stream, split: str, label: int) -> Stream:
    images = getattr(stream, split)
    photos = tuple([] if n == label else of for n, of in enumerate(images.photos))
    return replace(stream, **{split: replace(images, photos=photos)})


def test_every_phase_needs_images() -> None:
    """To train on in each class; to test on in each phase."""
    with pytest.raises(UsageError, match="class 'b' has no training image"):
        run(stream=without_images(STREAM, "train", 1))
    with pytest.raises(UsageError, match="phase 1 has no test image"):
        run(stream=without_images(STREAM, "test", 2))


class Auxiliary(nn.Module):
    """Returns another output in training, as GoogLeNet does."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, 2)
        self.side = nn.Conv2d(4, 7, 1)

    def forward(self, x: Tensor) -> Tensor | list[Tensor]:
        map = self.stem(x)
        return [map, self.side(map)] if self.training else map


def test_auxiliary_outputs_are_refused() -> None:
    with pytest.raises(UsageError, match="returns 7 features in training and 4 in evaluation"):
        run(network=Auxiliary())


def test_a_phase_may_have_a_single_image() -> None:
    """Though batch norms over one pixel of one image would fail."""
    found = run(stream=small_stream(1, 1, images=1), memory=MemorySettings("1/class", 50))  # type: ignore[arg-type]
    assert len(found.accuracy) == 2 and torch.tensor(found.accuracy).isfinite().all()


def test_settings_take_single_values() -> None:
    """As `plan` does: a number for a quality, a codec and a quality without a tuple."""
    made = MemorySettings(codec="webp", qualities=50, quality=30, budget=1000)  # type: ignore[arg-type]
    assert made == MemorySettings("1000", "30", codec=("webp",), qualities=(50,))
    assert MemorySettings(scale=0.5).scale == (0.5,)  # type: ignore[arg-type]


def test_results_name_versions_and_processes() -> None:
    """As those of `mrdc run` do."""
    found = run(stream=small_stream(1, 1, images=2))
    assert (found.ranks, found.torch) == (1, torch.__version__) and found.cores > 0
