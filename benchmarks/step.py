"""Training speed of the bare network and of LUCIR: plain, as a CUDA graph, compiled, and both."""

import sys
import time
from collections.abc import Iterator

import torch
from torch import Tensor

from common import emit, machine
from mrdc.methods.options import make_method
from mrdc.nn.settings import TrainSettings
from mrdc.training.architecture import make_architecture
from mrdc.training.fit import Step
from mrdc.training.settings import LearnSettings

STEPS = 100
CLASSES = (100, 20)


def feed(size: int, device: str) -> Iterator[tuple[Tensor, Tensor]]:
    """The same random batch, forever."""
    images = torch.randint(0, 256, (size, 3, 224, 224), device=device, dtype=torch.uint8)
    labels = torch.randint(0, sum(CLASSES), (size,), device=device)
    while True:
        yield images, labels


def rate(name: str, batch: int, teacher: bool, captures: bool, compiled: bool) -> dict[str, float]:
    """Images/s after the first steps, and the seconds those took."""
    method = make_method(name)
    net = make_architecture(LearnSettings(stem="7x7"), method).build().cuda()
    net = net.to(memory_format=torch.channels_last)
    net.head.grow(CLASSES[0])
    old = net.frozen() if teacher else None
    net.head.grow(CLASSES[1])
    net.cuda().train()
    if compiled:
        net.backbone.compile()
        if old is not None:
            old.backbone.compile()
    training = TrainSettings(batch_size=batch)
    trained = [p for p in net.parameters() if p.requires_grad]
    step = Step(lambda x, y: method.loss(net, old, x, y), trained, training, None, True, captures)
    batches = feed(batch, "cuda")
    start = time.perf_counter()
    for _ in range(6):
        step(*next(batches))
    torch.cuda.synchronize()
    warm = time.perf_counter() - start
    start = time.perf_counter()
    for _ in range(STEPS):
        step(*next(batches))
    torch.cuda.synchronize()
    return {"rate": batch * STEPS / (time.perf_counter() - start), "start_seconds": warm}


def main() -> None:
    if not torch.cuda.is_available():
        sys.exit("step.py measures a GPU, but there is no CUDA device")
    torch.backends.cudnn.benchmark = True
    for batch in (128, 512):
        for name, teacher in (("finetune", False), ("lucir", True)):
            for captures, compiled in ((False, False), (True, False), (False, True), (True, True)):
                torch.cuda.empty_cache()
                found = rate(name, batch, teacher, captures, compiled)
                emit(
                    "step",
                    method=name,
                    batch=batch,
                    teacher=teacher,
                    graph=captures,
                    compiled=compiled,
                    **found,
                    **machine(),
                )


if __name__ == "__main__":
    main()
