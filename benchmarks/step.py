"""How fast is a training step? Without a teacher (iCaRL's first phase), and with one (LUCIR).

    plain      bf16
    recorded   as a CUDA graph
    compiled   recorded, and compiled by torch
    stem       and with the operator of `mrdc.nn.stem`
    teacher    and with those of `mrdc.nn.folded` for the teacher
    usual      and without the maps that the loss does not read: what runs do

Variants take turns. `ratio` is to `compiled`.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from statistics import median
from unittest.mock import patch

import torch

from common import SEED, emit, machine, race
from mrdc.methods.base import reads_maps
from mrdc.methods.options import make_method
from mrdc.nn.compile import compiled
from mrdc.nn.net import Net
from mrdc.nn.settings import TrainSettings
from mrdc.training.architecture import make_architecture
from mrdc.training.fit import Step
from mrdc.training.settings import LearnSettings

CLASSES = (100, 20)
TEACHER = {"icarl": False, "lucir": True, "podnet": True}
VARIANTS = {  # recorded, compiled, maps of all stages, the stem's operator, the teacher's
    "plain": (False, False, True, False, False),
    "recorded": (True, False, True, False, False),
    "compiled": (True, True, True, False, False),
    "stem": (True, True, True, True, False),
    "teacher": (True, True, True, True, True),
    "usual": (True, True, False, True, True),
}


@contextmanager
def operators(stem: bool, folded: bool) -> Iterator[None]:
    """Switch off the operators that are not wanted."""
    with ExitStack() as patches:
        for wanted, name in ((stem, "resnet.fuses"), (folded, "compile.is_folded")):
            if not wanted:
                patches.enter_context(patch(f"mrdc.nn.{name}", lambda *given: False))
        yield


def stepper(name: str, variant: str, given: argparse.Namespace) -> Callable[[], None]:
    """A function that trains for a round, after warm-up and recording."""
    records, compiles, stages, *wanted = VARIANTS[variant]
    torch.manual_seed(SEED)
    method, device = make_method(name), given.device
    architecture = make_architecture(LearnSettings(size=given.size), method)
    net: Net = architecture.build().to(device).to(memory_format=torch.channels_last)
    net.head.grow(CLASSES[0])
    old = net.frozen() if TEACHER[name] else None
    net.head.grow(CLASSES[1])
    net.to(device).train()
    with operators(*wanted):
        for each in (net, old) if compiles else ():
            if each is not None:
                each.compiled = (
                    frozenset((given.batch,)),
                    compiled(each, stages or reads_maps(method)),
                )
    sides = (given.batch, 3, given.size, given.size)
    images = torch.randint(0, 256, sides, device=device, dtype=torch.uint8)
    labels = torch.randint(0, sum(CLASSES), (given.batch,), device=device)
    step = Step(
        lambda x, y: method.loss(net, old, x, y),
        [p for p in net.parameters() if p.requires_grad],
        TrainSettings(batch_size=given.batch, lr=1e-3),
        None,
        True,
        records and device == "cuda",
    )

    def run(count: int = given.steps) -> None:
        with operators(*wanted):
            for _ in range(count):
                step(images, labels)
        if device == "cuda":
            torch.cuda.synchronize()

    run(6 if device == "cuda" else 1)
    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--methods", nargs="+", choices=TEACHER, default=["icarl", "lucir"])
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--steps", type=int, default=40, help="steps per round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cuda")
    given = parser.parse_args()
    if given.device == "cuda" and not torch.cuda.is_available():
        sys.exit("step.py measures a GPU, but there is no CUDA device")
    torch.backends.cudnn.benchmark = True
    for name in given.methods:
        runs = {}
        for variant in given.variants:
            start = time.perf_counter()
            runs[variant] = stepper(name, variant, given)
            print(f"{name}, {variant}: ready in {time.perf_counter() - start:.0f} s", flush=True)
        times = race(given.rounds, **runs)
        base = times.get("compiled", times[given.variants[0]])
        for variant, seconds in times.items():
            emit(
                "step",
                method=name,
                teacher=TEACHER[name],
                variant=variant,
                batch=given.batch,
                ms=1e3 * median(seconds) / given.steps,
                rate=given.batch * given.steps / median(seconds),
                ratio=median(a / b for a, b in zip(seconds, base, strict=True)),
                **machine(),
            )


if __name__ == "__main__":
    main()
