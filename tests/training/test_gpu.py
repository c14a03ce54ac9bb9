"""Training on a GPU: recorded steps, bf16, compiled networks, crops, and a whole run."""

import copy
import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from mrdc.codec import CODECS
from mrdc.codec.image import Pixels
from mrdc.methods import LUCIR, Fidelity, Method
from mrdc.nn.compile import compiled
from mrdc.nn.folded import is_folded
from mrdc.nn.heads import Linear
from mrdc.nn.net import Net
from mrdc.nn.resnet import ResNet, Stem, Variant
from mrdc.training.classes import run_phases
from mrdc.training.fit import Epoch, Step, fit
from mrdc.training.gpu_feed import GpuFeed
from mrdc.training.match import Copies
from mrdc.training.pictures import Files
from mrdc.training.settings import MemorySettings, TrainSettings
from mrdc.training.stream_feed import StreamFeed, nvjpeg
from tests.helpers import coloured_stream, tiny
from tests.training.feeds import CPU, everything, examples, ramp, varied

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
    pytest.mark.usefixtures("seeded"),
    pytest.mark.filterwarnings("ignore"),  # torch's compiler warns about torch
]
CUDA = torch.device("cuda")
TRAINING = TrainSettings(epochs=2, lr=0.02, batch_size=8)


@dataclass
class Fixed:
    """A feed of images on the device, in the same order every time."""

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def epoch(self, batch_size: int, seed: int, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        parts = (torch.split(part, batch_size) for part in (self.images, self.labels))
        yield from zip(*parts, strict=True)


def feed() -> Fixed:
    """Six full batches and a smaller one."""
    images = torch.randint(0, 256, (52, 3, 16, 16), dtype=torch.uint8)
    return Fixed(images.to(CUDA), (torch.arange(52) % 3).to(CUDA))


def network() -> Net:
    return tiny("plain", Linear, classes=3).to(CUDA).to(memory_format=torch.channels_last)


def trained(start: Net, source: Fixed, **options: Any) -> tuple[list[float], Tensor]:
    """Loss of each epoch, and all parameters afterwards."""
    net, losses = copy.deepcopy(start), list[float]()

    def note(epoch: Epoch, stop: object) -> None:
        losses.append(epoch.loss)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(net(x).logits, y)

    fit(net, loss, source, TRAINING, seed=0, on_epoch=note, **options)
    return losses, torch.cat([p.detach().flatten() for p in net.parameters()])


def test_recorded_steps_are_plain_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The step is recorded once; losses and weights agree in fp32."""
    recorded: list[int] = []
    record = Step._record

    def watched(step: Step, batch: tuple[Tensor, ...]) -> None:
        recorded.append(len(batch[1]))
        record(step, batch)

    monkeypatch.setattr(Step, "_record", watched)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    net, source = network(), feed()
    plain, weights = trained(net, source, graph=False)
    assert recorded == []
    losses, others = trained(net, source)
    assert recorded == [TRAINING.batch_size]
    assert losses == pytest.approx(plain, rel=1e-3)
    torch.testing.assert_close(others, weights, rtol=1e-2, atol=1e-3)


def test_bf16_trains_like_fp32() -> None:
    net, source = network(), feed()
    losses, weights = trained(net, source, bf16=True)
    assert losses == pytest.approx(trained(net, source)[0], rel=0.05)
    assert weights.dtype == torch.float32


@pytest.mark.parametrize("training", [True, False])
def test_compiled_network_gives_the_same_maps(training: bool) -> None:
    """Within the rounding of bf16; only for the batch sizes it is meant for."""
    net, source = network().train(training), feed()
    fast = compiled(net)
    with torch.autocast("cuda", torch.bfloat16), torch.no_grad():
        plain = copy.deepcopy(net).maps(source.images[:8])
        net.compiled = frozenset([8]), fast
        assert net.compiles(source.images[:8]) and not net.compiles(source.images[:7])
        found = net.maps(source.images[:8])
    for a, b in zip(found, plain, strict=True):
        assert (a.float() - b.float()).abs().max() < 0.05 * b.float().abs().max()


@pytest.mark.parametrize("variant", ["plain", "lucir", "pod"])
@pytest.mark.parametrize("stem", ["7x7", "3x3"])
def test_compiled_teacher_gives_the_same_maps(variant: Variant, stem: Stem) -> None:
    """Within the rounding of bf16: cuDNN computes bias, shortcut and ReLU."""
    backbone = ResNet(variant, 8, stem)
    teacher = Net(backbone, Linear(64)).to(CUDA).frozen()
    assert is_folded(teacher)
    images = torch.randint(0, 256, (8, 3, 64, 64), dtype=torch.uint8, device=CUDA)
    with torch.autocast("cuda", torch.bfloat16), torch.no_grad():
        plain, found = teacher.maps(images), compiled(teacher)(images)
    for a, b in zip(found, plain, strict=True):
        assert (a.float() - b.float()).norm() < 0.02 * b.float().norm()


@pytest.mark.parametrize("compiled", [False, True])
def test_crops_on_the_gpu_are_those_of_the_cpu(compiled: bool) -> None:
    """Within two grey levels, as the GPU computes in fp16; with copies of some images."""
    copies = Copies(0.5, np.arange(10), varied(30).pick(range(20, 30)))
    feeds = [
        GpuFeed(varied(20), 16, device, compiled=compiled and device is CUDA, copies=copies)
        for device in (CPU, CUDA)
    ]
    (slow, labels), (fast, same) = (everything(one, batch_size=5) for one in feeds)
    assert fast.is_cuda and torch.equal(labels, same.cpu())
    assert (fast.cpu().float() - slow.float()).abs().max() < 2


@pytest.mark.skipif(nvjpeg(CUDA) is None, reason="torchvision has no nvJPEG")
@pytest.mark.parametrize("compiled", [False, True])
def test_streams_on_the_gpu_show_resident_images(compiled: bool) -> None:
    """Up to decoder rounding: smooth JPEGs, some of them scaled down, and a PNG."""
    smooth = [jpeg_of(ramp(30 + n, 44 - n % 7)) for n in range(40)]
    file = io.BytesIO()
    Image.fromarray(ramp(20, 30)).save(file, "PNG")
    source = examples([*smooth, file.getvalue()])
    files = Files(source.photos, 32, 1e6)
    stream = StreamFeed(files, source.labels, 16, CUDA, compiled=compiled, decoder=nvjpeg(CUDA))
    assert stream.fast.sum() == 40
    resident = GpuFeed(source, 16, CUDA, compiled=compiled)
    for epoch in range(3):
        (views, labels), (expected, same) = (
            everything(feed, epoch=epoch, batch_size=8) for feed in (stream, resident)
        )
        assert torch.equal(labels, same)
        assert (views.float() - expected.float()).abs().mean() < 2
        assert (views.float() - expected.float()).abs().max() < 16
    assert stream.fast.sum() == 40  # nothing was refused


@pytest.mark.skipif(nvjpeg(CUDA) is None, reason="torchvision has no nvJPEG")
def test_refused_files_are_decoded_by_the_host() -> None:
    whole = jpeg_of(ramp(30, 40))
    source = examples([whole] * 9)
    feed = StreamFeed(Files(source.photos, 32, 1e6), source.labels, 16, CUDA, decoder=refuse)
    views, _ = everything(feed)
    resident, _ = everything(GpuFeed(source, 16, CUDA))
    assert (views.float() - resident.float()).abs().max() < 1
    assert not feed.fast.any()


def refuse(files: list[Tensor]) -> list[Tensor]:
    raise RuntimeError("Error while decoding JPEG images")


def jpeg_of(pixels: Pixels) -> bytes:
    return CODECS["jpeg"].encode(pixels, 95)


@pytest.mark.parametrize("method", [LUCIR(), Fidelity(LUCIR())])
@pytest.mark.parametrize(  # by default bf16, images on the GPU
    "options",
    [
        {},
        {"precision": "fp32", "resident": "stream"},
        {"compile": "yes"},
        {"compile": "yes", "resident": "stream"},
        {"resident": "ram"},
    ],
)
def test_run_on_a_gpu_learns(options: dict[str, Any], method: Method) -> None:
    """Five classes in two phases, matched: far better than chance."""
    found = run_phases(
        method,
        coloured_stream(3, 2, images=32),
        network="resnet18-narrow",
        size=32,
        device="cuda",
        memory=MemorySettings("10/class", quality="auto", qualities=(75, 50)),
        train=TrainSettings(epochs=20, lr=0.05, batch_size=16, match=0.5),
        **options,
    )
    assert found.accuracy[0] > 80 and found.accuracy[1] > 40, found.accuracy
    assert 0 < found.memory.bytes <= found.memory.budget_bytes
