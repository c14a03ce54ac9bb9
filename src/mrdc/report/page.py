"""One self-contained page from run folders; every figure also as SVG and CSV beside it."""

import csv
import io
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment

from mrdc import __version__
from mrdc._utils.errors import OutputError, UsageError
from mrdc._utils.files import output_errors, whole_file
from mrdc._utils.registry import lookup
from mrdc.report.contents import contents
from mrdc.report.figures import Figure
from mrdc.report.parts import Grid, Section
from mrdc.report.runs import Run, find_runs
from mrdc.report.sections import SECTIONS

NAMES = (*SECTIONS, "memory", "t-sne")


def write_report(
    sources: Sequence[Path],
    output: Path,
    *,
    title: str | None = None,
    question: str | None = None,
    paper: Sequence[Sequence[object]] = (),
    sections: Sequence[str] | None = None,
) -> list[Run]:
    """Write a page about run folders; the runs that it is about.

    Args:
        paper: a table to put beside ours, its header first.
        sections: names of the parts to show; all by default.

    Raises:
        DataError: no run there.
        OutputError: the page cannot be written, or would replace something else.
    """
    wanted = NAMES if sections is None else tuple(sections)
    for name in wanted:
        lookup(dict.fromkeys(NAMES), name, "section")
    runs = find_runs(sources)
    found = [run for run in runs if run.phases]
    made = [SECTIONS[name](runs) for name in wanted if name in SECTIONS]
    parts = [part for part in made if part is not None]
    parts += [part for part in contents(found) if part.name in wanted]
    if paper:
        place = 1 + max((i for i, part in enumerate(parts) if part.name == "table"), default=0)
        parts.insert(place, Section("paper", "The paper's figures", [Grid(_rows(paper))]))
    write_page(output, title or usual_title(runs), parts, question)
    return runs


def usual_title(runs: Sequence[Run]) -> str:
    """Data and methods."""
    data = " and ".join(dict.fromkeys(run.data for run in runs))
    names = list(dict.fromkeys(run.name for run in runs))
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{', '.join(names[:3])}{more} on {data}"


def write_page(
    output: Path, title: str, sections: Sequence[Section], question: str | None = None
) -> None:
    """Write the page, and its figures into a folder beside it.

    Raises:
        OutputError: it cannot be written, or something else is there.
    """
    check_output(output)
    folder = output.with_name(f"{output.stem}-figures")
    with output_errors(folder):
        for section in sections:
            for part in section.parts:
                if isinstance(part, Figure):
                    folder.mkdir(exist_ok=True)
                    part.file = f"{folder.name}/{_save(folder, section, part)}"
    template = Environment(autoescape=True).from_string(
        files("mrdc.report").joinpath("page.html").read_text()
    )
    page = template.render(
        title=title, question=question, sections=sections, made=f"Made by mrdc {__version__}."
    )
    with whole_file(output) as file:
        file.write(page.encode(errors="replace"))


def check_output(output: Path) -> None:
    """Refuse to replace what is no page of ours.

    Raises:
        OutputError, UsageError: with the reason.
    """
    if output.suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"{output}: a page must end in .html")
    if not output.parent.is_dir():
        raise OutputError(f"{output}: there is no folder {output.parent}")
    if output.is_dir() or (output.exists() and b"Made by mrdc" not in output.read_bytes()):
        raise OutputError(f"{output}: is there already and is no page of mrdc; name another")


def _save(folder: Path, section: Section, figure: Figure) -> str:
    """Its SVG and its data; the name that both have."""
    number = 1 + [part for part in section.parts if isinstance(part, Figure)].index(figure)
    name = f"{section.name}-{number}"
    with whole_file(folder / f"{name}.svg") as file:
        file.write(figure.svg.encode(errors="replace"))
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(figure.data)
    with whole_file(folder / f"{name}.csv") as file:
        file.write(text.getvalue().encode(errors="replace"))
    return name


def _rows(table: Sequence[Sequence[object]]) -> list[list[object]]:
    return [list(row) for row in table]
