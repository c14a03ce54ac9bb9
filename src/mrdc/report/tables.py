"""Tables of runs: what was run, results, budgets and detection."""

from collections.abc import Sequence
from typing import Any

from mrdc._utils.errors import MemoryFileError
from mrdc._utils.text import learned
from mrdc.memory.file import MemoryFile
from mrdc.report.figures import Table
from mrdc.report.groups import Group, group_by_seed, with_spread
from mrdc.report.parts import Grid, Part, Section
from mrdc.report.runs import Json, RunRecord
from mrdc.training.results import PhaseResult

HELD_OUT = "no test images of their own; accuracy is on training images that were set aside"
CLASSES = "Averaged: mean over all phases. Forgetting: earlier tasks now minus their best."
PSEUDO_LABELS = "Pseudo labels; compared with the true boxes at an IoU of 0.5 where they are known."


def what_was_run(runs: Sequence[RunRecord]) -> Section:
    grid = Grid(*without_shared(Grid.of([_run(run) for run in runs]).rows))
    notes = [f"{run.path}: {problem}." for run in runs for problem in run.problems]
    for run in runs:
        if run.result is not None:
            told = ["synthetic images, built in"] if run.result.synthetic else []
            told += [HELD_OUT] if run.result.held_out else []
            told += [learned(run.result.in_training)] if run.result.in_training else []
            notes += [f"{run.data}: {what}." for what in told]
    if len({run.data for run in runs}) > 1:
        notes.append("These runs use different data: compare within one data set only.")
    return Section("runs", "What was run", [grid, *dict.fromkeys(notes)])


def _run(run: RunRecord) -> Json:
    equal = run.detects or run.settings.get("first") == "equal"
    wanted = int(run.settings["phases"]) + (0 if equal else 1)
    stopped = f"unfinished: {len(run.phases)} of {wanted} phases"
    where = run.about.get("gpu") or f"{run.about.get('cores', '?')} CPU cores"
    memory = run.memory if run.replays or not run.phases else {}
    return {
        "run": run.name,
        "folder": run.path.name,
        "data": run.data,
        "phases": run.settings["phases"],
        "seed": run.settings["seed"],
        "budget": memory.get("budget", ""),
        "quality": memory.get("quality", ""),
        "state": "finished" if run.result else stopped,
        "seconds": f"{run.seconds:.0f}",
        "commit": (run.result.commit if run.result else run.about.get("commit")) or "",
        "made with": f"{where}, torch {str(run.about.get('torch', '?')).partition('+')[0]}",
    }


def without_shared(rows: Table) -> tuple[Table, str]:
    """A table without columns that are the same for all runs, and a caption with their values."""
    columns = list(zip(*rows, strict=True))
    shared = [column for column in columns[2:] if len(rows) > 2 and len(set(column[1:])) == 1]
    kept = [list(row) for row in zip(*(c for c in columns if c not in shared), strict=True)]
    values = ", ".join(f"{head} {value}" for head, value, *_ in shared)
    return kept, f"All runs: {values}." if values else ""


def compared(runs: Sequence[RunRecord]) -> Section:
    """Means with deviations over seeds, next to the paper's numbers."""
    section = Section("table", "Results")
    groups = group_by_seed(runs)
    for detects, caption in ((False, CLASSES), (True, "After the last phase.")):
        rows = [_result(group) for group in groups if group.first.detects == detects]
        section.parts += [Grid.of(rows, caption)] if rows else []
    if sum(len(group.runs) for group in groups) < len(runs):
        section.parts.append("A seed that was run more than once counts once.")
    return section


def _result(group: Group) -> Json:
    found: Json = {"run": group.label, "data": group.first.data, "seeds": len(group.runs)}
    if group.first.detects:
        found["AP"] = group.text(lambda run: run.last.ap)
        found["the paper"] = published(group)
        found["AP50"] = group.text(lambda run: run.last.ap50)
        found["AP75"] = group.text(lambda run: run.last.ap75)
    else:
        found["averaged %"] = group.text(lambda run: run.average)
        found["the paper %"] = published(group)
        found["last %"] = group.text(lambda run: run.accuracy[-1])
        results = [run.result for run in group.runs if run.result]
        found["forgetting"] = with_spread([result.average_forgetting for result in results])
    return found | {"images held": f"{group.mean(lambda run: run.last.memory.items):,.0f}"}


def published(group: Group) -> str:
    """The paper's number, if all runs have the same."""
    found = {run.result.paper if run.result else None for run in group.runs}
    number = found.pop()
    return "" if found or number is None else f"{number:.2f}"


def budgets(runs: Sequence[RunRecord]) -> Section:
    """Each budget three ways: bytes, originals, images held; means over seeds."""
    rows = [_budget(group) for group in group_by_seed(runs) if group.first.replays]
    caption = "After the last phase; means over seeds."
    return Section("budget", "The budget, three ways", [Grid.of(rows, caption)] if rows else [])


def _budget(group: Group) -> Json:
    allowed = group.mean(lambda run: run.last.memory.budget_bytes)
    added = group.mean(lambda run: run.last.memory.parameter_bytes or 0)
    file = memory_file(group.first)
    original = file.meta["budget"]["original_bytes"] if file else None
    return {
        "run": group.label,
        "bytes allowed": f"{allowed:,.0f}",
        "bytes used": f"{group.mean(lambda run: run.last.memory.bytes):,.0f}",
        "in originals": f"{allowed / original:,.1f}" if original else "",
        "images held": f"{group.mean(lambda run: run.last.memory.items):,.0f}",
        "parameters added, bytes": f"{added:,.0f}" if added else "",
    }


def memory_file(run: RunRecord) -> MemoryFile | None:
    """The memory of a run, if there is one that can be read."""
    found = max(run.path.glob("memory-*.mrdc"), default=None)
    try:
        return None if found is None else MemoryFile(found)
    except MemoryFileError:
        return None


def detection(runs: Sequence[RunRecord]) -> Section:
    """AP by class, quality of the pseudo labels, and warnings; means over seeds."""
    groups = [group for group in group_by_seed(runs) if group.first.detects]
    scores: list[Json] = []
    labels: list[Json] = []
    warnings: list[Part] = []
    for group in groups:
        classes = [run.last.by_class or {} for run in group.runs]
        scores.append({"run": group.label, **averaged(classes)})
        for phases in zip(*(run.phases for run in group.runs), strict=False):
            where = {"run": group.label, "phase": phases[0].phase}
            found = averaged([pseudo_labels(phase) for phase in phases])
            labels += [where | found] if found["labels per image"] else []
            told = dict.fromkeys(phase.report.get("warning") for phase in phases)
            warnings += [f"{group.label}, phase {where['phase']}: {text}." for text in told if text]
    parts: list[Part] = [Grid.of(scores, "AP by class after the last phase.")] if scores else []
    parts += [Grid.of(labels, PSEUDO_LABELS)] if labels else []
    return Section("detection", "Detection", [*parts, *warnings])


def averaged(seeds: Sequence[dict[str, Any]]) -> Json:
    """Means and spreads of values by name."""
    names = dict.fromkeys(name for values in seeds for name in values)
    return {name: with_spread([values.get(name) for values in seeds]) for name in names}


def pseudo_labels(phase: PhaseResult) -> Json:
    """Number, precision and recall of the pseudo labels, and AP of teacher and student."""
    report = phase.report
    return {
        "labels per image": report.get("labels_per_image", report.get("pseudo_labels_per_image")),
        "precision %": report.get("precision"),
        "recall %": report.get("recall"),
        "AP": phase.ap,
        "AP of the student": report.get("student_ap"),
    }
