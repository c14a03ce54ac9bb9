"""Tables about runs; a part without data is left out."""

from collections.abc import Sequence
from statistics import mean

from mrdc._utils.errors import MemoryFileError
from mrdc._utils.text import learned
from mrdc.memory.file import MemoryFile
from mrdc.report.figures import Table
from mrdc.report.parts import Grid, Part, Section
from mrdc.report.runs import Group, Json, Run, grouped

REMARKS = {
    "synthetic": "synthetic images, built in",
    "held_out": "no test images of their own, so accuracy is that of training images set aside",
}


def percent(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def what_was_run(runs: Sequence[Run]) -> Section:
    head: list[object] = ["run", "folder", "data", "phases", "seed", "budget", "quality", "state"]
    rows: Table = [[*head, "seconds", "commit", "made with"]]
    notes: list[Part] = []
    for run in runs:
        alike = run.detects or run.settings.get("first") == "equal"
        wanted = int(run.settings.get("phases", 0)) + (0 if alike else 1)
        going = f"phase {len(run.phases)} of {wanted} is going, or was stopped"
        where = run.about.get("gpu") or f"{run.about.get('cores', '?')} CPU cores"
        torch = str(run.about.get("torch", "?")).partition("+")[0]
        remembers = not run.phases or run.phases[-1]["memory"].get("budget_bytes")
        rows.append(
            [
                run.name, run.path.name, run.data, run.settings.get("phases"),
                run.settings.get("seed"),
                *(run.memory.get(key, "") if remembers else "" for key in ("budget", "quality")),
                "finished" if run.result else going, f"{run.seconds:.0f}",
                (run.result or run.about).get("commit") or "", f"{where}, torch {torch}",
            ]
        )  # fmt: skip
        notes += [f"{run.path}: {problem}." for problem in run.problems]
    results = [(run.data, run.result) for run in runs if run.result]
    for key, what in REMARKS.items():
        of = dict.fromkeys(data for data, result in results if result.get(key))
        notes += [f"{', '.join(of)}: {what}."] if of else []
    notes += dict.fromkeys(
        f"{data}: {learned(ids)}." for data, result in results if (ids := result.get("in_training"))
    )
    if len({run.data for run in runs}) > 1:
        notes.append("These runs are on different data: compare within one data set only.")
    return Section("runs", "What was run", [Grid(*told_once(rows)), *notes])


def told_once(rows: Table) -> tuple[Table, str]:
    """A table without columns that say the same of all runs, and a line that says it."""
    columns = list(zip(*rows, strict=True))
    shared = [column for column in columns[2:] if len(rows) > 2 and len(set(column[1:])) == 1]
    kept = [list(row) for row in zip(*(c for c in columns if c not in shared), strict=True)]
    alike = ", ".join(f"{head} {value}" for head, value, *_ in shared if value not in ("", None))
    return kept, f"All of them: {alike}." if alike else ""


def compared(runs: Sequence[Run]) -> Section | None:
    """Averages with deviations over seeds, beside the paper's."""
    parts: list[Part] = []
    classes = [group for group in grouped(runs) if group.first.phases and not group.first.detects]
    if classes:
        rows: Table = [["run", "data", "runs", "averaged %", "the paper %", "last %", "forgetting",
                        "images held"]]  # fmt: skip
        for group in classes:
            done = group.runs
            results = [run.result for run in done if run.result]
            forgetting = [result["average_forgetting"] for result in results]
            rows.append(
                [
                    group.label, group.first.data, len(done),
                    group.mean([run.average for run in done]),
                    percent(published(group)),
                    group.mean([run.accuracy[-1] for run in done]),
                    group.mean(forgetting) if forgetting else "",
                    f"{mean(run.phases[-1]['memory']['items'] for run in done):,.0f}",
                ]
            )  # fmt: skip
        told = "Averaged: the mean over all phases. Forgetting: earlier tasks now minus their best."
        parts.append(Grid(rows, told))
    scenes = [group for group in grouped(runs) if group.first.phases and group.first.detects]
    if scenes:
        rows = [["run", "data", "runs", "AP", "the paper", "AP50", "AP75", "images held"]]
        for group in scenes:
            last = [run.phases[-1] for run in group.runs]
            rows.append(
                [
                    group.label, group.first.data, len(last),
                    group.mean([phase["ap"] for phase in last]),
                    percent(published(group)),
                    group.mean([phase["ap50"] for phase in last]),
                    group.mean([phase["ap75"] for phase in last]),
                    f"{mean(phase['memory']['items'] for phase in last):,.0f}",
                ]
            )  # fmt: skip
        parts.append(Grid(rows, "After the last phase."))
    if parts and sum(len(group.runs) for group in grouped(runs)) < len(runs):
        parts.append("A seed that was run more than once counts once.")
    return Section("table", "Results", parts) if parts else None


def published(group: Group) -> float | None:
    """The paper's number, if the runs that tell one (older versions did not) agree."""
    told = {run.result["paper"] for run in group.runs if run.result and run.result.get("paper")}
    return told.pop() if len(told) == 1 else None


def budgets(runs: Sequence[Run]) -> Section | None:
    """Every budget three ways: bytes, originals, images held."""
    rows: Table = [["run", "bytes allowed", "bytes used", "in originals", "images held",
                    "parameters added, bytes"]]  # fmt: skip
    for group in grouped(runs):
        run = group.first
        held = run.phases[-1]["memory"] if run.phases else {}
        if not held.get("budget_bytes"):
            continue
        original = _original_bytes(run)
        in_originals = f"{held['budget_bytes'] / original:,.1f}" if original else ""
        added = held.get("parameter_bytes")
        rows.append([group.label, f"{held['budget_bytes']:,}", f"{held['bytes']:,}", in_originals,
                     f"{held['items']:,}", f"{added:,}" if added else ""])  # fmt: skip
    if len(rows) == 1:
        return None
    return Section("budget", "The budget, three ways", [Grid(rows, "After the last phase.")])


def _original_bytes(run: Run) -> float | None:
    """Mean bytes of an original, which the memory file knows."""
    file = memory_file(run)
    return None if file is None else file.meta["budget"]["original_bytes"]


def memory_file(run: Run) -> MemoryFile | None:
    """The memory of a run, if it has one that can be read."""
    found = max(run.path.glob("memory-*.mrdc"), default=None)
    try:
        return None if found is None else MemoryFile(found)
    except MemoryFileError:
        return None


def detection(runs: Sequence[Run]) -> Section | None:
    """AP by class, what pseudo labels were worth, and warnings; means over seeds."""
    groups = [group for group in grouped(runs) if group.first.phases and group.first.detects]
    if not groups:
        return None
    last = [[run.phases[-1]["by_class"] for run in group.runs] for group in groups]
    classes = list(dict.fromkeys(name for found in last for name in found[0]))
    rows: Table = [["run", *classes]]
    labels: Table = [["run", "phase", "labels an image", "precision %", "recall %", "AP",
                      "AP of the student"]]  # fmt: skip
    warnings: list[Part] = []
    for group, found in zip(groups, last, strict=True):
        rows.append([group.label, *(known(group, [f.get(c) for f in found]) for c in classes)])
        for phases in zip(*(run.phases for run in group.runs), strict=False):
            number = phases[0]["phase"]
            worth = list(zip(*map(label_worth, phases), strict=True))
            if any(count is not None for count in worth[0]):
                labels.append([group.label, number, *(known(group, values) for values in worth)])
            told = dict.fromkeys(phase.get("report", {}).get("warning") for phase in phases)
            warnings += [f"{group.label}, phase {number}: {what}." for what in told if what]
    section = Section("detection", "Detection", [Grid(rows, "AP by class after the last phase.")])
    if len(labels) > 1:
        told_of = "Pseudo labels; where the truth is known, against it at an IoU of 0.5."
        section.parts.append(Grid(labels, told_of))
    section.parts += warnings
    return section


def label_worth(phase: Json) -> list[float | None]:
    """Pseudo labels an image, their precision and recall, AP and that of the student."""
    report = phase.get("report", {})
    count = report.get("labels_per_image", report.get("pseudo_labels_per_image"))
    return [count, report.get("precision"), report.get("recall"), phase["ap"],
            report.get("student_ap")]  # fmt: skip


def known(group: Group, values: Sequence[float | None]) -> str:
    """The mean of those that are known, with the deviation; nothing where none is."""
    there = [value for value in values if value is not None]
    return group.mean(there) if there else ""
