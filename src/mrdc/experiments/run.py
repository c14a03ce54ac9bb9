"""`run`: one experiment, from settings to result, in a folder that it can be resumed from."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mrdc._utils.errors import DataError, TrainingError, lacks_memory
from mrdc.distributed.group import world
from mrdc.experiments.check import Checked, Listener, check
from mrdc.experiments.classes import ClassExperiment
from mrdc.experiments.folder import (
    RESULTS,
    Kept,
    RunFolder,
    commits,
    finished,
    parse_line,
    read_kept,
    refuse_changes,
    rounded,
)
from mrdc.experiments.picked import with_picked_quality
from mrdc.experiments.settings import AnySettings, data_name, decisive_settings, folder_name
from mrdc.training.machine import machine
from mrdc.training.results import RunResult
from mrdc.training.resume import Keeper
from mrdc.training.settings import RunSettings

if TYPE_CHECKING:
    from mrdc.experiments.scenes import SceneExperiment

    Experiment = ClassExperiment | SceneExperiment


def open_experiment(
    settings: AnySettings, name: str = "", kept: Checked | None = None
) -> "Experiment":
    """Open the images of a run."""
    if isinstance(settings, RunSettings):
        return ClassExperiment(settings, name, kept)
    from mrdc.experiments.scenes import SceneExperiment  # imports torchvision, which takes seconds

    return SceneExperiment(settings, kept)


def run_path(settings: AnySettings, name: str) -> Path:
    """The folder of a run."""
    return settings.out or Path("runs") / folder_name(settings, name)


def run(
    settings: AnySettings,
    *,
    name: str | None = None,
    paper: float | None = None,
    listener: Listener = lambda kind, fields: None,
) -> RunResult:
    """Run an experiment, or resume it; its result is also the last line of results.jsonl."""
    name, settings = name or settings.method, with_picked_quality(settings)
    check(settings)
    path = run_path(settings, name)
    kept, done = world().lead(lambda: (read_kept(path), finished(path)))
    experiment = open_experiment(settings, name, kept.checked if kept else None)
    if kept is None:
        checked = world().lead(partial(experiment.check, listener))
        if checked.skipped:
            experiment = open_experiment(settings, name, checked)
    else:
        checked = kept.checked
    stream = experiment.fingerprint()
    if len(set(world().join([stream]))) > 1:
        raise DataError(f"{settings.data}: not the same images on every machine")
    decisive = {**decisive_settings(experiment.settings), "stream": stream}
    if kept is not None and done is not None:
        refuse_changes(path, kept.settings, decisive)
        return replace(done, folder=str(path))  # it may have been moved
    here = machine()
    about = {"name": name, **Kept.about(checked), **here}
    every, cache = settings.checkpoint_seconds, settings.cache
    keeper = Keeper()
    if world().rank == 0:
        keeper = RunFolder(path, decisive, about, every=every, cache=cache, listener=listener)
    try:
        with ExitStack() as opened, memory_errors():
            if settings.tensorboard and isinstance(keeper, RunFolder):
                keeper.listener = opened.enter_context(tensorboard(path, listener))
            learned = experiment.learn(keeper)
        result = world().lead(
            lambda: replace(
                learned,
                name=name,
                data=data_name(settings.data),
                method=settings.method,
                paper=paper or learned.paper,
                folder=str(path),
                in_training=checked.in_training,
                skipped=checked.skipped,
                **{**here, "commit": commits(path / RESULTS)},
            )
        )
        keeper.write_line(result.to_json())
    finally:
        keeper.close()
    return replace(RunResult.from_json(rounded(result.to_json())), phases=result.phases)


@contextmanager
def memory_errors() -> Iterator[None]:
    """Explain in one line that training needs more memory than there is."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not lacks_memory(error):
            raise
        raise TrainingError(
            "not enough memory: lower --train.batch-size or the size of images, and use another "
            "--out"
        ) from None


@contextmanager
def tensorboard(path: Path, listener: Listener) -> Iterator[Listener]:
    """A listener that calls another and also writes TensorBoard events, which go on on resuming."""
    from torch.utils.tensorboard import SummaryWriter

    lines = (path / RESULTS).read_bytes().splitlines() if (path / RESULTS).exists() else []
    events = [parse_line(line) or {} for line in lines]
    steps: dict[tuple[Any, ...], int] = {}  # an epoch that is trained again keeps its step
    for event in events:
        if event.get("event") == "epoch":
            steps.setdefault(_epoch(event), len(steps))

    def listen(kind: str, fields: dict[str, Any]) -> None:
        listener(kind, fields)
        if kind == "epoch":
            step = steps.setdefault(_epoch(fields), len(steps))
            for name in ("loss", "images_per_second"):
                writer.add_scalar(f"train/{name}", fields[name], step)
        elif kind == "phase":
            for name in ("accuracy", "seconds"):
                writer.add_scalar(f"phase/{name}", fields[name], fields["phase"])
            writer.flush()

    writer = SummaryWriter(str(path / "tensorboard"))
    try:
        yield listen
    finally:
        writer.close()


def _epoch(event: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(event.get(name) for name in ("phase", "stage", "epoch"))
