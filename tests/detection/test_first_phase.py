"""Detectors with one seed that differ only in what they replay share their first phase."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import mrdc.detection.learner
from mrdc.detection.learner import run_scenes
from mrdc.detection.settings import DetectSettings
from mrdc.experiments.folder import RunFolder
from mrdc.nn.checkpoint import last_checkpoint, read_checkpoint
from mrdc.training.results import RunResult
from tests.scenes import SMALL, SceneRun, small, stream, tiny

pytestmark = pytest.mark.usefixtures("seeded")
OPTIONS = {"pseudo-labels": ("threshold=0.0",), "unbiased-teacher": ("threshold=0.0", "carry=1")}
ORIGINAL = replace(SMALL.memory, quality="original")
ARMS: list[dict[str, Any]] = [
    {"replay": "none", "memory": ORIGINAL},
    {"memory": ORIGINAL},
    {"memory": replace(SMALL.memory, quality="50")},
    {"replay": "joint"},
    {"train": replace(SMALL.train, match=0.5)},
]


@pytest.fixture(autouse=True)
def tiny_detectors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mrdc.detection.learner, "build_detector", tiny)


def learned(path: Path, settings: DetectSettings, cache: bool = True) -> tuple[RunResult, set[int]]:
    """The result of a run, and the phases it trained."""
    trained: set[int] = set()

    def note(kind: str, fields: dict[str, Any]) -> None:
        trained.update({fields["phase"]} if kind == "epoch" else ())

    folder = RunFolder(path, {}, {}, cache=cache, listener=note)
    try:
        return run_scenes(settings, stream(settings), folder), trained
    finally:
        folder.close()


def weights(path: Path) -> dict[str, torch.Tensor]:
    file = last_checkpoint(path)
    assert file is not None
    return read_checkpoint(file).tensors["model"]


@pytest.mark.parametrize("method", ["supervised", "pseudo-labels", "unbiased-teacher"])
def test_arms_of_a_seed_share_their_first_phase(method: str, tmp_path: Path) -> None:
    """They have the same AP after it, and the weights of a run that trained it itself."""
    base = small(method, options=OPTIONS.get(method, ()))
    arms = [replace(base, **ARMS[n]) for n in (0, 2)]
    found = [learned(tmp_path / str(n), settings) for n, settings in enumerate(arms)]
    assert [phases for _, phases in found] == [{0, 1}, {1}]
    assert len({result.accuracy[0] for result, _ in found}) == 1
    assert all(result.first_phase_seconds for result, _ in found)
    alone, phases = learned(tmp_path / "alone", arms[1], cache=False)
    assert phases == {0, 1} and alone.ap == found[1][0].ap
    ours, theirs = weights(tmp_path / "1"), weights(tmp_path / "alone")
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_other_first_phases_are_not_shared() -> None:
    """With another seed, method, option, training, size or scenes."""

    def key(settings: DetectSettings = SMALL) -> str | None:
        return SceneRun(settings).learner.first_phase_key()

    others: list[dict[str, Any]] = [{"seed": 1}, {"method": "pseudo-labels"}, {"labelled": 5}]
    others += [{"train": replace(SMALL.train, steps=5)}, {"short": 32, "long": 48}]
    teacher = small("unbiased-teacher")
    keys = [key(), *(key(replace(SMALL, **changes)) for changes in others), key(teacher)]
    keys.append(key(replace(teacher, options=("weight=2",))))
    assert len(set(keys)) == len(keys) and None not in keys
    assert all(key(replace(SMALL, **changes)) == key() for changes in ARMS)
