"""How results look to people: tables and sentences."""

from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from mrdc.codec import CODECS
from mrdc.data import DATASETS
from mrdc.selection import SELECTORS
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
        "methods": [],
        "codecs": list(CODECS),
        "selectors": list(SELECTORS),
        "datasets": list(DATASETS),
        "presets": [],
        "studies": [],
    }


def listing(console: Console, found: dict[str, list[str]]) -> None:
    for kind, entries in found.items():
        if entries:
            console.print(f"[bold]{kind}[/bold]  {', '.join(entries)}")


def some(entries: list[str]) -> str:
    """The first few entries, escaped, and how many more there are."""
    shown = "".join(f"\n  {escape(entry)}" for entry in entries[:MORE])
    more = len(entries) - MORE
    return shown + (f"\n  and {more:,} more" if more > 0 else "")


def budget_line(budget: dict[str, Any], items: int | None = None) -> str:
    """A budget three ways: bytes, originals, items held."""
    parts = [f"{budget['bytes']:,} bytes"]
    if budget["originals"]:
        parts.append(f"{budget['originals']:,.0f} originals")
    if items is not None:
        parts.append(f"{items:,} images held")
    return f"Budget {budget['text']} = {' = '.join(parts[:2])}" + "".join(
        f", {p}" for p in parts[2:]
    )


def plan(console: Console, found: "Plan") -> None:
    about = found.as_json()
    original = about["budget"]["original_bytes"]
    console.print(
        f"{found.classes:,} classes, {found.images:,} images, {size(original)} each on average"
    )
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
    excluded = {n: w for c in found.candidates for n, w in c.excluded.items()}
    if excluded:
        lines = [f"{name}: {why}" for name, why in excluded.items()]
        console.print(f"Left out of R_q at some quality: {len(lines)} classes{some(lines)}")
    if found.chosen.duplicates:
        console.print(f"Exact duplicates stored once: {found.chosen.duplicates:,}")


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
        f"Wrote {escape(about['path'])}: {about['items']:,} images of {about['classes']:,} classes "
        f"({counts['fewest']} to {counts['most']} each) as {about['codec']}{setting}, "
        f"{size(about['payload_bytes'])} of images in a file of {size(about['file_bytes'])}"
    )
    console.print(budget_line(about["budget"], about["items"]))
    free = about["budget_bytes"] - about["payload_bytes"]
    console.print(f"{size(free)} of the budget stay free")
    if about["kept_sources"] and about["codec"] != "original":
        console.print(
            f"{about['kept_sources']:,} images keep their source bytes: not smaller encoded"
        )
    if not result.plan:
        remarks(console, result.skipped, result.ignored)


def about(file: MemoryFile) -> dict[str, Any]:
    """What `info` tells of a memory file."""
    meta = file.meta
    return {
        "path": str(file.path),
        "items": len(file),
        "classes": meta["classes"],
        "codec": meta["codec"],
        "quality": meta["quality"],
        "encoder": meta["encoder"],
        "accounting": meta["accounting"],
        "payload_bytes": file.image_bytes,
        "budget_bytes": meta["budget"]["bytes"],
        "file_bytes": file.path.stat().st_size,
        "budget": meta["budget"],
        "sha256": file.sha256,
        "notes": meta["notes"],
    }


def info(console: Console, found: dict[str, Any]) -> None:
    counts = [entry["items"] for entry in found["classes"]]
    setting = "" if found["quality"] is None else f" {found['quality']}"
    console.print(f"[bold]{escape(found['path'])}[/bold]")
    rows = table("<", "<")
    rows.show_header = False
    rows.add_row("images", f"{found['items']:,} of {len(counts):,} classes")
    if counts:
        rows.add_row("per class", f"{min(counts)} to {max(counts)}")
    rows.add_row("codec", f"{found['codec']}{setting} by {found['encoder']}")
    rows.add_row("image bytes", f"{found['payload_bytes']:,} of {found['budget_bytes']:,}")
    rows.add_row("file bytes", f"{found['file_bytes']:,}")
    rows.add_row("accounting", found["accounting"])
    rows.add_row("sha256", found["sha256"])
    for name in ("select", "embed"):
        if found["notes"].get(name):
            rows.add_row(name, escape(str(found["notes"][name])))
    skipped = found["notes"].get("skipped") or []
    if skipped:
        rows.add_row("skipped", f"{len(skipped):,} unreadable images")
    console.print(rows)
    for entry in found["classes"][:MORE]:
        console.print(f"  {entry['label']}  {escape(entry['name'])}  {entry['items']} images")
    if len(counts) > MORE:
        console.print(f"  and {len(counts) - MORE:,} more classes (--json lists them)")


def audit(console: Console, found: "Audit") -> None:
    console.print(
        f"{found.items:,} images, {found.payload_bytes:,} of {found.budget_bytes:,} budget bytes, "
        f"{found.file_bytes:,} in the file"
    )
    if found.problems:
        console.print(
            f"[bold red]{len(found.problems):,} problems[/bold red]{some(found.problems)}"
        )
    else:
        console.print("[bold green]Sound:[/bold green] every byte and checksum holds.")
