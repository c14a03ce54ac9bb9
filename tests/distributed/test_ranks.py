"""Several processes on the CPU compute what one would, and agree with each other."""

import resource
import subprocess
import sys
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import nn

import mrdc.detection.learner
from mrdc._utils.clock import Clock
from mrdc._utils.errors import TrainingError, UsageError
from mrdc.distributed.group import Group, world
from mrdc.distributed.norms import SyncNorm, synchronised
from mrdc.memory.audit import audit
from mrdc.methods import METHODS, TrainSettings
from mrdc.methods.options import make_method
from mrdc.nn.checkpoint import WIDTHS, digest
from mrdc.nn.embed import embed_together
from mrdc.nn.embedder import network_embedder
from mrdc.training.check import check_ranks
from mrdc.training.exemplars import Exemplars
from mrdc.training.feed import open_feed
from mrdc.training.fit import Epoch, Stop, fit
from mrdc.training.match import Copies
from mrdc.training.phases import Phases
from mrdc.training.resume import Keeper
from mrdc.training.settings import MemorySettings
from tests.conftest import CHEAP, make_photos
from tests.distributed.together import Together, command, together
from tests.helpers import (
    CPU,
    Remembers,
    coloured_stream,
    examples,
    lesson,
    lived_in,
    numbers,
    photo,
    small_run,
    stored,
    tiny,
)
from tests.processes import SMALL, Cli, epochs, events, until
from tests.processes import cli as cli
from tests.scenes import SceneRun, small
from tests.scenes import tiny as tiny_detector

Arrays = dict[str, NDArray[Any]]
OPTIONS = {
    "lucir": ("balance=all", "balance_epochs=1"),
    "lucir-dde": ("neighbours=2",),
    "podnet-dde": ("neighbours=2", "finetune_epochs=1"),
    "podnet": ("finetune_epochs=1",),
    "podnet-aanets": ("finetune_epochs=1",),
    "tpcil": ("vertices=4",),
    "mnemonics": ("pixel_lr=10",),
}
QUICK = ("lucir", "unbiased-teacher")
STEPS = [name for name in METHODS if name != "joint"]  # which builds its own network
SCENE_METHODS: dict[str, tuple[str, ...]] = {
    "supervised": (),
    "pseudo-labels": ("threshold=0.0",),
    "unbiased-teacher": ("threshold=0.0",),
}


@cache
def of_ranks(count: int) -> list[dict[str, Any]]:
    """Results of `work` on every rank; a single rank runs in this process."""
    return together(count, work) if count > 1 else [work()]


def work() -> dict[str, Any]:
    """All measurements of a process at once, because starting processes is slow."""
    with torch.random.fork_rng(devices=[]):
        found: dict[str, Any] = {"steps": {name: step(name) for name in STEPS}}
        found["norm"], found["features"] = normalised(), features()
        found["refused"], found["filled"] = refused(), filled()
        if world().size == 2:
            found["runs"] = {"unbiased-teacher": detected("unbiased-teacher")}
            found["runs"]["lucir"], found["resumed"] = resumed()
        return found


# One step


def step(name: str) -> Arrays:
    """Everything that a step on eleven images of three classes changes, and its loss."""
    torch.manual_seed(0)
    method, losses = make_method(name, OPTIONS.get(name, ())), list[float]()
    net, teacher = (lived_in(tiny(method.needs.variant, method.needs.head, 2)) for _ in range(2))
    new, old = examples([2] * 6), examples([0, 1, 0, 0, 1])
    made = lesson(
        model=net,
        teacher=teacher.frozen(),
        train=new + old,
        fresh=new,
        memory=old,
        features=lambda some: embed_together(
            some.photos, network_embedder(net, net.features, size=8, device=CPU)
        ),
    )
    method.start_phase(made)

    def note(epoch: Epoch, stop: Stop) -> None:
        losses.append(epoch.loss)

    fit(
        made.model,
        partial(method.loss, made.model, made.teacher),
        open_feed(
            *(made.train, 8, CPU, "gpu" if "dde" in name else "ram", 1, False),
            companions=made.companions,
            copies=Copies(0.5, np.arange(6), examples([2] * 11).pick(range(5, 11))),
        ),
        TrainSettings(epochs=1, batch_size=11, lr=0.1, brightness=0.2),
        seed=5,
        clamp=method.needs.clamp,
        norm="eval",
        on_epoch=note,
    )
    state = {n: v for n, v in method.state().items() if isinstance(v, torch.Tensor)}
    tensors = made.model.state_dict() | state
    return {n: t.numpy() for n, t in tensors.items()} | {"loss": np.array(losses)}


@pytest.mark.parametrize("count", [2, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", STEPS)
def test_a_step_of_several_processes_is_that_of_one(name: str, count: int) -> None:
    """Weights, the state of the method and the loss, with parts of unequal size."""
    (alone,) = of_ranks(1)
    for found in of_ranks(count):
        for tensor, wanted in alone["steps"][name].items():
            got = found["steps"][name][tensor]
            np.testing.assert_allclose(got, wanted, 2e-6, 1e-6, err_msg=tensor)


def normalised() -> Arrays:
    """A batch norm in training: its output, gradients and statistics."""
    torch.manual_seed(1)
    norm = synchronised(lived_in(nn.Sequential(nn.BatchNorm2d(3)))).train()
    x = world().part(torch.randn(7, 3, 2, 2) * 3 + 5).requires_grad_()
    weights = world().part(torch.randn(7, 3, 2, 2))
    out = norm(x)
    world().backward((out.square() * weights).sum() / len(x), len(x), norm.parameters())
    assert x.grad is not None
    slopes = x.grad * (len(x) if world().size == 1 else 1)  # of the sum, not of the mean
    rows = {"out": out.detach(), "gradient": slopes}
    found = {n: world().gather(r, world().bounds(7)) for n, r in rows.items()}
    found |= norm.state_dict() | {f"gradient of {n}": p.grad for n, p in norm.named_parameters()}
    return {name: value.numpy() for name, value in found.items()}


@pytest.mark.parametrize("count", [2, 3])
def test_batch_norms_see_the_whole_batch(count: int) -> None:
    """Output, statistics, and gradients through both, as of one process."""
    (alone,) = of_ranks(1)
    for found in of_ranks(count):
        for name, wanted in alone["norm"].items():
            np.testing.assert_allclose(found["norm"][name], wanted, 1e-5, 1e-5, err_msg=name)


def test_only_plain_batch_norms_are_synchronised(monkeypatch: pytest.MonkeyPatch) -> None:
    """With their own tensors; a class that does more stays as it is."""

    class Active(nn.BatchNorm2d):
        pass

    monkeypatch.setattr(world(), "size", 2)
    plain, other = nn.BatchNorm2d(2), Active(2)
    made = synchronised(nn.Sequential(nn.Sequential(plain), other).eval())
    found = made.get_submodule("0.0")
    assert isinstance(found, SyncNorm) and not found.training
    assert found.weight is plain.weight and found.running_var is plain.running_var
    assert made[1] is other


# Parts and features


def features() -> Arrays:
    """Features of five photos and of one, in batches of two."""
    embedder = replace(CHEAP, batch_size=2)
    photos = [photo(str(n), n) for n in range(5)]
    found = {str(n): embed_together(photos[:n], embedder) for n in (5, 1)}
    return {name: rows.numpy() for name, rows in found.items()}


@pytest.mark.parametrize("count", [2, 3])
def test_features_are_those_of_one_process(count: int) -> None:
    """Even if some processes have nothing to embed."""
    (alone,) = of_ranks(1)
    for found in of_ranks(count):
        for name, wanted in alone["features"].items():
            np.testing.assert_array_equal(found["features"][name], wanted)


@given(st.integers(0, 50), st.integers(1, 9))
def test_parts_cover_everything_once(count: int, size: int) -> None:
    """In order, and as equal as possible."""
    parts = []
    for rank in range(size):
        group = Group()
        group.rank, group.size = rank, size
        parts.append(list(group.part(range(count))))
    assert [item for part in parts for item in part] == list(range(count))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def refused() -> list[str]:
    """Errors for batches with fewer images than processes."""
    if world().size < 3:
        return []
    feed = open_feed(examples([0, 1]), 8, CPU, "ram", 1)
    with pytest.raises(TrainingError) as small_batch:
        next(feed.epoch(4, 0, 0))
    with pytest.raises(UsageError) as small_setting:
        check_ranks("--train.batch-size", 1)
    return [str(small_batch.value), str(small_setting.value)]


def test_every_process_needs_an_image_of_each_batch() -> None:
    for found in of_ranks(3):
        batch, setting = found["refused"]
        assert "a batch has 2 images, too few for 3 processes" in batch
        assert "--train.batch-size 1: too few for 3 processes" in setting


def filled() -> tuple[list[bytes], list[dict[str, Any]]]:
    """The images that a search stores, and its candidates, which only rank 0 has."""
    settings = MemorySettings("2/class", qualities=(90, 50), epsilon=1e9)
    held = Exemplars(settings, coloured_stream(2, images=6))
    held.store(0, replace(CHEAP, batch_size=2), Clock())
    return stored(held.memory), [candidate.to_json() for candidate in held.found.candidates]


@pytest.mark.parametrize("count", [2, 3])
def test_a_search_finds_what_one_process_finds(count: int) -> None:
    """R_q to the bit, and the same images, which every process gets."""
    images, candidates = of_ranks(1)[0]["filled"]
    assert len(images) > 4 and candidates[1]["volume_ratio"] not in (None, 1.0)
    assert of_ranks(count)[0]["filled"] == (images, candidates)
    assert all(found["filled"][0] == images for found in of_ranks(count))


# Whole runs


def learned(name: str, keeper: Keeper | None = None) -> dict[str, Any]:
    """Numbers, weights and memory of a small run of two phases, as this process has them."""
    WIDTHS["resnet18-narrow"] = 2
    run = small_run(
        name,
        *OPTIONS.get(name, ()),
        keeper=keeper,
        stream=coloured_stream(2, 1, images=6),
        size=16,
        memory={"budget": "2/class", "quality": "auto", "qualities": (90,), "epsilon": 1e9},
        train=TrainSettings(epochs=1, batch_size=5, brightness=0.1, match=0.5),
    )
    return outcome(run)


def resumed() -> tuple[Any, Any]:
    """Outcomes of a run and of its resumption after the first phase; rank 0 has the files."""
    keeper = Remembers()
    whole = learned("lucir", keeper if world().rank == 0 else None)
    again = learned("lucir", Remembers(saved=keeper.saved[:1]) if world().rank == 0 else None)
    return whole, again


def detected(name: str) -> dict[str, Any]:
    """The same for a detector."""
    setattr(mrdc.detection.learner, "build_detector", tiny_detector)  # noqa: B010
    settings = small(name, options=SCENE_METHODS[name])
    return outcome(SceneRun(replace(settings, train=replace(settings.train, match=0.5))))


def outcome(run: Phases) -> dict[str, Any]:
    results = run.run()
    held = run.learner.exemplars
    memory = None if held is None else held.memory
    return {
        "numbers": numbers(results),
        "weights": digest(run.learner.checkpoint().tensors["model"]),
        "memory": stored(memory),
        "bytes": (0, 0) if memory is None else (memory.nbytes, memory.budget_bytes),
    }


def runs(*names: str) -> dict[str, Any]:
    return {name: detected(name) if name in SCENE_METHODS else learned(name) for name in names}


def check_agreement(first: dict[str, Any], second: dict[str, Any]) -> None:
    """Check that all numbers, weights and images agree; there is one memory, within one budget."""
    assert first == second
    used, budget = first["bytes"]
    assert used <= budget
    if first["memory"]:
        assert 0 < used == first["numbers"][-1]["memory"]["bytes"]


@pytest.mark.parametrize("name", QUICK)
def test_processes_agree_after_a_run(name: str) -> None:
    check_agreement(*(found["runs"][name] for found in of_ranks(2)))


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in (*METHODS, *SCENE_METHODS) if n not in QUICK])
def test_processes_agree_after_a_run_of_any_method(name: str) -> None:
    check_agreement(*(found[name] for found in together(2, runs, name)))


def test_every_process_resumes_from_the_files_of_rank_0() -> None:
    assert all(found["resumed"] == found["runs"]["lucir"] for found in of_ranks(2))


def test_a_killed_process_ends_the_run_and_one_process_resumes_it(tmp_path: Path, cli: Cli) -> None:
    """One message, after the last epoch; the memory is within its budget."""
    photos, out = make_photos(tmp_path / "photos", classes=4, images=8), tmp_path / "run"
    arguments = ["run", "lucir-mrdc", "--data", str(photos), "--phases", "1", "--out", str(out)]
    arguments += [*SMALL, "--train.epochs", "6", "--checkpoint-seconds", "1000"]
    run = Together(2, command, arguments, tmp_path)
    try:
        until(lambda: (out / "results.jsonl").exists() and epochs(out, 0) >= 2)
        run.processes[1].kill()
        assert run.pipes[0].poll(30) and run.pipes[0].recv() == 2
    finally:
        run.end()
    lines = [(tmp_path / f"{rank}.err").read_text().splitlines() for rank in (0, 1)]
    said = [line for line in lines[0] + lines[1] if line.startswith("mrdc: ")]
    assert said == ["mrdc: another process of this run has ended: run the same command to resume"]
    found = cli.json(*arguments)
    (resumed,) = (event for event in events(out) if event.get("event") == "resume")
    assert resumed["epoch"] >= 2 and found["ranks"] == 1
    assert [event["ranks"] for event in events(out) if event.get("event") == "start"] == [2, 1]
    assert found["memory"]["bytes"] <= found["memory"]["budget_bytes"]
    assert audit(out / "memory-01.mrdc").problems == []


@pytest.mark.slow
def test_a_full_disk_ends_all_processes_with_one_message(tmp_path: Path) -> None:
    """Rank 0 cannot write its network because file sizes are limited; without the limit it can."""
    photos, out = make_photos(tmp_path / "photos", classes=4, images=8), tmp_path / "run"
    command = [sys.executable, "-m", "mrdc", "run", "lucir-mrdc", "--data", str(photos)]
    command += ["--phases", "1", "--out", str(out), *SMALL, "--no-cache", "--nproc", "2"]

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    full = subprocess.run(command, preexec_fn=limited, capture_output=True, text=True, timeout=120)
    said = [line for line in full.stderr.splitlines() if line.startswith("mrdc: ")]
    assert full.returncode == 2 and len(said) == 1
    assert "phase-00.safetensors: cannot be written (File too large)" in said[0]
    assert subprocess.run(command, capture_output=True, timeout=120).returncode == 0
    assert audit(out / "memory-01.mrdc").problems == []
