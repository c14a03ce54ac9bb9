"""Tables of runs: what was run, results, budgets and detection."""

from collections.abc import Sequence

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
    groups = group_by_seed(runs)
    classes = [_classes(group) for group in groups if not group.first.detects]
    scenes = [_scenes(group) for group in groups if group.first.detects]
    parts: list[Part] = [Grid.of(classes, CLASSES)] if classes else []
    parts += [Grid.of(scenes, "After the last phase.")] if scenes else []
    if sum(len(group.runs) for group in groups) < len(runs):
        parts.append("A seed that was run more than once counts once.")
    return Section("table", "Results", parts)


def _classes(group: Group) -> Json:
    return {
        "run": group.label,
        "data": group.first.data,
        "seeds": len(group.runs),
        "averaged %": group.text(lambda run: run.average),
        "the paper %": published(group),
        "last %": group.text(lambda run: run.accuracy[-1]),
        "forgetting": with_spread(
            [run.result.average_forgetting for run in group.runs if run.result]
        ),
        "images held": f"{group.mean(lambda run: run.last.memory.items):,.0f}",
    }


def _scenes(group: Group) -> Json:
    return {
        "run": group.label,
        "data": group.first.data,
        "seeds": len(group.runs),
        "AP": group.text(lambda run: run.last.ap),
        "the paper": published(group),
        "AP50": group.text(lambda run: run.last.ap50),
        "AP75": group.text(lambda run: run.last.ap75),
        "images held": f"{group.mean(lambda run: run.last.memory.items):,.0f}",
    }


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
    section = Section("detection", "Detection")
    groups = [group for group in group_by_seed(runs) if group.first.detects]
    if not groups:
        return section
    names = list(
        dict.fromkeys(n for g in groups for run in g.runs for n in run.last.by_class or {})
    )
    scores = [{"run": group.label} | class_scores(group, names) for group in groups]
    labels: list[Json] = []
    warnings: list[Part] = []
    for group in groups:
        for phases in zip(*(run.phases for run in group.runs), strict=False):
            where = {"run": group.label, "phase": phases[0].phase}
            worth = [pseudo_labels(phase) for phase in phases]
            if any(values["labels per image"] is not None for values in worth):
                known = {key: [w[key] for w in worth if w[key] is not None] for key in worth[0]}
                labels.append(where | {key: with_spread(values) for key, values in known.items()})
            told = dict.fromkeys(phase.report.get("warning") for phase in phases)
            warnings += [f"{group.label}, phase {where['phase']}: {text}." for text in told if text]
    section.parts.append(Grid.of(scores, "AP by class after the last phase."))
    section.parts += [Grid.of(labels, PSEUDO_LABELS)] if labels else []
    section.parts += warnings
    return section


def class_scores(group: Group, names: Sequence[str]) -> Json:
    found = [run.last.by_class or {} for run in group.runs]
    known = {name: [f[name] for f in found if f.get(name) is not None] for name in names}
    return {
        name: with_spread([v for v in values if v is not None]) for name, values in known.items()
    }


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
