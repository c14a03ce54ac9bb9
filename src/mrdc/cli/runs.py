"""Runs, sweeps and studies."""

from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from mrdc._utils.text import count, learned, ratio
from mrdc.cli.tables import clean, remarks, some, table

SCORES = {
    "averaged %": "average_incremental_accuracy", "+-": "deviation", "last %": "last_accuracy",
    "forgetting": "average_forgetting", "initial": "initial_forgetting",
}  # fmt: skip
SCENE_SCORES = {"AP": "ap", "+-": "ap_deviation", "AP50": "ap50", "AP75": "ap75"}


def run(console: Console, found: dict[str, Any]) -> None:
    synthetic = " (synthetic)" if found["synthetic"] else ""
    console.print(f"[bold]{clean(found['name'])}[/bold] on {clean(found['data'])}{synthetic}")
    if found.get("in_training"):  # unknown to runs of old versions
        line = f"[yellow]Warning:[/yellow] {escape(learned(found['in_training']))}"
        console.print(line, soft_wrap=True)
    if "ap" in found:
        rows = table("phase", "AP", "AP50", "AP75")
        for phase, scores in enumerate(zip(found["ap"], found["ap50"], found["ap75"], strict=True)):
            rows.add_row(str(phase), *(f"{score:.2f}" for score in scores))
    else:
        rows = accuracies(found)
    console.print(rows)
    volumes(console, found)
    kept(console, found)
    published = f" (the paper: {found['paper']:.2f})" if found["paper"] else ""
    if "ap" in found:
        classes = ", ".join(f"{clean(name)} {'-' if value is None else f'{value:.1f}'}"
                            for name, value in found["by_class"].items())  # fmt: skip
        console.print(f"AP by class: {classes}")
        console.print(
            f"[bold]AP {found['ap'][-1]:.2f}, AP50 {found['ap50'][-1]:.2f}, AP75 "
            f"{found['ap75'][-1]:.2f}[/bold]{published}, {found['seconds']:.0f} s; "
            f"{clean(found['folder'])}"
        )
        if found.get("dropped"):  # unknown to runs of old versions
            console.print(f"Left out: {count(found['dropped'], 'box')} below 1 pixel")
        return
    console.print(
        f"[bold]Averaged incremental accuracy {found['average_incremental_accuracy']:.2f} %"
        f"[/bold]{published}, forgetting {found['average_forgetting']:.2f} (initial classes "
        f"{found['initial_forgetting']:.2f}), {found['seconds']:.0f} s; {clean(found['folder'])}"
    )
    if found["held_out"]:
        console.print("The data has no test images: some training images were set aside.")
    remarks(console, [], found.get("ignored", []))  # unknown to runs of old versions


def accuracies(found: dict[str, Any]) -> Table:
    """Accuracy after every phase."""
    rows = table("phase", "classes", "accuracy %", "head %")
    seen = 0
    for phase, (size_, score, head) in enumerate(
        zip(found["sizes"], found["accuracy"], found["head_accuracy"], strict=True)
    ):
        seen += size_
        rows.add_row(str(phase), str(seen), f"{score:.2f}", f"{head:.2f}")
    return rows


def volumes(console: Console, found: dict[str, Any]) -> None:
    """R_q after every phase, and what it chose."""
    ratios = found["volume_ratios"]
    if ratios:
        console.print("R_q of each candidate, after every phase, and its mean:")
        columns = table(
            "candidate<", *(str(phase) for phase in range(len(found["accuracy"]))), "mean"
        )
        for row in ratios:
            name = row["codec"] if row["quality"] is None else f"{row['codec']} {row['quality']}"
            values = [*row["by_phase"], row["mean"]]
            columns.add_row(name, *("?" if v is None else ratio(v) for v in values))
        console.print(columns)
        lines = [f"{what}: {why}" for what, why in found.get("left_out", {}).items()]
        if lines:  # unknown to runs of old versions
            console.print(f"Left out of R_q ({len(lines):,}):{some(lines)}")
        if found["quality_rule"] == "auto":
            mean = found["mean_choice"]
            agrees = (found["quality"] or "original") == mean
            console.print(
                f"Chosen after the first phase: {found['quality'] or 'original'}; the mean of all "
                f"phases {'chooses it, too' if agrees else f'would choose {mean}'}."
            )


def kept(console: Console, found: dict[str, Any]) -> None:
    """What the memory holds, what the method adds, and what it reports."""
    held, chosen = found["memory"], found["quality"]
    qualities = chosen if isinstance(chosen, list) else [chosen]  # of every phase, if dynamic
    names = ["originals" if quality is None else f"quality {quality}" for quality in qualities]
    if held["budget_bytes"]:
        console.print(
            f"Memory: {held['items']:,} images as {', '.join(dict.fromkeys(names))}, "
            f"{held['bytes']:,} of {held['budget_bytes']:,} bytes ({clean(found['budget'])})"
        )
    if held.get("parameter_bytes"):
        charged = "charged" if found["strict_budget"] else "not charged"
        console.print(
            f"The method adds {held['parameter_bytes']:,} bytes of parameters to the network "
            f"({charged} to the budget; --memory.strict-budget charges them)"
        )
    for what, value in found["report"].items():
        console.print(clean(f"{what.replace('_', ' ')}: {told(value)}"))


def told(value: Any) -> str:
    """What a method reports, for people: a number, a text, or several of them."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {told(one)}" for name, one in value.items())
    if isinstance(value, list):
        return ", ".join(map(told, value))
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def sweep(console: Console, found: dict[str, Any]) -> None:
    if found["table"]:
        reached(console, found["table"])
    console.print(f"{count(len(found['runs']), 'run')} in {clean(found['folder'])}")
    for run in found["failed"]:
        why = f"[yellow]Failed:[/yellow] {clean(run['folder'])}: {clean(run['error'])}"
        console.print(why, soft_wrap=True)


def reached(console: Console, rows: list[dict[str, Any]]) -> tuple[str, list[str]]:
    """Scores and curves; the title and the names of the rows."""
    axes = list(rows[0])[: list(rows[0]).index("runs")]
    names = [", ".join(clean(str(row[axis])) for axis in axes) for row in rows]
    title = f"{', '.join(axes)}<"
    console.print(scores(title, names, rows))
    curves(console, title, names, rows)
    return title, names


def curves(console: Console, title: str, names: list[str], rows: list[dict[str, Any]]) -> None:
    """Accuracy after every phase, a line for each row of a sweep."""
    phases = max(len(row["accuracy"]) for row in rows)
    made = table(title, *(f"phase {phase}" for phase in range(phases)))
    for name, row in zip(names, rows, strict=True):
        made.add_row(name, *(f"{score:.1f}" for score in row["accuracy"]))
    console.print("Accuracy after each phase, %:" if "ap" not in rows[0] else "AP by phase:")
    console.print(made)


def study(console: Console, found: dict[str, Any]) -> None:
    console.print(f"[bold]{found['title']}[/bold]\n{found['question']}")
    volumes_of(console, *reached(console, found["table"]), found["table"])
    if found["answer"]:
        console.print(f"[bold]{clean(found['answer'])}[/bold]")
    if found["paper"]:
        console.print("The paper:")
        header, *published = found["paper"]
        made = table(f"{header[0]}<", *map(str, header[1:]))
        for entry in published:
            made.add_row(*map(str, entry))
        console.print(made)
    console.print(f"{count(len(found['runs']), 'run')}; the page: {clean(found['page'])}")


def scores(title: str, names: list[str], rows: list[dict[str, Any]]) -> Table:
    """What runs of a sweep or study reached; seconds include a first phase that was taken over."""
    fields = SCENE_SCORES if "ap" in rows[0] else SCORES
    fields = {c: f for c, f in fields.items() if any(row.get(f) is not None for row in rows)}
    made = table(title, "runs", *fields, "images", "seconds")
    for name, row in zip(names, rows, strict=True):
        numbers = ["" if row.get(f) is None else f"{row[f]:.2f}" for f in fields.values()]
        made.add_row(
            name, str(row["runs"]), *numbers, f"{row['items']:,.0f}", f"{row['seconds']:.0f}"
        )
    return made


def volumes_of(console: Console, title: str, names: list[str], rows: list[dict[str, Any]]) -> None:
    """R_q of what was stored, and what it would pick along each run."""
    if any(row["volume_ratio"] is not None for row in rows):
        made = table(title, "quality", "R_q", "R_q picks")
        for name, row in zip(names, rows, strict=True):
            stored = ", ".join(row["quality"])
            known = row["volume_ratio"]
            made.add_row(
                name, clean(stored), "" if known is None else ratio(known), ", ".join(row["picks"])
            )
        console.print("R_q of what was stored, and the quality that its mean over phases picks:")
        console.print(made)
