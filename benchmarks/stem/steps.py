"""Does a fused stem make a training step faster? LUCIR with a teacher, bf16, compiled, recorded.

    PYTHONPATH=src:benchmarks python benchmarks/stem/steps.py

    today           the code as it is
    norm_pool       batch norm, max-pool and ReLU of ResNet-18's stem as one operator (fused.py)
    teacher_cudnn   the teacher's convolutions with bias, ReLU and shortcut by cuDNN (teacher.py)

Rule: a variant goes into src/mrdc/nn if its whole step is at least 3 % faster (`ratio` <= 0.97).

Known from one H200 at commit 2d4dbd5 of a branch, not in a result file: the operator's gradients
agree with the plain ones to 5e-8 in fp32, and its output in bf16 is identical. With a batch of 128
its kernels, which then allowed any number of channels, took 0.190 ms (forward), 0.052 ms (sums) and
0.175 ms (spread). Gradients of a whole step in bf16 differ by 0.005 with norm_pool, 0.011 with
teacher_cudnn and 0.27 without compiling, all from rounding. No whole step has been timed.

All variants are first compiled and recorded (38, 17 and 4 s when nothing is cached), then take
turns. One that fails is reported and left out. Differences (`_apart`) are measured over one step
from the same weights, relative to today's.
"""

import copy
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import torch
from fused import norm_pool
from teacher import with_cudnn
from torch import Tensor, nn

from common import SEED, emit, machine, race
from mrdc.methods.options import make_method
from mrdc.nn.compile import compiled
from mrdc.nn.net import Net
from mrdc.nn.resnet import ResNet
from mrdc.nn.settings import TrainSettings
from mrdc.training.architecture import make_architecture
from mrdc.training.fit import Step
from mrdc.training.settings import LearnSettings

CLASSES = (100, 20)
LIMIT = 60.0  # seconds after which no further variant is compiled
Nets = tuple[Net, Net]  # student and teacher


@dataclass(frozen=True)
class Size:
    """The size of the trial, and its device."""

    device: str = "cuda"
    network: str = "resnet18"
    batch: int = 128
    side: int = 224
    steps: int = 40
    rounds: int = 5


class FusedStem(ResNet):
    """A ResNet with the fused operator."""

    def level(self, number: int, x: Tensor) -> Tensor:
        if number == 0:
            x = norm_pool(self.conv1(x), self.bn1)
        y: Tensor = self.stages[number](x)
        return y


class Trial:
    """Networks and a batch."""

    def __init__(self, size: Size):
        torch.manual_seed(SEED)
        self.size, self.method = size, make_method("lucir")
        settings = LearnSettings(network=size.network, stem="7x7", size=size.side)
        net: Net = make_architecture(settings, self.method).build().to(size.device)
        net = net.to(memory_format=torch.channels_last)
        net.apply(live_in)
        net.head.grow(CLASSES[0])
        self.net, self.old = net, net.frozen()
        net.head.grow(CLASSES[1])
        net.to(size.device).train()
        self.start = copy.deepcopy(net.state_dict())
        sides = (size.batch, 3, size.side, size.side)
        images = torch.randint(0, 256, sides, device=size.device, dtype=torch.uint8)
        labels = torch.randint(0, sum(CLASSES), (size.batch,), device=size.device)
        self.batch = images, labels

    def today(self) -> Nets:
        return self.compiled(self.net), self.compiled(self.old)

    def norm_pool(self) -> Nets:
        net = copy.deepcopy(self.net)
        net.backbone.__class__ = FusedStem
        return self.compiled(net), self.old

    def teacher_cudnn(self) -> Nets:
        return self.net, with_cudnn(self.old, self.size.batch)

    def compiled(self, net: Net) -> Net:
        net.compiled = frozenset((self.size.batch,)), compiled(net)
        return net

    def gradients(self, net: Net, old: Net) -> tuple[Tensor, Tensor]:
        """Loss and gradients of one step from the first weights."""
        net.load_state_dict(self.start)
        net.zero_grad(set_to_none=True)
        with torch.autocast(self.size.device, torch.bfloat16):
            loss = self.method.loss(net, old, *self.batch)
        loss.backward()  # type: ignore[no-untyped-call]
        grads = [p.grad.flatten() for p in net.parameters() if p.grad is not None]
        return loss.detach(), torch.cat(grads)

    def steps(self, net: Net, old: Net) -> Callable[[], None]:
        """A function that trains for a round, after warm-up and, on a GPU, recording."""
        on_gpu = self.size.device == "cuda"
        training = TrainSettings(batch_size=self.size.batch, lr=1e-3)
        trained = [p for p in net.parameters() if p.requires_grad]

        def loss(x: Tensor, y: Tensor) -> Tensor:
            return self.method.loss(net, old, x, y)

        step = Step(loss, trained, training, None, True, on_gpu)

        def run(count: int = self.size.steps) -> None:
            for _ in range(count):
                step(*self.batch)
            if on_gpu:
                torch.cuda.synchronize()

        run(6 if on_gpu else 1)
        return run


def live_in(module: nn.Module) -> None:
    """Give a batch norm scales, shifts and statistics as if it had been trained."""
    if isinstance(module, nn.BatchNorm2d):
        assert module.running_mean is not None and module.running_var is not None
        for tensor in (module.weight, module.running_var):
            nn.init.uniform_(tensor, 0.5, 1.5)
        for tensor in (module.bias, module.running_mean):
            nn.init.normal_(tensor, std=0.1)


def apart(found: Tensor, reference: Tensor) -> float:
    """Relative difference."""
    return float((found - reference).norm() / reference.norm())


def measure(size: Size) -> None:
    """Print a line for each variant."""
    begin, trial = time.perf_counter(), Trial(size)
    runs, results = {}, {}
    for make in (trial.today, trial.norm_pool, trial.teacher_cudnn):
        name, start = make.__name__, time.perf_counter()
        if start - begin > LIMIT:
            print(f"{name} is left out: out of time", flush=True)
            continue
        try:
            nets = make()
            results[name] = trial.gradients(*nets)
            runs[name] = trial.steps(*nets)
        except Exception as error:
            traceback.print_exc()
            print(f"{name} failed: {type(error).__name__}: {error}"[:500], flush=True)
        else:
            print(f"{name} was ready in {time.perf_counter() - start:.0f} s", flush=True)
    if "today" not in runs:
        sys.exit("there is nothing to compare with")
    times = race(size.rounds, **runs)
    loss, grads = results["today"]
    for name, seconds in times.items():
        ratios = [round(a / b, 4) for a, b in zip(seconds, times["today"], strict=True)]
        emit(
            "stem",
            variant=name,
            batch=size.batch,
            ms=1e3 * median(seconds) / size.steps,
            ratio=median(ratios),
            ratios=ratios,
            loss_apart=apart(results[name][0], loss),
            grads_apart=apart(results[name][1], grads),
            **machine(),
        )


if __name__ == "__main__":
    if not torch.cuda.is_available():
        sys.exit("steps.py measures a GPU, but there is no CUDA device")
    torch.backends.cudnn.benchmark = True
    measure(Size())
