"""Tables of runs: what was run, results, budgets and detection."""

from collections.abc import Sequence

from mrdc._utils.errors import MemoryFileError
from mrdc._utils.text import learned
from mrdc.data.images import some_of
from mrdc.memory.file import MemoryFile
from mrdc.report.figures import Grid, Part, Section
from mrdc.report.runs import Group, Json, RunRecord, by_seed, named_data, with_spread
from mrdc.training.advice import advice

HELD_OUT = "no test images; accuracy is measured on training images that were set aside"
CLASSES = "Averaged: mean over all phases. Forgetting: earlier tasks now minus their best."
PSEUDO_LABELS = "Pseudo labels; compared with the true boxes at an IoU of 0.5 where they are known."
PSEUDO = {  # columns, and where a phase's report has them
    "labels per image": ("labels_per_image", "pseudo_labels_per_image"),
    "precision %": ("precision",),
    "recall %": ("recall",),
    "AP": ("ap",),
    "AP of the student": ("student_ap",),
}


def what_was_run(runs: Sequence[RunRecord]) -> Section:
    """Settings and state of each run; the caption has those that are the same for all."""
    columns = list(zip(*Grid.of([_run(run) for run in runs]).rows, strict=True))
    shared = [column for column in columns[2:] if len(runs) > 1 and len(set(column[1:])) == 1]
    rows = [list(row) for row in zip(*(c for c in columns if c not in shared), strict=True)]
    values = ", ".join(f"{head} {value}" for head, value, *_ in shared)
    grid = Grid(rows, f"All runs: {values}." if values else "")
    notes = [f"{run.path}: {problem}." for run in runs for problem in run.problems]
    for run in runs:
        if run.result is not None:
            remarks = ["synthetic images, built in"] if run.result.synthetic else []
            remarks += [HELD_OUT] if run.result.held_out else []
            remarks += [learned(run.result.in_training)] if run.result.in_training else []
            notes += [f"{run.data}: {what}." for what in remarks]
            notes += [f"{run.path.name}: {what}." for what in advice(run.result)]
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


def compared(runs: Sequence[RunRecord]) -> Section:
    """Means with deviations over seeds, next to the paper's numbers."""
    section = Section("table", "Results")
    groups = by_seed(runs)
    for detects, caption in ((False, CLASSES), (True, "After the last phase.")):
        these = [group for group in groups if group.first.detects == detects]
        rows = [name | _result(g) for name, g in zip(named_data(these), these, strict=True)]
        section.parts += [Grid.of(rows, caption)] if rows else []
    if sum(len(group.runs) for group in groups) < len(runs):
        section.parts.append("A seed that was run more than once counts once.")
    return section


def _result(group: Group) -> Json:
    found: Json = {"seeds": len(group.runs)}
    papers = {run.result.paper if run.result else None for run in group.runs}
    number = papers.pop()
    paper = "" if papers or number is None else f"{number:.2f}"  # if all runs have the same
    if group.first.detects:
        found |= {"AP": group.text(lambda run: run.last.ap), "the paper": paper}
        found["AP50"] = group.text(lambda run: run.last.ap50)
        found["AP75"] = group.text(lambda run: run.last.ap75)
    else:
        found |= {"averaged %": group.text(lambda run: run.average), "the paper %": paper}
        found["last %"] = group.text(lambda run: run.accuracy[-1])
        results = [run.result for run in group.runs if run.result]
        found["forgetting"] = with_spread([result.average_forgetting for result in results])
        lost = [result.initial_forgetting for result in results]
        found["of first classes"] = with_spread(lost)
    return found | {"images held": f"{group.mean(lambda run: run.last.memory.items):,.0f}"}


def budgets(runs: Sequence[RunRecord]) -> Section:
    """Each budget three ways: bytes, originals, images held; means over seeds."""
    rows = []
    for group in [group for group in by_seed(runs) if group.first.replays]:
        allowed = group.mean(lambda run: run.last.memory.budget_bytes)
        added = group.mean(lambda run: run.last.memory.parameter_bytes or 0)
        file = memory_file(group.first)
        original = file.meta["budget"]["original_bytes"] if file else None
        rows.append(
            {
                "run": group.label,
                "bytes allowed": f"{allowed:,.0f}",
                "bytes used": f"{group.mean(lambda run: run.last.memory.bytes):,.0f}",
                "in originals": f"{allowed / original:,.1f}" if original else "",
                "images held": f"{group.mean(lambda run: run.last.memory.items):,.0f}",
                "parameters added, bytes": f"{added:,.0f}" if added else "",
            }
        )
    caption = "After the last phase; means over seeds."
    return Section("budget", "The budget, three ways", [Grid.of(rows, caption)] if rows else [])


def memory_file(run: RunRecord) -> MemoryFile | None:
    """The memory of a run, if there is one that can be read."""
    found = max(run.path.glob("memory-*.mrdc"), default=None)
    try:
        return None if found is None else MemoryFile(found)
    except MemoryFileError:
        return None


def detection(runs: Sequence[RunRecord]) -> Section:
    """AP by class, quality of the pseudo labels, and warnings; means over seeds."""
    scores: list[Json] = []
    labels: list[Json] = []
    warnings: dict[str, list[str]] = {}  # by what they say: the groups they are about
    for group in [group for group in by_seed(runs) if group.first.detects]:
        classes = [run.last.by_class or {} for run in group.runs]
        names = dict.fromkeys(name for by_class in classes for name in by_class)
        means = {name: with_spread([by_class.get(name) for by_class in classes]) for name in names}
        scores.append({"run": group.label, **means})
        for phases in zip(*(run.phases for run in group.runs), strict=False):
            row: Json = {"run": group.label, "phase": phases[0].phase}
            for head, keys in PSEUDO.items():
                known = [phase.report | {"ap": phase.ap} for phase in phases]
                row[head] = with_spread([next((r[k] for k in keys if k in r), None) for r in known])
            labels += [row] if row["labels per image"] else []
            texts = dict.fromkeys(phase.report.get("warning") for phase in phases)
            for text in filter(None, texts):
                warnings.setdefault(f"phase {row['phase']}: {text}.", []).append(group.label)
    parts: list[Part] = [Grid.of(scores, "AP by class after the last phase.")] if scores else []
    parts += [Grid.of(labels, PSEUDO_LABELS)] if labels else []
    parts += [f"{some_of(labels)}; {text}" for text, labels in warnings.items()]
    return Section("detection", "Detection", parts)
