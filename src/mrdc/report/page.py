"""One self-contained page from run folders, with each figure also as SVG and CSV beside it."""

import csv
import io
import re
from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment

from mrdc import __version__
from mrdc._utils.errors import OutputError, UsageError
from mrdc._utils.files import check_name, output_errors, whole_file
from mrdc._utils.registry import lookup
from mrdc._utils.text import harmless
from mrdc.report import choices, curves, tables
from mrdc.report.contents import contents
from mrdc.report.criteria import criteria
from mrdc.report.figures import Figure, Grid, Section
from mrdc.report.forgetting import forgetting
from mrdc.report.lead import lead_text
from mrdc.report.pairs import pairs
from mrdc.report.runs import RunRecord, find_runs
from mrdc.report.worth import bytes_against_accuracy

SECTIONS: dict[str, Callable[[Sequence[RunRecord]], Section]] = {
    "runs": tables.what_was_run,
    "table": tables.compared,
    "pairs": pairs,
    "accuracy": curves.accuracy,
    "budget": tables.budgets,
    "trade-off": curves.trade_off,
    "choice": choices.choice,
    "bytes": bytes_against_accuracy,
    "volume-ratio": criteria,
    "detection": tables.detection,
    "forgetting": forgetting,
    "confusion": curves.confusion,
    "time": curves.times,
}
FIGURE = re.compile(r"[a-z-]+-\d+\.(svg|csv)")  # a file of an older page, perhaps
CONTENTS = ("memory", "t-sne")
NAMES = (*SECTIONS, *CONTENTS)


def write_report(
    sources: Sequence[Path],
    output: Path,
    *,
    title: str | None = None,
    question: str | None = None,
    lead: str | None = None,
    paper: Sequence[Sequence[object]] = (),
    sections: Sequence[str] = NAMES,
) -> list[RunRecord]:
    """Write a page about run folders and return their runs.

    Args:
        lead: the answer to the question; by default a comparison of the runs.
        paper: a table of published numbers, with a header row.
        sections: names of the sections to show, in order.
    """
    for name in sections:
        lookup(dict.fromkeys(NAMES), name, "section")
    runs = find_runs(sources)
    begun = [run for run in runs if run.phases]
    known = {"runs": runs} if not begun else {**dict.fromkeys(SECTIONS, begun), "runs": runs}
    made = {name: SECTIONS[name](known[name]) for name in sections if name in known}
    if set(CONTENTS) & set(sections):
        made |= {section.name: section for section in contents(begun)}
    parts = [made[name] for name in sections if name in made and made[name].parts]
    if paper:
        place = 1 + max((i for i, part in enumerate(parts) if part.name == "table"), default=0)
        grid = Grid([list(row) for row in paper])
        parts.insert(place, Section("paper", "The paper's numbers", [grid]))
    data = " and ".join(dict.fromkeys(run.data for run in runs))
    names = list(dict.fromkeys(run.name for run in runs))
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    title = title or f"{', '.join(names[:3])}{more} on {data}"
    write_page(output, title, parts, lead or lead_text(runs), question)
    return runs


def write_page(
    output: Path, title: str, sections: Sequence[Section], lead: str, question: str | None = None
) -> None:
    """Write the page, and its figures (SVG and CSV) into a folder beside it."""
    check_output(output)
    folder = output.with_name(f"{output.stem}-figures")
    if folder.exists() and not output.exists():
        raise OutputError(f"{folder}: exists, but the page it belongs to does not; remove it first")
    figures: list[Figure] = []
    for section in sections:
        of_section = [part for part in section.parts if isinstance(part, Figure)]
        for number, figure in enumerate(of_section, 1):
            figure.file = f"{folder.name}/{section.name}-{number}"
        figures += of_section
    names = {figure.file for figure in figures}
    text = files("mrdc.report").joinpath("page.html").read_text()
    page = Environment(autoescape=True).from_string(text)
    made = f"Made by mrdc {__version__}."
    shown = page.render(title=title, lead=lead, question=question, sections=sections, made=made)
    with whole_file(output) as file:
        file.write(shown.encode(errors="replace"))
    with output_errors(folder):
        for old in folder.glob("*"):
            if FIGURE.fullmatch(old.name) and f"{folder.name}/{old.stem}" not in names:
                old.unlink()
        for figure in figures:
            folder.mkdir(exist_ok=True)
            table = io.StringIO()
            rows = [[harmless(cell) for cell in row] for row in figure.data]
            csv.writer(table, lineterminator="\n").writerows(rows)
            for suffix, content in (("svg", figure.svg), ("csv", table.getvalue())):
                with whole_file(output.parent / f"{figure.file}.{suffix}") as file:
                    file.write(content.encode(errors="replace"))


def check_output(output: Path) -> None:
    """Refuse to replace a file that is not a page of ours."""
    if output.suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"{output}: a page must end in .html")
    if not output.parent.is_dir():
        raise OutputError(f"{output}: there is no folder {output.parent}")
    check_name(output)
    ours = output.is_file() and b"Made by mrdc" in output.read_bytes()
    if output.exists() and not ours:
        raise OutputError(f"{output}: exists and is not a page of mrdc; choose another path")
