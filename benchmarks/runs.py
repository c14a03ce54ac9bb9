"""Committed runs: results/runs/LABEL.jsonl has a line for each, with settings, phases and result.

`collect.py` writes these lines from run folders. Runs that were stopped have no result.
"""

import json
from functools import cache
from pathlib import Path

from common import RESULTS, Row
from mrdc.report.runs import RunRecord, in_grid_order
from mrdc.training.results import PhaseResult, RunResult

FOLDER = RESULTS / "runs"


@cache
def runs_of(label: str) -> list[Row]:
    """All runs of a label, in the order they were collected; none if there is no such file."""
    file = FOLDER / f"{label}.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


@cache
def results(*labels: str) -> list[Row]:
    """Results of the finished runs of some labels (by default all), with their labels."""
    labels = labels or tuple(sorted(path.stem for path in FOLDER.glob("*.jsonl")))
    found = [(label, run["result"]) for label in labels for run in runs_of(label)]
    return [{**result, "label": label} for label, result in found if result]


@cache
def records(*labels: str) -> list[RunRecord]:
    """All runs of some labels, as `mrdc report` reads them from folders."""
    return in_grid_order([record(label, run) for label in labels for run in runs_of(label)])


def record(label: str, run: Row) -> RunRecord:
    about = dict(run["config"])
    settings = about.pop("settings")
    phases = [PhaseResult.from_json(phase) for phase in run["phases"]]
    result = RunResult.from_json(run["result"]) if run["result"] else None
    return RunRecord(Path(label, run["folder"]), settings, about, phases, result)
