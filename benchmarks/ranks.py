"""What do several processes cost? A training step with 1 and 2 processes, here on one GPU.

Two processes share the batch and, here, the GPU, so the time per batch shows the overhead, not a
gain. NCCL refuses to share a GPU, so gloo carries the gradients through RAM, which separate GPUs
would not need. The bytes that a process sends per step, and the time they take, are therefore
measured, too.
"""

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from common import emit, machine
from mrdc.distributed.group import backend, world
from mrdc.distributed.launch import launch
from mrdc.distributed.norms import synchronised
from mrdc.methods.options import make_method
from mrdc.nn.embedder import pick_device
from mrdc.nn.settings import TrainSettings
from mrdc.training.architecture import make_architecture
from mrdc.training.fit import Step
from mrdc.training.settings import LearnSettings

CLASSES = (100, 20)
COLLECTIVES = ("all_reduce", "all_gather", "all_gather_into_tensor", "all_gather_single")


def make_step(name: str, batch: int, size: int, network: str, graph: bool) -> Callable[[], Tensor]:
    """A step of this process on its part of a random batch, recorded as a CUDA graph or plain."""
    device = pick_device("auto")
    torch.manual_seed(0)
    method = make_method(name)
    net = make_architecture(LearnSettings(network=network, size=size, stem="7x7"), method).build()
    net.head.grow(CLASSES[0])
    old = net.frozen().to(device)
    net.head.grow(CLASSES[1])
    net = synchronised(net).to(device).to(memory_format=torch.channels_last).train()
    images = torch.randint(0, 256, (batch, 3, size, size), dtype=torch.uint8)
    labels = torch.randint(0, sum(CLASSES), (batch,))
    own = [world().part(part).to(device) for part in (images, labels)]
    trained = [p for p in net.parameters() if p.requires_grad]
    loss, bf16 = partial(method.loss, net, old), device.type == "cuda"
    step = Step(loss, trained, TrainSettings(batch_size=batch), None, bf16, graph)
    return lambda: step(*own)


def milliseconds(step: Callable[[], Tensor], steps: int) -> float:
    """Milliseconds per step, after a warm-up."""
    for _ in range(5):
        step()
    wait()
    start = time.perf_counter()
    for _ in range(steps):
        step()
    wait()
    return 1e3 * (time.perf_counter() - start) / steps


def wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def traffic(step: Callable[[], Tensor]) -> dict[str, float]:
    """Bytes and messages that a process sends in a step, and the time they take."""
    found = {"reduced_bytes": 0.0, "messages": 0.0, "messages_ms": 0.0}

    def counted(function: Callable[..., Any], *given: Any, **more: Any) -> Any:
        tensors = [part for part in given[:2] if isinstance(part, Tensor)]
        own = tensors[-1]  # of two, the first receives the result
        wait()
        start = time.perf_counter()
        result = function(*given, **more)
        wait()
        found["messages_ms"] += 1e3 * (time.perf_counter() - start)
        found["messages"] += 1
        found["reduced_bytes"] += own.nbytes
        return result

    before = {name: getattr(dist, name) for name in COLLECTIVES if hasattr(dist, name)}
    for name, function in before.items():
        setattr(dist, name, partial(counted, function))
    step()
    for name, function in before.items():
        setattr(dist, name, function)
    return found


def measure(options: argparse.Namespace) -> None:
    """The work of one process."""
    if torch.cuda.is_available():
        torch.backends.cudnn.benchmark = True
    recorded = (False, True) if torch.cuda.is_available() and world().size == 1 else (False,)
    for name, graph in product(options.methods, recorded):
        step = make_step(name, options.batch, options.size, options.network, graph)
        ms = milliseconds(step, options.steps)
        sent = traffic(step)
        if world().rank == 0:
            emit(
                "ranks",
                method=name,
                batch=options.batch,
                side=options.size,
                network=options.network,
                graph=graph,
                ranks=world().size,
                backend=backend() if world().size > 1 else None,
                ms=ms,
                rate=1e3 * options.batch / ms,
                **sent,
                **machine(),
            )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--methods", nargs="+", default=["finetune", "lucir"])
    parser.add_argument("--batch", type=int, default=128, help="images of all processes together")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--network", default="resnet18")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        measure(options)
        return 0
    command = [str(Path(__file__).resolve()), *sys.argv[1:], "--worker"]
    return max(launch(count, command) for count in options.ranks)


if __name__ == "__main__":
    sys.exit(main())
