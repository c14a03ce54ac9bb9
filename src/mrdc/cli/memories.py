"""Plans, packs and memory files."""

from typing import TYPE_CHECKING, Any

from rich.console import Console

from mrdc._utils.text import MORE, count, printable, ratio, size, small_number, span
from mrdc.cli.tables import plain, remarks, some, styled, table
from mrdc.codec.jpeg_progressive import SCANS
from mrdc.memory.fade import mean_scans, scan_counts
from mrdc.memory.stored import StoredMemory

if TYPE_CHECKING:
    from mrdc.memory.audit import Audit
    from mrdc.memory.edit import Edited
    from mrdc.planning.pack import Packed
    from mrdc.planning.plan import Plan


def budget_line(budget: dict[str, Any], items: int | None = None) -> str:
    """A budget three ways: bytes, originals, items held."""
    parts = [f"{budget['bytes']:,} bytes"]
    if budget["originals"]:
        parts.append(count(round(budget["originals"], 1), "original"))
    if items is not None:
        parts.append(f"{count(items, 'image')} held")
    return f"Budget {budget['text']}: {', '.join(parts)}"


def box_line(boxes: dict[str, int]) -> str:
    """Number of boxes, and of those left out."""
    line = f"{count(boxes['boxes'], 'box')} of {count(boxes['classes'], 'class')}"
    if boxes["dropped"]:
        line += f"; {boxes['dropped']:,} below 1 pixel left out"
    if boxes["crowds"]:
        line += f"; {count(boxes['crowds'], 'crowd region')} left out"
    return line


def plan(console: Console, found: "Plan") -> None:
    budget = found.to_json()["budget"]
    drawn = f" of {found.drawn_from.classes:,}, drawn at random" if found.drawn_from else ""
    console.print(
        f"{count(found.classes, 'class')}{drawn}, {count(found.images, 'image')}, "
        f"{size(budget['original_bytes'])} each on average, ranked by {found.select}"
    )
    if found.boxes:
        console.print(box_line(found.boxes))
    console.print(budget_line(budget))
    exact = any(candidate.exact for candidate in found.candidates)
    columns = ["codec<", "quality", "bytes/image", "images", "per class", "R_q", "r", "discrepancy"]
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
            ratio(candidate.ratio_per_image, candidate.ratio_error),
            small_number(candidate.discrepancy),
        ]
        if exact:
            cells.append(f"{candidate.exact['l2']:.3f}" if candidate.exact else "")
        style = "bold green" if candidate.verdict == "chosen" else ""
        rows.add_row(*cells, candidate.verdict.partition(":")[0], style=style)
    console.print(rows)
    console.print(plain(found.sentence(), "bold"))
    remarks(console, found.skipped, found.ignored)
    out = dict.fromkeys(f"{n}: {why}" for c in found.candidates for n, why in c.excluded.items())
    if out:
        console.print(f"{count(len(out), 'class')} left out of R_q and r:{some(list(out))}")
    part = dict.fromkeys(f"{n}: {why}" for c in found.candidates for n, why in c.sampled.items())
    if part:
        console.print(f"More images than feature dimensions:{some(list(part))}")


def packed(console: Console, result: "Packed") -> None:
    if result.plan:
        plan(console, result.plan)
    about = result.to_json()
    counts = about["per_class"]
    setting = "" if about["quality"] is None else f" {about['quality']}"
    console.print(
        f"Wrote {printable(about['path'])}: {about['items']:,} of "
        f"{count(about['images'], 'image')}, {count(about['classes'], 'class')} "
        f"({span(counts['fewest'], counts['most'])} each), as "
        f"{about['codec']}{setting}; {size(about['payload_bytes'])} of images, "
        f"{size(about['file_bytes'])} of file"
    )
    if about["boxes"] and not result.plan:
        console.print(box_line(about["boxes"]))
    if about["boxes"]:
        console.print(f"{count(about['boxes']['held'], 'box')} held")
    if result.memory.fade and about["scans"]:
        console.print(f"Scans: {scan_line(about['scans'])}")
    console.print(budget_line(about["budget"], about["items"]))
    used = about["file_bytes"] if about["whole_file"] else about["payload_bytes"]
    console.print(f"{size(about['budget_bytes'] - used)} of the budget left over")
    if 0 < about["complete_classes"] < about["classes"]:
        full = count(about["complete_classes"], "class")
        console.print(f"{full} complete: all images held, and bytes left to the others")
    if about["duplicates"]:
        console.print(f"{count(about['duplicates'], 'exact duplicate')} stored once")
    if about["kept_sources"] and about["codec"] != "original":
        kept = count(about["kept_sources"], "image")
        console.print(f"{kept} stored as source bytes, which encoding does not shrink")
    if not result.plan:
        remarks(console, about["skipped"], about["ignored"])


def edited(console: Console, result: "Edited") -> None:
    about = result.to_json()
    console.print(
        f"Wrote {printable(about['path'])}: {count(about['items'], 'image')} (before: "
        f"{about['items_before']:,}) of {count(about['classes'], 'class')}; "
        f"{size(about['payload_bytes'])} of images, {size(about['file_bytes'])} of file"
    )
    if about.get("removed"):
        console.print(f"Removed {printable(', '.join(about['removed']))}")
    if "offered" in about:
        console.print(f"{count(about['offered'], 'image')} offered")
    if about["scans"]:
        console.print(f"Scans: {scan_line(about['scans'])}")
    console.print(budget_line(about["budget"], about["items"]))
    remarks(console, about.get("skipped", []), about.get("ignored", []))


def about(memory: StoredMemory) -> dict[str, Any]:
    """The result of `info`."""
    meta, boxed = memory.meta, bool(memory.box_classes)
    return {
        "path": str(memory.path),
        "items": len(memory),
        "parts": len(memory.parts) if memory.part_size else None,
        "part_size": memory.part_size,
        "classes": meta["classes"],
        "boxes": sum(len(f.arrays["boxes"]) for _, f in memory.files()) if boxed else 0,
        "box_classes": list(memory.box_classes),
        "codec": meta["codec"],
        "quality": meta["quality"],
        "encodings": meta["encodings"],
        "accounting": meta["accounting"],
        "fade": meta["fade"],
        "scans": scan_counts(file for _, file in memory.files()),
        "whole_file": meta["whole_file"],
        "payload_bytes": memory.image_bytes,
        "budget_bytes": meta["budget"]["bytes"],
        "file_bytes": memory.file_bytes,
        "budget": memory.budget.as_json(meta["budget"]["bytes"]),
        "sha256": memory.sha256,
        "notes": meta["notes"],
    }


def scan_line(scans: dict[int, int]) -> str:
    """How faded the images are."""
    each = ", ".join(f"{number}: {images:,}" for number, images in scans.items())
    return f"{mean_scans(scans):.1f} of {SCANS} on average (images by scans: {each})"


def info(console: Console, found: dict[str, Any]) -> None:
    counts = [entry["items"] for entry in found["classes"]]
    console.print(plain(printable(found["path"]), "bold"))
    rows = table("<", "<")
    rows.show_header = False
    classes = found["box_classes"]
    of = "" if classes else f" of {count(len(counts), 'class')}"  # scenes: listed below by phase
    rows.add_row("images", f"{found['items']:,}{of}")
    if counts and not classes:
        rows.add_row("per class", span(min(counts), max(counts)))
    if classes:
        shown = printable(", ".join(classes[:MORE])) + (", ..." if len(classes) > MORE else "")
        rows.add_row("boxes", f"{found['boxes']:,} of {count(len(classes), 'class')} ({shown})")
    for entry in found["encodings"]:
        quality = "" if entry["quality"] is None else f" {entry['quality']}"
        rows.add_row("codec", f"{entry['codec']}{quality} by {printable(entry['encoder'])}")
    if found["scans"]:
        rows.add_row("scans", scan_line(found["scans"]))
    rows.add_row("budget", budget_line(found["budget"]).removeprefix("Budget "))
    rows.add_row("image bytes", f"{found['payload_bytes']:,}")
    bound = " (what the budget bounds)" if found["whole_file"] else ""
    rows.add_row("file bytes", f"{found['file_bytes']:,}{bound}")
    if found["parts"] is not None:
        rows.add_row("parts", f"{found['parts']:,} of at most {size(found['part_size'])}")
    rows.add_row("accounting", found["accounting"])
    rows.add_row("sha256", found["sha256"])
    for name in ("select", "embed"):
        if found["notes"].get(name):
            rows.add_row(name, printable(str(found["notes"][name])))
    console.print(rows)
    for entry in found["classes"][:MORE]:
        line = f"  {entry['label']}  {printable(entry['name'])}  {count(entry['items'], 'image')}"
        console.print(line)
    if len(counts) > MORE:
        console.print(f"  and {count(len(counts) - MORE, 'more class')} (--json lists them)")
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
        console.print(styled((bad, "bold red"), some(found.problems)))
    else:
        console.print(styled(("Sound:", "bold green"), " every byte and checksum is right."))
