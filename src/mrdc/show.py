"""How results look to people: tables and sentences."""

from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from mrdc.budget import Budget
from mrdc.codec import CODECS
from mrdc.data import DATASETS
from mrdc.data.splits import KINDS
from mrdc.experiment.presets import (
    DETECTION,
    PRESETS,
    RECIPES,
    SCENE_PRESETS,
    SCENE_RECIPES,
    TRAINING,
    WITHOUT_MEMORY,
    Preset,
)
from mrdc.experiment.studies import STUDIES
from mrdc.selection import SELECTORS
from mrdc.settings import DetectSettings
from mrdc.store import MemoryFile

if TYPE_CHECKING:
    from mrdc.auditing import Audit
    from mrdc.packing import Packed
    from mrdc.planning import Plan

MORE = 5  # names listed before "and so many more"


def size(count: float) -> str:
    """Bytes for people: 999 B, 17.9 kB, 200.0 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 999.5:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def ratio(value: float) -> str:
    """R_q for people: 0.766, 4e+05 or nan."""
    return f"{value:.3f}" if value < 100 else f"{value:.0e}"


def table(*columns: str) -> Table:
    """A plain table, numbers to the right; a column that ends in < goes left."""
    made = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        made.add_column(column.rstrip("<"), justify="left" if column.endswith("<") else "right")
    return made


def names() -> dict[str, list[str]]:
    """What can be named on the command line."""
    return {
        "methods": [*TRAINING, *DETECTION],
        "codecs": list(CODECS),
        "selectors": list(SELECTORS),
        "datasets": [*DATASETS, *(f"{kind}:FOLDER" for kind in KINDS)],
        "presets": [*RECIPES, *SCENE_RECIPES, *PRESETS, *SCENE_PRESETS],
        "studies": list(STUDIES),
    }


def study_lines() -> str:
    """Names and titles of the studies, a line each."""
    return "\n".join(f"{name}: {study.title}" for name, study in STUDIES.items())


def clean(text: str) -> str:
    """Names from users: nothing in them reaches the terminal as a command."""
    return escape(printable(text))


def printable(text: str) -> str:
    """Control characters and odd bytes spelled out."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def count(number: float, what: str) -> str:
    """1 class, 2 classes."""
    plural = what if number == 1 else what + ("es" if what.endswith(("s", "x")) else "s")
    return f"{number:,.4g} {plural}" if number != int(number) else f"{int(number):,} {plural}"


def listing(console: Console, found: dict[str, list[str]], what: str | None = None) -> None:
    if what == "presets":
        presets(console)
        return
    if what == "studies":
        studies(console)
        return
    for kind, entries in found.items():
        if kind == "presets" and what is None:
            entries = [
                *RECIPES,
                *SCENE_RECIPES,
                f"and {len(PRESETS) + len(SCENE_PRESETS)} rows of the paper (`mrdc list presets`)",
            ]
        if entries:
            console.print(f"[bold]{kind}[/bold]  {', '.join(entries)}")


def presets(console: Console) -> None:
    """Every recipe and preset, with the paper's number where it has one."""
    rows = table("name<", "what<", "the paper, %", "training<", "memory<")
    found: dict[str, Preset[Any]] = {**RECIPES, **SCENE_RECIPES, **PRESETS, **SCENE_PRESETS}
    for name, preset in found.items():
        settings, memory = preset.settings, preset.settings.memory
        held = f"{memory.budget}, {memory.quality}"
        if isinstance(settings, DetectSettings):
            training = f"{settings.train.steps:,} steps, lr {settings.train.lr:g}"
            held = held if settings.replay == "memory" else settings.replay
        else:
            train = settings.train
            training = f"{train.epochs} epochs, lr {train.lr:g}, {train.schedule}"
            held = "none" if settings.method in WITHOUT_MEMORY else held
        published = "" if preset.paper is None else f"{preset.paper:.2f}"
        rows.add_row(name, preset.summary, published, training, held)
    console.print(rows)


def studies(console: Console) -> None:
    """Every study, and what it asks."""
    rows = table("name<", "what<", "question<")
    for name, study in STUDIES.items():
        rows.add_row(name, study.title, study.question)
    console.print(rows)


def some(entries: list[str]) -> str:
    """The first few entries, escaped, and how many more there are."""
    shown = "".join(f"\n  {clean(entry)}" for entry in entries[:MORE])
    more = len(entries) - MORE
    return shown + (f"\n  and {more:,} more" if more > 0 else "")


def budget_line(budget: dict[str, Any], items: int | None = None) -> str:
    """A budget three ways: bytes, originals, items held."""
    parts = [f"{budget['bytes']:,} bytes"]
    if budget["originals"]:
        parts.append(count(round(budget["originals"], 1), "original"))
    if items is not None:
        parts.append(f"{count(items, 'image')} held")
    return f"Budget {budget['text']}: {', '.join(parts)}"


def box_line(boxes: dict[str, int]) -> str:
    """How many boxes there are, and which of the file are not among them."""
    line = f"{count(boxes['boxes'], 'box')} of {count(boxes['classes'], 'class')}"
    if boxes["dropped"]:
        line += f"; {boxes['dropped']:,} below 1 pixel left out"
    if boxes["crowds"]:
        line += f"; {count(boxes['crowds'], 'crowd region')} left out"
    return line


def plan(console: Console, found: "Plan") -> None:
    about = found.as_json()
    original = about["budget"]["original_bytes"]
    console.print(
        f"{count(found.classes, 'class')}, {count(found.images, 'image')}, "
        f"{size(original)} each on average, ranked by {found.select}"
    )
    if found.boxes:
        console.print(box_line(found.boxes))
    console.print(budget_line(about["budget"]))
    exact = any(candidate.exact for candidate in found.candidates)
    columns = ["codec<", "quality", "bytes/image", "images", "per class", "R_q"]
    rows = table(*columns, *(["L_2"] if exact else []), "verdict<")
    for candidate in found.candidates:
        each = candidate.bytes / candidate.quantity if candidate.quantity else 0
        cells = [
            candidate.codec,
            "" if candidate.quality is None else str(candidate.quality),
            f"{each:,.0f}",
            f"{candidate.quantity:,}",
            f"{candidate.per_class[1]:.1f}",
            ratio(candidate.volume_ratio),
        ]
        if exact:
            cells.append(f"{candidate.exact['l2']:.3f}" if candidate.exact else "")
        style = "bold green" if candidate.verdict == "chosen" else ""
        rows.add_row(*cells, candidate.verdict.partition(":")[0], style=style)
    console.print(rows)
    console.print(f"[bold]{escape(found.sentence())}[/bold]")
    remarks(console, found.skipped, found.ignored)
    for candidate in found.candidates:
        if candidate.excluded:
            lines = [f"{name}: {why}" for name, why in candidate.excluded.items()]
            left_out = count(len(lines), "class")
            console.print(f"{left_out} left out of R_q of {candidate}:{some(lines)}")


def remarks(console: Console, skipped: list[str], ignored: list[str]) -> None:
    """Say what was left out."""
    if skipped:
        console.print(f"[yellow]Skipped, unreadable ({len(skipped):,}):[/yellow]{some(skipped)}")
    if ignored:
        console.print(f"Ignored, not images ({len(ignored):,}):{some(ignored)}")


def packed(console: Console, result: "Packed") -> None:
    if result.plan:
        plan(console, result.plan)
    about = result.as_json()
    counts = about["per_class"]
    setting = "" if about["quality"] is None else f" {about['quality']}"
    console.print(
        f"Wrote {clean(about['path'])}: {about['items']:,} of {count(about['images'], 'image')}, "
        f"{count(about['classes'], 'class')} ({counts['fewest']} to {counts['most']} each), as "
        f"{about['codec']}{setting}; {size(about['payload_bytes'])} of images, "
        f"{size(about['file_bytes'])} of file"
    )
    if about["boxes"] and not result.plan:
        console.print(box_line(about["boxes"]))
    if about["boxes"]:
        console.print(f"{count(about['boxes']['held'], 'box')} held")
    console.print(budget_line(about["budget"], about["items"]))
    used = about["file_bytes"] if about["whole_file"] else about["payload_bytes"]
    console.print(f"{size(about['budget_bytes'] - used)} of the budget stay free")
    if 0 < about["complete_classes"] < about["classes"]:
        full = count(about["complete_classes"], "class")
        console.print(f"{full} hold all their images, and leave bytes to the others")
    if about["duplicates"]:
        console.print(f"{count(about['duplicates'], 'exact duplicate')} stored once")
    if about["kept_sources"] and about["codec"] != "original":
        kept = count(about["kept_sources"], "image")
        console.print(f"{kept} kept as source bytes: encoding makes them no smaller")
    if not result.plan:
        remarks(console, about["skipped"], about["ignored"])


def about(file: MemoryFile) -> dict[str, Any]:
    """What `info` tells of a memory file."""
    meta = file.meta
    return {
        "path": str(file.path),
        "items": len(file),
        "classes": meta["classes"],
        "boxes": sum(map(len, file.boxes)),
        "box_classes": list(file.box_classes),
        "codec": meta["codec"],
        "quality": meta["quality"],
        "encoder": meta["encoder"],
        "accounting": meta["accounting"],
        "whole_file": meta["whole_file"],
        "payload_bytes": file.image_bytes,
        "budget_bytes": meta["budget"]["bytes"],
        "file_bytes": file.path.stat().st_size,
        "budget": budget_of(meta),
        "sha256": file.sha256,
        "notes": meta["notes"],
    }


def budget_of(meta: dict[str, Any]) -> dict[str, Any]:
    """The budget of a memory file, as it was written, in bytes and in originals."""
    entry = meta["budget"]
    budget = Budget(entry["amount"], entry["unit"], entry["original_bytes"])
    return budget.as_json(entry["bytes"])


def info(console: Console, found: dict[str, Any]) -> None:
    counts = [entry["items"] for entry in found["classes"]]
    setting = "" if found["quality"] is None else f" {found['quality']}"
    console.print(f"[bold]{clean(found['path'])}[/bold]")
    rows = table("<", "<")
    rows.show_header = False
    rows.add_row("images", f"{found['items']:,} of {count(len(counts), 'class')}")
    if counts:
        rows.add_row("per class", f"{min(counts)} to {max(counts)}")
    if found["box_classes"]:
        classes = found["box_classes"]
        shown = clean(", ".join(classes[:MORE])) + (", ..." if len(classes) > MORE else "")
        rows.add_row("boxes", f"{found['boxes']:,} of {count(len(classes), 'class')} ({shown})")
    rows.add_row("codec", f"{found['codec']}{setting} by {found['encoder']}")
    rows.add_row("budget", budget_line(found["budget"]).removeprefix("Budget "))
    rows.add_row("image bytes", f"{found['payload_bytes']:,}")
    bound = " (what the budget bounds)" if found["whole_file"] else ""
    rows.add_row("file bytes", f"{found['file_bytes']:,}{bound}")
    rows.add_row("accounting", found["accounting"])
    rows.add_row("sha256", found["sha256"])
    for name in ("select", "embed"):
        if found["notes"].get(name):
            rows.add_row(name, clean(str(found["notes"][name])))
    console.print(rows)
    for entry in found["classes"][:MORE]:
        items = count(entry["items"], "image")
        console.print(f"  {entry['label']}  {clean(entry['name'])}  {items}")
    if len(counts) > MORE:
        console.print(f"  and {len(counts) - MORE:,} more classes (--json lists them)")
    double = sum(entry["duplicates"] for entry in found["classes"])
    if double:
        console.print(f"{count(double, 'exact duplicate')} stored once")
    remarks(console, found["notes"].get("skipped") or [], [])


def audit(console: Console, found: "Audit") -> None:
    console.print(
        f"{count(found.items, 'image')}, {found.payload_bytes:,} bytes of images, "
        f"{found.file_bytes:,} of file, budget {found.budget_bytes:,}"
    )
    if found.problems:
        bad = count(len(found.problems), "problem")
        console.print(f"[bold red]{bad}[/bold red]{some(found.problems)}")
    else:
        console.print("[bold green]Sound:[/bold green] every byte and checksum holds.")


def run(console: Console, found: dict[str, Any]) -> None:
    if "ap" in found:
        console.print(f"[bold]{clean(found['name'])}[/bold] on {clean(found['data'])}")
        rows = table("phase", "AP", "AP50", "AP75")
        for phase, scores in enumerate(zip(found["ap"], found["ap50"], found["ap75"], strict=True)):
            rows.add_row(str(phase), *(f"{score:.2f}" for score in scores))
    else:
        rows = accuracies(console, found)
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
        return
    console.print(
        f"[bold]Averaged incremental accuracy {found['average_incremental_accuracy']:.2f} %"
        f"[/bold]{published}, forgetting {found['average_forgetting']:.2f} (initial classes "
        f"{found['initial_forgetting']:.2f}), {found['seconds']:.0f} s; {clean(found['folder'])}"
    )
    if found["held_out"]:
        console.print("The data has no test images: some training images were set aside.")


def accuracies(console: Console, found: dict[str, Any]) -> Table:
    """Accuracy after every phase."""
    synthetic = " (synthetic)" if found["synthetic"] else ""
    console.print(f"[bold]{clean(found['name'])}[/bold] on {clean(found['data'])}{synthetic}")
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
        if found["quality_rule"] == "auto":
            mean = found["mean_choice"]
            agrees = (found["quality"] or "original") == mean
            console.print(
                f"Chosen after the first phase: {found['quality'] or 'original'}; the mean of all "
                f"phases {'chooses it, too' if agrees else f'would choose {mean}'}."
            )


def kept(console: Console, found: dict[str, Any]) -> None:
    """What the memory holds, what the method adds, and what it reports."""
    held = found["memory"]
    quality = "originals" if found["quality"] is None else f"quality {found['quality']}"
    if held["budget_bytes"]:
        console.print(
            f"Memory: {held['items']:,} images as {quality}, {held['bytes']:,} of "
            f"{held['budget_bytes']:,} bytes ({clean(found['budget'])})"
        )
    if held.get("parameter_bytes"):
        charged = "charged" if found["strict_budget"] else "not charged"
        console.print(
            f"The method adds {held['parameter_bytes']:,} bytes of parameters to the network "
            f"({charged} to the budget; --memory.strict-budget charges them)"
        )
    for what, value in found["report"].items():
        numbers = value if isinstance(value, list) else [value]
        told = ", ".join(f"{v:.4g}" if isinstance(v, float) else str(v) for v in numbers)
        console.print(clean(f"{what.replace('_', ' ')}: {told}"))


def sweep(console: Console, found: dict[str, Any]) -> None:
    rows = found["table"]
    axes = list(rows[0])[: list(rows[0]).index("runs")]
    names = [", ".join(clean(str(row[axis])) for axis in axes) for row in rows]
    title = f"{', '.join(axes)}<"
    made = table(title, "runs", "averaged %", "+-", "last %", "forgetting", "images", "seconds")
    for name, row in zip(names, rows, strict=True):
        made.add_row(
            name,
            str(row["runs"]),
            f"{row['average_incremental_accuracy']:.2f}",
            "" if row["deviation"] is None else f"{row['deviation']:.2f}",
            f"{row['last_accuracy']:.2f}",
            f"{row['average_forgetting']:.2f}",
            f"{row['items']:,.0f}",
            f"{row['seconds']:.0f}",
        )
    console.print(made)
    curves(console, title, names, rows)
    console.print(f"{count(len(found['runs']), 'run')} in {clean(found['folder'])}")


def curves(console: Console, title: str, names: list[str], rows: list[dict[str, Any]]) -> None:
    """Accuracy after every phase, a line for each row of a sweep."""
    phases = max(len(row["accuracy"]) for row in rows)
    made = table(title, *(f"phase {phase}" for phase in range(phases)))
    for name, row in zip(names, rows, strict=True):
        made.add_row(name, *(f"{score:.1f}" for score in row["accuracy"]))
    console.print("Accuracy after each phase, %:" if "ap" not in rows[0] else "AP by phase:")
    console.print(made)


def study(console: Console, found: dict[str, Any]) -> None:
    rows = found["table"]
    axes = list(rows[0])[: list(rows[0]).index("runs")]
    names = [", ".join(clean(str(row[axis])) for axis in axes) for row in rows]
    title = f"{', '.join(axes)}<"
    console.print(f"[bold]{found['title']}[/bold]\n{found['question']}")
    console.print(scores(title, names, rows))
    curves(console, title, names, rows)
    volumes_of(console, title, names, rows)
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


SCORES = {
    "averaged %": "average_incremental_accuracy", "+-": "deviation", "last %": "last_accuracy",
    "forgetting": "average_forgetting", "initial": "initial_forgetting",
}  # fmt: skip
SCENE_SCORES = {"AP": "ap", "+-": "ap_deviation", "AP50": "ap50", "AP75": "ap75"}


def scores(title: str, names: list[str], rows: list[dict[str, Any]]) -> Table:
    """What runs of a study reached; seconds include a first phase that was taken over."""
    fields = SCENE_SCORES if "ap" in rows[0] else SCORES
    if all(row["runs"] == 1 for row in rows):
        fields = {column: field for column, field in fields.items() if column != "+-"}
    made = table(title, "runs", *fields, "images", "seconds")
    made.columns[0].overflow = "fold"
    for name, row in zip(names, rows, strict=True):
        numbers = ["" if row[field] is None else f"{row[field]:.2f}" for field in fields.values()]
        made.add_row(
            name, str(row["runs"]), *numbers, f"{row['items']:,.0f}", f"{row['seconds']:.0f}"
        )
    return made


def volumes_of(console: Console, title: str, names: list[str], rows: list[dict[str, Any]]) -> None:
    """R_q of what was stored, and what it would pick along each run."""
    if any(row["volume_ratio"] is not None for row in rows):
        made = table(title, "quality", "R_q", "R_q picks")
        for name, row in zip(names, rows, strict=True):
            stored = ", ".join(row["quality"]).replace("None", "original")
            known = row["volume_ratio"]
            made.add_row(
                name, clean(stored), "" if known is None else ratio(known), ", ".join(row["picks"])
            )
        console.print("R_q of what was stored, and the quality that its mean over phases picks:")
        console.print(made)
