"""Pages: what they show, what they leave out, and that they are self-contained."""

import csv
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from mrdc._utils.errors import OutputError, UsageError
from mrdc.report import write_report
from mrdc.report.curves import KINDS, seconds_by_part
from mrdc.report.figures import (
    COLOURS,
    Figure,
    Grid,
    Section,
    drawn,
    label_points,
    legend,
    line,
    short,
)
from mrdc.report.page import SECTIONS, write_page
from mrdc.report.runs import find_runs, read_run
from mrdc.training.results import MemorySummary
from tests.report.folders import PARTS, grid, made, phase, scenes


def written(sources: list[Path], tmp_path: Path, **options: Any) -> str:
    write_report(sources, tmp_path / "page.html", **options)
    return (tmp_path / "page.html").read_text()


def section(name: str, folders: list[Path]) -> Section:
    return SECTIONS[name](find_runs(folders))


def grids(name: str, folders: list[Path]) -> list[Grid]:
    return [part for part in section(name, folders).parts if isinstance(part, Grid)]


def figures(name: str, folders: list[Path]) -> list[Figure]:
    return [part for part in section(name, folders).parts if isinstance(part, Figure)]


def names_of(page: str) -> list[str]:
    return re.findall(r'<section id="([^"]+)"', page)


def test_the_page_is_self_contained(tmp_path: Path) -> None:
    """It requests nothing, ids are unique, it is the same each time, and names are escaped."""
    runs = grid(tmp_path, {"90": [60.0], "50": [55.0], "10": [50.0]})
    page = written(runs, tmp_path)
    assert not re.findall(r"(?:src|href)=\"(?!#|data:)", page)
    assert "default-src 'none'" in page and not re.findall(r"url\((?!#)", page)
    ids, used = (re.findall(at, page) for at in (r'\sid="([^"]+)"', r"(?:url\(|href=\")#([^)\"]+)"))
    assert len(ids) == len(set(ids)) and set(used) <= set(ids)
    assert page == written(runs, tmp_path)
    evil = "<script>alert(1)</script>"
    page = written([made(tmp_path / "run", name=evil, data=f"/x/{evil}")], tmp_path)
    assert evil not in page and "&lt;script&gt;alert(1)" in page
    assert page.count("<script>") == 1  # ours


def test_sections_without_data_are_left_out(tmp_path: Path) -> None:
    """One run has no trade-off and no detector; a run that has just started has no figure.

    Figures are also files: SVG, and their data as CSV.
    """
    names = names_of(written([made(tmp_path / "run")], tmp_path))
    assert names == ["runs", "table", "accuracy", "budget", "volume-ratio", "confusion", "time"]
    folder = tmp_path / "page-figures"
    files = {path.stem for path in folder.iterdir()}
    assert {"accuracy-1", "time-1", "volume-ratio-1", "confusion-1"} == files
    rows = list(csv.reader((folder / "accuracy-1.csv").read_text().splitlines()))
    assert rows[0] == ["run", "phase", "accuracy of the classes seen, %", "standard deviation"]
    assert [float(row[2]) for row in rows[1:]] == [60.0, 50.0]
    assert (folder / "accuracy-1.svg").read_text().startswith("<svg")
    page = written([made(tmp_path / "begun", (), done=False)], tmp_path)
    assert names_of(page) == ["runs"] and "unfinished: 0 of 2 phases" in page
    equal = made(tmp_path / "equal", (), done=False, phases=5, first="equal")
    assert "unfinished: 0 of 5 phases" in written([equal], tmp_path)  # no first phase of its own


def test_sections_can_be_chosen(tmp_path: Path) -> None:
    """With a title, a question, and the paper's table after ours."""
    run, paper = made(tmp_path / "run"), [["budget", "%"], ["20", 70.84]]
    options: dict[str, Any] = {"title": "T", "question": "Why?", "paper": paper}
    page = written([run], tmp_path, sections=("time", "table", "runs"), **options)
    assert names_of(page) == ["time", "table", "paper", "runs"]
    assert "<h1>T</h1>" in page and "Why?" in page and "70.84" in page
    with pytest.raises(UsageError, match="unknown section 'tables'"):
        written([run], tmp_path, sections=("tables",))


@pytest.mark.parametrize(
    ("output", "kind", "message"),
    [
        ("page.txt", UsageError, "must end in .html"),
        ("no/page.html", OutputError, "there is no folder"),
        ("theirs.html", OutputError, "exists and is not a page of mrdc"),
    ],
)
def test_refuses_to_replace_other_files(
    output: str, kind: type[Exception], message: str, tmp_path: Path
) -> None:
    (tmp_path / "theirs.html").write_text("mine")
    with pytest.raises(kind, match=message):
        write_page(tmp_path / output, "T", [Section("a", "A", ["text"])], "Lead.")
    assert (tmp_path / "theirs.html").read_text() == "mine"


def test_what_all_runs_share_is_in_the_caption(tmp_path: Path) -> None:
    """A single run has everything in the table, with all its commits; empty columns are dropped."""
    folders = [made(tmp_path / str(n), seed=n) for n in range(2)]
    (both,), (alone,) = grids("runs", folders), grids("runs", folders[:1])
    assert "seed" in both.rows[0] and "data" not in both.rows[0] and "budget" not in both.rows[0]
    assert both.caption.startswith("All runs: data photos, phases 1, budget 8/class")
    assert "data" in alone.rows[0] and not alone.caption
    assert "abc1234, then def5678" in alone.rows[1]
    bare = made(tmp_path / "a", events=[phase(0, 60.0, memory=MemorySummary())], name="finetune")
    (table,), (budgets,) = (grids(name, [bare, folders[0]]) for name in ("runs", "budget"))
    places = [table.rows[0].index(head) for head in ("budget", "quality")]
    found = [[row[place] for place in places] for row in table.rows[1:]]
    assert found == [["", ""], ["8/class", "auto"]] and len(budgets.rows) == 2
    table = Grid([["a", "b", "c", "d"], ["x", "", 1, "2.5 ± 1"], ["y", None, "-3", ""]])
    assert table.rows[0] == ["a", "c", "d"] and table.numbers == [False, True, True]


def test_remarks_on_the_data(tmp_path: Path) -> None:
    results: list[dict[str, Any]] = [{"held_out": True}, {"synthetic": True}, {}]
    folders = [
        made(tmp_path / str(number), data=f"data-{number}", result=more)
        for number, more in enumerate(results)
    ]
    notes = section("runs", folders).parts[1:]
    assert [str(note).partition(";")[0].partition(",")[0] for note in notes] == [
        "data-0: no test images",
        "data-1: synthetic images",
        "These runs use different data: compare within one data set only.",
    ]


def test_a_page_says_what_to_try(tmp_path: Path) -> None:
    """The advice after a run, with the name of its folder."""
    shares = {"old_as_old": [None, 43.0], "new_as_new": [None, 87.0]}
    folders = [made(tmp_path / "a", result=shares), made(tmp_path / "b", seed=1)]
    (note,) = section("runs", folders).parts[1:]
    assert str(note).startswith("a: only 43 % of the test images of old classes")


def test_means_and_deviations_over_seeds(tmp_path: Path) -> None:
    """55 and 65: 60 with a sample deviation of 7.07, as in the table of budgets and figures."""
    runs = [made(tmp_path / "a"), made(tmp_path / "b", (70.0, 60.0), seed=1)]
    more = MemorySummary(92, 100, 9, parameter_bytes=2000)
    last = [phase(0, 55.0), phase(1, 45.0, memory=more)]
    runs.append(made(tmp_path / "c", events=last, seed=2, result={"paper": 62.0}))
    (two,), (three,) = grids("table", runs[:2]), grids("table", runs)
    assert "60.00 ± 7.07" in two.rows[1] and "61.00" in two.rows[1]
    assert "the paper %" not in three.rows[0]  # as they disagree
    assert three.rows[1][three.rows[0].index("images held")] == "8"
    (budget,) = grids("budget", runs)
    assert budget.rows[1][1:] == ["100", "91", "8", "667"]
    (figure,) = figures("accuracy", runs[:2])
    assert [row[2:] for row in figure.data[1:]] == [[65.0, 50**0.5], [55.0, 50**0.5]]
    assert "standard deviation over seeds" in figure.title


def test_scenes_are_averaged_over_seeds(tmp_path: Path) -> None:
    """AP, AP by class and pseudo labels; values that one seed lacks come from the others."""
    more: dict[str, Any] = {"warning": "few", "labels_per_image": 1.0}
    folders = [
        scenes(tmp_path / "0", 30.0, more),
        scenes(tmp_path / "1", 40.0, more | {"precision": 80.0}, seed=1),
        scenes(
            tmp_path / "2", 31.0, {"pseudo_labels_per_image": 2.25, "student_ap": 28.5}, data="d"
        ),
    ]
    (table,), (scores, labels) = grids("table", folders), grids("detection", folders)
    assert table.rows[1][3:7] == ["35.00 ± 7.07", "61.00", "55.00 ± 0.00", "20.00 ± 0.00"]
    assert [row[1:] for row in scores.rows] == [["car"], ["35.00 ± 7.07"], ["31.00"]]
    heads = ["phase", "labels per image", "precision %", "AP", "AP of the student"]
    assert [row[1:] for row in labels.rows] == [
        heads,
        [0, "1.00 ± 0.00", "80.00", "35.00 ± 7.07", ""],
        [0, "2.25", "", "31.00", "28.50"],
    ]
    assert str(section("detection", folders).parts[2:]).count("phase 0: few.") == 1


def test_many_lines_take_several_figures(tmp_path: Path) -> None:
    """At most one line per colour in each, spread evenly; runs with other phases are separate."""
    runs = [made(tmp_path / f"{n}", train={"lr": n}) for n in range(len(COLOURS) + 3)]
    runs.append(made(tmp_path / "more", phases=2))
    found = figures("accuracy", runs)
    assert [len({row[0] for row in figure.data[1:]}) for figure in found] == [5, 6, 1]


def test_differences_from_originals(tmp_path: Path) -> None:
    """By seed: 2 and 4 points, 3 with a standard error of 1. Seed 2 has no originals."""
    runs = grid(tmp_path, {"original": [40.0, 60.0], "50": [42.0, 64.0, 0.0]})
    (found,) = grids("pairs", runs)
    heads = ["run", "pairs", "averaged", "last phase", "forgetting"]
    values = [2, "+3.00 ± 1.00", "+3.00 ± 1.00", "+0.00 ± 0.00"]
    assert found.rows == [heads, ["lucir-mrdc, quality 50", *values]]
    assert grids("pairs", runs[:2]) == []
    less = made(tmp_path / "less", (45.0, 45.0), memory={"budget": "4/class", "quality": "50"})
    (found,) = grids("pairs", [*runs[:2], less])
    assert found.rows[1][2:3] == ["+5.00"]
    assert found.rows[1][-1] == "lucir-mrdc, 8/class, quality original"
    aps = [("none", 30.0), ("memory", 32.0)]
    both: list[Path] = []
    for replay, ap in aps:
        folder, memory = tmp_path / replay, {"quality": "original"}
        result = {"ap": [ap], "ap50": [ap], "ap75": [ap]}
        both.append(scenes(folder, ap, {}, replay=replay, memory=memory, result=result))
    (found,) = grids("pairs", both)
    assert found.rows[1][1:5] == [1, "-2.00", "-2.00", "-2.00"]


def test_forgetting_of_the_first_classes(tmp_path: Path) -> None:
    """80 % at best, 60 % in the end; a run with one phase forgets nothing and is left out."""
    events = [phase(0, 70.0, tasks=[70.0]), phase(1, 70.0, tasks=[80.0, 50.0])]
    events.append(phase(2, 60.0, tasks=[60.0, 50.0, 40.0]))
    run = made(tmp_path / "run", events=events)
    (table,), (figure,) = grids("forgetting", [run]), figures("forgetting", [run])
    assert table.rows[1][1:] == [1, "70.00", "60.00", "-20.00"]
    assert [row[2] for row in figure.data[1:]] == [70.0, 80.0, 60.0]
    short_run = made(tmp_path / "short", events=events[:1])
    assert section("forgetting", [short_run]).parts == []


def test_old_and_new_classes_in_the_confusion(tmp_path: Path) -> None:
    """Means over the phases after the first, and over seeds; results without them have no table."""
    runs = []
    for seed, shift in enumerate((0.0, 10.0)):
        shares = [(60.0 + shift, 90.0), (50.0 + shift, 80.0)]
        later = [
            phase(n, 50.0, old_as_old=old, new_as_new=new) for n, (old, new) in enumerate(shares, 1)
        ]
        runs.append(made(tmp_path / f"{seed}", events=[phase(0, 70.0), *later], seed=seed))
    (table,) = grids("confusion", runs)
    assert table.rows == [
        ["run", "old as old, %", "new as new, %"],
        ["lucir-mrdc, quality auto", "60.00 ± 7.07", "85.00 ± 0.00"],
    ]
    old, new, by_task = figures("confusion", runs)
    assert [row[1:3] for row in old.data[1:]] == [[1, 65.0], [2, 55.0]]
    assert [row[1:3] for row in new.data[1:]] == [[1, 90.0], [2, 80.0]]
    assert by_task.data[0][0] == "true task"
    assert grids("confusion", [made(tmp_path / "older")]) == []


def test_ratios_of_a_grid_are_those_along_originals(tmp_path: Path) -> None:
    """By phase, and their mean: (1.2 + 1.2) / 2. A run outside the grid has its own figure."""
    runs = grid(tmp_path / "a", {"original": [40.0], "50": [50.0], "10": [45.0]})
    (found,) = figures("volume-ratio", runs)
    assert "quality original" in found.title
    assert found.data[1:4] == [
        ["jpeg", 50, 0, 1.2],
        ["jpeg", 50, 1, 1.2],
        ["jpeg", 50, "mean", 1.2],
    ]
    assert len(figures("volume-ratio", [*runs, made(tmp_path / "b", train={"lr": 1})])) == 2


def test_a_trade_off_needs_three_qualities_of_equal_settings(tmp_path: Path) -> None:
    """In order, each with its spread over seeds; shorter training is another curve."""
    scores = {"10": [45.0, 47.0], "original": [40.0, 42.0], "50": [62.0, 64.0]}
    runs = grid(tmp_path / "a", scores) + grid(tmp_path / "b", scores, train={"epochs": 1})
    found = figures("trade-off", runs)
    assert len(found) == 2 and "standard deviation over seeds" in found[0].title
    rows = [row[:3] for row in found[0].data[1:]]
    assert rows == [["original", 7, 41.0], ["50", 7, 63.0], ["10", 7, 46.0]]
    assert found[0].data[1][4] == pytest.approx(2**0.5)
    assert str(section("trade-off", runs).parts[1]).endswith("picks 50.")
    assert not section("trade-off", runs[:4]).parts


def test_small_figures_and_their_ticks(tmp_path: Path) -> None:
    """R_q with numbers in full, the quality in use, and what it leaves out; tasks are integers."""
    more = {"left_out": {"class c": "one image", "jpeg 10": "too many rows"}}
    run = [made(tmp_path / "run", result=more)]
    (_, note) = section("volume-ratio", run).parts
    assert str(note).endswith("left out of R_q: class c (one image), jpeg 10 (too many rows).")
    (ratios,), (tasks,) = figures("volume-ratio", run), figures("confusion", run)
    assert ratios.small and tasks.small and ratios.title.endswith("; quality in use: 50")
    assert ">0.5<" in ratios.svg and ">5<" in ratios.svg
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", tasks.svg)
    assert texts.count("0") >= 2 and not any("." in text for text in texts)


def test_every_criterion_has_a_panel(tmp_path: Path) -> None:
    """A wide figure with bands for R_q and r; the discrepancy has none."""
    one = phase(0, 60.0)
    more = {"ratio_per_image": 1.01, "discrepancy": 0.02}
    events = [replace(one, candidates=[row | more for row in one.candidates])]
    (figure,) = figures("volume-ratio", [made(tmp_path / "run", events=events)])
    assert figure.data[0] == ["codec", "quality", "phase", "R_q", "r", "discrepancy"]
    assert figure.data[1:] == [
        ["jpeg", quality, place, ratio, 1.01, 0.02]
        for quality, ratio in ((50, 1.2), (10, 9.0))
        for place in (0, "mean")
    ]
    assert not figure.small and figure.svg.count(">discrepancy<") == 1
    assert "0.95 &lt; r &lt; 1.03 (JPEG 25 or better: 1.5)" in figure.svg


def test_the_bound_of_a_run_is_drawn(tmp_path: Path) -> None:
    """On both sides of 1."""
    one = phase(0, 60.0)
    events = [replace(one, candidates=[row | {"ratio_per_image": 1.1} for row in one.candidates])]
    chosen = {"criterion": "ratio-per-image", "epsilon": 0.2}
    (figure,) = figures("volume-ratio", [made(tmp_path / "run", events=events, memory=chosen)])
    assert "0.8 &lt; r &lt; 1.2" in figure.svg


def test_a_first_phase_taken_over_is_shown(tmp_path: Path) -> None:
    """As its own kind; its images do not count towards the speed. Small kinds are summed."""
    took = phase(0, 1, trained_images=9000, parts=PARTS | {"train": 0.1, "taken_over": 4.0})
    own, other = made(tmp_path / "a"), made(tmp_path / "b", events=[took, phase(1, 1)])
    assert ["taken_over" in figures("time", [run])[0].data[0] for run in (own, other)] == [0, 1]
    (before,), (table,) = grids("time", [own]), grids("time", [other])
    assert not before.caption and table.caption.startswith("Taken over: ")
    assert table.rows[1][2:] == ["9,080", "20"]
    found = seconds_by_part(read_run(own))
    assert (found["train"], found["evaluate"], found["other"]) == (8.0, 2.0, 0.5)
    assert len(KINDS) + 1 <= len(COLOURS)  # every kind has one


@pytest.mark.parametrize("name", [r"a$\frac$b", "_hidden", "caf\udce9"])
def test_any_name_can_be_in_a_legend(name: str) -> None:
    figure = Figure("Names", "Names", [])
    with drawn(figure) as axes:
        line(axes, 0, [0, 1], [0, 1], name)
        line(axes, 1, [0, 1], [1, 0], "other")
        legend(axes, 2)
    assert name.replace("\udce9", "?") in figure.svg and "other" in figure.svg
    assert short("a_rather_long_class_name") == "a_rathe…ass_name"


def test_labels_of_points_do_not_overlap() -> None:
    """Even if all points are in the same place."""
    with drawn(Figure("Labels", "Labels", [])) as axes:
        axes.set(xlim=(0, 1), ylim=(0, 1))
        label_points(axes, [(0.5, 0.5, text) for text in ("original", "90", "75", "50")])
        axes.figure.draw_without_rendering()
        boxes = [text.get_window_extent() for text in axes.texts]
    assert not any(box.count_overlaps([b for b in boxes if b is not box]) for box in boxes)


def test_escapes_in_names_leave_the_svg_valid() -> None:
    """XML forbids most control characters."""
    figure = Figure("Names", "Names", [])
    with drawn(figure) as axes:
        line(axes, 0, [0, 1], [0, 1], "a\x1b[31m\x00")
        legend(axes, 1)
    assert ElementTree.fromstring(figure.svg) is not None


def test_a_pipe_and_figures_of_others_are_refused(tmp_path: Path) -> None:
    """Reading the pipe would block forever; figures without a page are not ours."""
    os.mkfifo(tmp_path / "pipe.html")
    (tmp_path / "page-figures").mkdir()
    (tmp_path / "page-figures" / "a-1.svg").write_text("mine")
    for name, message in (("pipe", "is not a page"), ("page", "remove it"), ("x" * 250, "longer")):
        with pytest.raises(OutputError, match=message):
            write_page(tmp_path / f"{name}.html", "T", [Section("a", "A", ["text"])], "Lead.")
    assert (tmp_path / "page-figures" / "a-1.svg").read_text() == "mine"


def test_figures_of_an_older_page_are_removed(tmp_path: Path) -> None:
    """Those that the new page lacks, and nothing that is not a figure of ours."""
    figure = Figure("F", "F", [["name"]], svg="<svg/>")
    page, folder = tmp_path / "page.html", tmp_path / "page-figures"
    write_page(page, "T", [Section("a", "A", [figure, replace(figure)])], "Lead.")
    (folder / "notes.txt").write_text("mine")
    write_page(page, "T", [Section("a", "A", [figure])], "Lead.")
    assert {path.name for path in folder.iterdir()} == {"a-1.svg", "a-1.csv", "notes.txt"}


def test_cells_of_tables_are_no_formulas(tmp_path: Path) -> None:
    """Spreadsheets would evaluate them; numbers stay numbers."""
    figure = Figure("F", "F", [["name", "value"], ["=1+1", -2.5], ["@x", "y"]])
    figure.svg = "<svg/>"
    write_page(tmp_path / "page.html", "T", [Section("a", "A", [figure])], "Lead.")
    rows = (tmp_path / "page-figures" / "a-1.csv").read_text().splitlines()
    assert rows == ["name,value", "'=1+1,-2.5", "'@x,y"]
