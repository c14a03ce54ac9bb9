"""Run folders made without training."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from mrdc.data.textures import textures
from mrdc.memory.replay import ReplayMemory
from mrdc.nn.checkpoint import Architecture, Checkpoint, write_checkpoint
from mrdc.training.results import MemorySummary, PhaseResult, RunResult

PARTS = {"train": 4.0, "evaluate": 1.0, "prepare": 0.25}
HELD = MemorySummary(90, 100, 7)
NUMBERS: dict[str, Any] = {"accuracy": [], "average_incremental_accuracy": 0.0, "seconds": 12.0}
NUMBERS |= {"average_forgetting": -3.0, "quality": 50, "mean_choice": 50, "paper": 61.0, "seed": 0}
NUMBERS |= {"method": "lucir", "data": "photos", "budget": "8/class", "quality_rule": "auto"}
NUMBERS |= {"commit": "abc1234, then def5678"}
RESULT = RunResult(memory=HELD, parts=PARTS, trained_images=160, **NUMBERS)


def phase(number: int, accuracy: float, **more: Any) -> PhaseResult:
    candidates = [
        {"codec": "jpeg" if q else "original", "quality": q, "quantity": 5, "volume_ratio": ratio}
        for q, ratio in [(None, 1.0), (50, 1.2), (10, 9.0)]
    ]
    usual: dict[str, Any] = {"codec": "jpeg", "quality": 50, "memory": HELD, "seconds": 6.0}
    usual |= {"trained_images": 80}
    usual |= {"parts": PARTS, "candidates": candidates, "confusion": [[80, 20], [30, 70]]}
    return PhaseResult(phase=number, accuracy=accuracy, **usual | more)


def made(folder: Path, curve: tuple[float, ...] = (60.0, 50.0), **more: Any) -> Path:
    """A run folder: settings in `more`, besides name, quality, done, events and result."""
    quality, name = more.pop("quality", 50), more.pop("name", "lucir-mrdc")
    done, events = more.pop("done", True), more.pop("events", None)
    scores = {
        "accuracy": list(curve),
        "average_incremental_accuracy": sum(curve) / (len(curve) or 1),
    }
    result = replace(RESULT, name=name, **scores | more.pop("result", {}))
    memory: dict[str, Any] = {"budget": "8/class", "quality": "auto", "qualities": [50, 10]}
    memory |= {"codec": ["jpeg"], **more.pop("memory", {})}
    settings = {"data": "photos", "method": "lucir", "phases": 1, "seed": 0, "memory": memory}
    about = {"name": name, "commit": "abc1234", "cores": 2, "gpu": None, "torch": "2.0"}
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"settings": settings | more, **about}))
    phases = events or [phase(n, value, quality=quality) for n, value in enumerate(curve)]
    lines = [{"event": "start"}, *({"event": "phase", **one.to_json()} for one in phases)]
    lines += [result.to_json()] if done else []
    (folder / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def grid(folder: Path, scores: dict[str, list[float]], **more: Any) -> list[Path]:
    """Runs that differ in quality, one for the score of each seed."""
    runs = []
    for quality, values in scores.items():
        stored = None if quality == "original" else int(quality)
        for seed, score in enumerate(values):
            given = {"seed": seed, "quality": stored, "memory": {"quality": quality}}
            runs.append(made(folder / f"{quality}-{seed}", (score, score), **given, **more))
    return runs


def scenes(folder: Path, ap: float, report: dict[str, Any], **more: Any) -> Path:
    """A run of a detector, with a single phase."""
    by_class = more.pop("by_class", {"car": ap, "bus": None})
    found = phase(0, ap, ap=ap, ap50=55.0, ap75=20.0, by_class=by_class, report=report)
    return made(folder, events=[found], detector="lite0", **more)


def with_memory(folder: Path) -> Path:
    """A run folder with a memory of textures, and a network."""
    run = made(folder, data="textures", size=64)
    images = textures(3, 8)
    memory = ReplayMemory("20kB", "jpeg", 50, class_names=dict(enumerate(images.classes)))
    memory.add(dict(enumerate(images.photos)))
    memory.save(run / "memory-01.mrdc")
    what = Architecture("lucir", "SplitCosine", 2, "3x3", 32, (2, 1))
    with torch.random.fork_rng(devices=[]):
        net = what.build()
    tensors = {"model": dict(net.state_dict())}
    write_checkpoint(run / "phase-01.safetensors", Checkpoint(what, tensors, {"phase": 1}))
    return run


def change_data(run: Path, data: Path) -> None:
    config = json.loads((run / "config.json").read_text())
    config["settings"]["data"] = str(data)
    (run / "config.json").write_text(json.dumps(config))
