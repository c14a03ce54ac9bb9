"""Learn a stream of classes, from Python."""

from dataclasses import replace
from typing import Literal

from torch import nn

from mrdc._utils.errors import UsageError
from mrdc.data.stream import Stream, check_stream
from mrdc.methods.base import Method
from mrdc.nn.settings import TrainSettings
from mrdc.training.check import check_learning
from mrdc.training.learner import ClassLearner
from mrdc.training.machine import machine
from mrdc.training.phases import Phases
from mrdc.training.results import RunResult
from mrdc.training.resume import Keeper
from mrdc.training.settings import LearnSettings, MemorySettings
from mrdc.training.summary import summarise_classes

MEMORY, TRAIN = MemorySettings(), TrainSettings()


def run_phases(
    method: Method,
    stream: Stream,
    *,
    network: str | nn.Module = "resnet18",
    memory: MemorySettings = MEMORY,
    train: TrainSettings = TRAIN,
    seed: int = 0,
    size: int | None = None,
    stem: Literal["auto", "7x7", "3x3"] = "auto",
    device: Literal["auto", "cpu", "cuda"] = "auto",
    precision: Literal["auto", "fp32", "bf16"] = "auto",
    compile: Literal["auto", "yes", "no"] = "auto",
    resident: Literal["auto", "gpu", "ram", "stream"] = "auto",
    threads: int | None = None,
    keeper: Keeper | None = None,
) -> RunResult:
    """Learn a stream of classes phase by phase.

    Args:
        method: such as `AANets(LUCIR(margin=0.4))`.
        stream: from `open_stream`.
        network: "resnet18", "resnet18-narrow", or any module that takes normalised images
            (n, 3, size, size) and returns features (n, d), a map (n, d, h, w) or several maps.
            A copy of it is trained, starting from its weights.
        memory: budget, quality and search of the replay memory.
        train: training settings of a phase.
        size: side of the network's input; 224 by default.
        keeper: keeps checkpoints to resume from, such as a `RunFolder`.

    The other arguments are the flags of `mrdc run`.

    Raises:
        MrdcError: settings that cannot be used, or a budget without room.
    """
    own = network if isinstance(network, nn.Module) else None
    settings = LearnSettings(
        seed=seed,
        network=network if isinstance(network, str) else type(network).__name__,
        stem=stem,
        size=size,
        train=train,
        memory=memory,
        device=device,
        precision=precision,
        compile=compile,
        resident=resident,
        threads=threads,
    )
    return learn_classes(method, stream, settings, own, keeper)


def learn_classes(
    method: Method,
    stream: Stream,
    settings: LearnSettings,
    network: nn.Module | None = None,
    keeper: Keeper | None = None,
) -> RunResult:
    """`run_phases` with its settings in one object."""
    check_learning(settings)
    if not isinstance(method, Method) or not isinstance(stream, Stream):
        given = f"{type(method).__name__} and {type(stream).__name__}"
        raise UsageError(
            "give a method, such as LUCIR(), and a stream, such as open_stream('photos'), not "
            f"{given}"
        )
    check_stream(stream)
    phases = Phases(ClassLearner(method, stream, settings, network), keeper).run()
    result = summarise_classes(type(method).__name__.lower(), settings, phases, stream)
    return replace(result, **machine())
