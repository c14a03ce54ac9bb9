"""Pages: what they say of runs, what they leave out, and that they stand alone."""

import csv
import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mrdc._utils.errors import DataError, OutputError, UsageError
from mrdc.cli.main import main
from mrdc.data import open_images
from mrdc.data.photo import Photo
from mrdc.data.textures import textures
from mrdc.memory.replay import ReplayMemory
from mrdc.nn.checkpoint import Architecture, Checkpoint, write_checkpoint
from mrdc.report import write_report
from mrdc.report.contents import as_address, at_qualities
from mrdc.report.curves import PARTS as PARTS_DRAWN
from mrdc.report.figures import COLOURS, Figure, drawn, legend, line
from mrdc.report.page import write_page
from mrdc.report.parts import Grid, Section
from mrdc.report.runs import find_runs, grouped, read_run
from mrdc.report.sections import SECTIONS
from mrdc.report.tables import what_was_run

TASKS = [[80, 20], [30, 70]]
PARTS = {"train": 4.0, "evaluate": 1.0, "prepare": 0.25}


def phase(number: int, accuracy: float, quality: int | None = 50, **more: Any) -> dict[str, Any]:
    """What a phase event holds."""
    ratios = [(None, 1.0), (50, 1.2), (10, 9.0)]
    rows = [{"codec": "jpeg" if q else "original", "quality": q, "quantity": 5, "bytes": 50,
             "volume_ratio": r} for q, r in ratios]  # fmt: skip
    return {
        "event": "phase", "phase": number, "classes": 2 + number, "accuracy": accuracy,
        "head_accuracy": accuracy, "tasks": [accuracy], "quality": quality,
        "memory": {"bytes": 90, "budget_bytes": 100, "items": 7}, "candidates": rows,
        "trained_images": 80, "seconds": 6.0, "parts": PARTS, "confusion": TASKS, **more,
    }  # fmt: skip


def settings(**more: Any) -> dict[str, Any]:
    memory = {"budget": "8/class", "quality": "auto", "codec": "jpeg", "select": "herding",
              "accounting": "packed", "epsilon": 0.5, "candidates": [50, 10]}  # fmt: skip
    memory |= more.pop("memory", {})
    return {"data": "photos", "method": "lucir", "phases": 1, "seed": 0, "memory": memory, **more}


def made(folder: Path, curve: tuple[float, ...] = (60.0, 50.0), **more: Any) -> Path:
    """A run folder that nobody had to train for."""
    quality, name = more.pop("quality", 50), more.pop("name", "lucir-mrdc")
    done, events = more.pop("done", True), more.pop("events", None)
    folder.mkdir(parents=True)
    about = {"name": name, "commit": "abc1234", "cores": 2, "gpu": None, "torch": "2.0"}
    (folder / "config.json").write_text(json.dumps({"settings": settings(**more), **about}))
    lines = events or [phase(n, value, quality) for n, value in enumerate(curve)]
    if done:
        result = {"name": name, "average_incremental_accuracy": float(np.mean(curve))}
        result |= {"average_forgetting": -3.0, "paper": 61.0, "mean_choice": 50}
        result |= {"commit": "abc1234, then def5678"}
        lines = [*lines, result]
    text = "".join(json.dumps(line) + "\n" for line in [{"event": "start"}, *lines])
    (folder / "results.jsonl").write_text(text)
    return folder


def written(sources: list[Path], tmp_path: Path, **options: Any) -> str:
    write_report(sources, tmp_path / "page.html", **options)
    return (tmp_path / "page.html").read_text()


# Runs


def test_runs_are_found_in_folders_of_folders(tmp_path: Path) -> None:
    """Each once, whether by its folder, its results or the folder above."""
    one, two = made(tmp_path / "s" / "one"), made(tmp_path / "s" / "two", seed=1)
    found = find_runs([tmp_path / "s", one, two / "results.jsonl"])
    assert [run.path for run in found] == [one, two]
    assert [group.label for group in grouped(found)] == ["lucir-mrdc, quality auto"]


def test_only_runs_that_differ_in_nothing_but_the_seed_are_averaged(tmp_path: Path) -> None:
    """Others stand apart, and their labels tell why."""
    for number, epochs in enumerate([1, 1, 4]):
        made(tmp_path / "s" / str(number), seed=number, train={"epochs": epochs})
    made(tmp_path / "s" / "3", memory={"select": "random_choice"}, train={"epochs": 1})
    groups = grouped(find_runs([tmp_path / "s"]))
    assert [(group.label, len(group.runs)) for group in groups] == [
        ("lucir-mrdc, quality auto, train.epochs 1", 2),
        ("lucir-mrdc, quality auto, train.epochs 4", 1),
        ("lucir-mrdc, quality auto, random_choice", 1),
    ]


def test_a_seed_counts_once(tmp_path: Path) -> None:
    """Run again it would look like a second seed without any spread."""
    seeds = [("a", 0, 60.0), ("b", 1, 40.0), ("again", 0, 60.0)]
    runs = [made(tmp_path / name, (value, value), seed=seed) for name, seed, value in seeds]
    (group,) = grouped(find_runs(runs))
    assert [run.path.name for run in group.runs] == ["a", "b"]
    page = written(runs, tmp_path)
    assert "50.00 ± 14.14" in page and "A seed that was run more than once counts once" in page
    assert "counts once" not in written(runs[:2], tmp_path)


def test_unfinished_runs_stand_apart(tmp_path: Path) -> None:
    """The mean of its first phases is not to be compared."""
    done = made(tmp_path / "done", seed=0)
    going = made(tmp_path / "going", (90.0,), done=False, seed=1)
    labels = [group.label for group in grouped(find_runs([done, going]))]
    assert labels[1] == f"{labels[0]}, unfinished after 1"
    other = made(tmp_path / "other", (90.0,), done=False, options=["margin=1"])
    labels = [group.label for group in grouped(find_runs([done, other]))]
    assert labels[1] == f"{labels[0]}, options margin=1, unfinished after 1"


def test_many_lines_take_several_figures(tmp_path: Path) -> None:
    """No more to each than there are colours, and about equally many."""
    runs = [made(tmp_path / str(n), phases=1, train={"lr": n}) for n in range(len(COLOURS) + 3)]
    section = SECTIONS["accuracy"](find_runs(runs))
    assert section is not None
    figures = [part for part in section.parts if isinstance(part, Figure)]
    lines = [len({row[0] for row in figure.data[1:]}) for figure in figures]
    assert lines == [5, 6]  # not 8 and 3


def test_what_all_runs_share_is_told_once(tmp_path: Path) -> None:
    """In a line, not in columns; of a single run all stands in the table."""
    folders = [made(tmp_path / str(n), seed=n) for n in range(2)]
    grid = what_was_run(find_runs(folders)).parts[0]
    assert isinstance(grid, Grid)
    assert "seed" in grid.rows[0] and "data" not in grid.rows[0] and "budget" not in grid.rows[0]
    assert grid.caption.startswith("All of them: data ") and "phases 1" in grid.caption
    alone = what_was_run(find_runs(folders[:1])).parts[0]
    assert isinstance(alone, Grid)
    assert "data" in alone.rows[0] and not alone.caption


def test_runs_without_a_memory_have_no_budget(tmp_path: Path) -> None:
    """Whatever their settings say."""
    events = [phase(0, 60.0, None)]
    events[0]["memory"] = {"bytes": 0, "budget_bytes": 0, "items": 0}
    bare = made(tmp_path / "bare", events=events, name="finetune")
    grid = what_was_run(find_runs([bare, made(tmp_path / "other")])).parts[0]
    assert isinstance(grid, Grid)
    places = [grid.rows[0].index(head) for head in ("budget", "quality")]
    bare_row, other_row = ([row[place] for place in places] for row in grid.rows[1:])
    assert bare_row == ["", ""] and other_row == ["8/class", "auto"]


def test_data_of_one_name_in_two_places_are_two(tmp_path: Path) -> None:
    """Their groups are told apart by where they lie."""
    for number, place in enumerate(("/a/photos", "/b/photos")):
        made(tmp_path / "s" / str(number), data=place)
    labels = [group.label for group in grouped(find_runs([tmp_path / "s"]))]
    assert [label.rpartition(", ")[2] for label in labels] == ["data /a/photos", "data /b/photos"]


def test_a_run_is_counted_once_however_it_is_named(tmp_path: Path) -> None:
    """By a link, too."""
    run = made(tmp_path / "run")
    (tmp_path / "link").symlink_to(run)
    assert len(find_runs([run, tmp_path / "link", tmp_path / "run" / ".." / "run"])) == 1


def test_all_commits_of_a_finished_run_are_shown(tmp_path: Path) -> None:
    """Not only the one that it was begun with."""
    assert "abc1234, then def5678" in written([made(tmp_path / "run")], tmp_path)


@pytest.mark.parametrize("name", [r"a$\frac$b", "_hidden", "caf\udce9"])
def test_any_name_stands_in_a_legend(name: str) -> None:
    """No formula, not left out, and readable as far as it can be."""
    figure = Figure("names", "Names", "Names")
    with drawn(figure) as axes:
        line(axes, 0, [0, 1], [0, 1], name)
        line(axes, 1, [0, 1], [1, 0], "other")
        legend(axes, 2)
    assert name.replace("\udce9", "?") in figure.svg and "other" in figure.svg


@pytest.mark.parametrize(
    ("where", "message"), [("nowhere", "no such folder"), (".", "no run in it")]
)
def test_no_run_is_refused(where: str, message: str, tmp_path: Path) -> None:
    """With what is wanted, and nothing is written."""
    with pytest.raises(DataError, match=message):
        write_report([tmp_path / where], tmp_path / "page.html")
    assert not list(tmp_path.iterdir())


def test_a_run_that_is_still_going(tmp_path: Path) -> None:
    """Its finished phases count; the page says how far it is."""
    page = written([made(tmp_path / "run", (60.0,), done=False)], tmp_path)
    assert "phase 1 of 2 is going, or was stopped" in page
    assert "60.00" in page and "lucir-mrdc" in page


def test_broken_lines_are_told_and_passed_over(tmp_path: Path) -> None:
    """The rest of the run counts."""
    run = made(tmp_path / "run")
    with (run / "results.jsonl").open("ab") as file:
        file.write(b'{"event": "phase", "phase"\n')
    found = read_run(run)
    assert found.problems == ["line 5 of results.jsonl cannot be read"]
    assert found.accuracy == [60.0, 50.0]
    assert "line 5 of results.jsonl cannot be read" in written([run], tmp_path)


def test_a_run_without_a_phase_between_is_left_out(tmp_path: Path) -> None:
    """Its numbers would mean something else."""
    run = made(tmp_path / "run", events=[phase(0, 50), phase(2, 40)])
    assert read_run(run).phases == []
    assert "lacks phases" in written([run, made(tmp_path / "good")], tmp_path)


def test_a_config_of_somebody_else_is_told(tmp_path: Path) -> None:
    """And the page is still written."""
    run = made(tmp_path / "run")
    (run / "config.json").write_text("{")
    assert "config.json cannot be read" in written([run], tmp_path)


@pytest.mark.parametrize("text", ["[]", "3"])
def test_a_config_of_another_kind_is_told(text: str, tmp_path: Path) -> None:
    run = made(tmp_path / "run")
    (run / "config.json").write_text(text)
    assert "config.json cannot be read" in written([run], tmp_path)


def test_phases_of_somebody_else_are_told(tmp_path: Path) -> None:
    run = made(tmp_path / "run", events=[{"event": "phase", "phase": 0}], done=False)
    assert "line 2 of results.jsonl cannot be read" in written([run], tmp_path)


def test_equal_phases_have_no_first_one_beside_them(tmp_path: Path) -> None:
    page = written([made(tmp_path / "run", (), done=False, phases=5, first="equal")], tmp_path)
    assert "phase 0 of 5 is going" in page


def test_a_run_that_has_only_begun_is_a_page_without_figures(tmp_path: Path) -> None:
    """Of what it was told to do."""
    run = made(tmp_path / "run", (), done=False)
    page = written([run], tmp_path)
    assert "phase 0 of 2 is going" in page and "<svg" not in page


def test_data_must_be_the_same_to_compare(tmp_path: Path) -> None:
    """Else the page says so."""
    runs = [made(tmp_path / "a"), made(tmp_path / "b", data="others")]
    assert "different data" in written(runs, tmp_path)
    assert "different data" not in written(runs[:1], tmp_path)


# The page


def test_means_and_deviations_over_seeds(tmp_path: Path) -> None:
    """55 and 65: 60 with a sample deviation of 7.07, beside the paper's number."""
    runs = [made(tmp_path / "a", (60.0, 50.0)), made(tmp_path / "b", (70.0, 60.0), seed=1)]
    page = written(runs, tmp_path)
    assert "60.00 ± 7.07" in page and "61.00" in page


def test_a_seed_of_an_older_version_does_not_hide_the_papers_number(tmp_path: Path) -> None:
    """Its result tells none."""
    runs = [made(tmp_path / "a"), made(tmp_path / "b", seed=1)]
    results = runs[0] / "results.jsonl"
    results.write_text(results.read_text().replace('"paper": 61.0', '"paper": null'))
    assert "61.00" in written(runs, tmp_path)
    results.write_text(results.read_text().replace('"paper": null', '"paper": 62.0'))
    page = written(runs, tmp_path)
    assert "61.00" not in page and "62.00" not in page


def test_options_are_told_as_they_were_given(tmp_path: Path) -> None:
    runs = [made(tmp_path / str(n), options=given) for n, given in enumerate([[], ["a=1", "b=2"]])]
    page = written(runs, tmp_path)
    assert "quality auto, options a=1 b=2" in page and "quality auto, options none" in page


def test_names_from_users_are_escaped(tmp_path: Path) -> None:
    """In text, in tables, in what figures say, and in the title."""
    evil = "<script>alert(1)</script>"
    page = written([made(tmp_path / "run", name=evil, data=f"/x/{evil}")], tmp_path)
    assert evil not in page and "&lt;script&gt;alert(1)" in page
    assert page.count("<script>") == 1  # ours


def test_the_page_stands_alone(tmp_path: Path) -> None:
    """It asks for nothing from anywhere; ids that figures refer to are their own."""
    runs = [made(tmp_path / str(q), quality=q, name=str(q)) for q in (90, 50, 10)]
    page = written(runs, tmp_path)
    assert not re.findall(r"(?:src|href)=\"(?!#|data:)", page)
    assert "default-src 'none'" in page
    assert not re.findall(r"url\((?!#)", page)
    ids = re.findall(r'\sid="([^"]+)"', page)
    assert len(ids) == len(set(ids))


def test_sections_without_data_are_left_out(tmp_path: Path) -> None:
    """One run has no trade-off and no detector."""
    page = written([made(tmp_path / "run")], tmp_path)
    there = set(re.findall(r'<section id="([^"]+)"', page))
    assert there == {"runs", "table", "accuracy", "budget", "volume-ratio", "confusion", "time"}


def test_some_sections_can_be_asked_for(tmp_path: Path) -> None:
    """In their order; others are refused by name."""
    run = made(tmp_path / "run")
    page = written([run], tmp_path, sections=("table", "time"), title="T", question="Why?")
    assert re.findall(r'<section id="([^"]+)"', page) == ["table", "time"]
    assert "<h1>T</h1>" in page and "Why?" in page
    with pytest.raises(UsageError, match="unknown section 'tables'"):
        write_report([run], tmp_path / "page.html", sections=("tables",))


def test_the_papers_table_stands_after_ours(tmp_path: Path) -> None:
    """With its header."""
    page = written([made(tmp_path / "run")], tmp_path, paper=[["budget", "%"], ["20", 70.84]])
    names = re.findall(r'<section id="([^"]+)"', page)
    assert names[:3] == ["runs", "table", "paper"] and "70.84" in page


def test_figures_are_also_files(tmp_path: Path) -> None:
    """SVG, and what was drawn as CSV."""
    written([made(tmp_path / "run")], tmp_path)
    folder = tmp_path / "page-figures"
    names = {path.stem for path in folder.iterdir()}
    assert {"accuracy-1", "time-1", "volume-ratio-1", "confusion-1"} == names
    rows = list(csv.reader((folder / "accuracy-1.csv").read_text().splitlines()))
    assert rows[0][:3] == ["run", "phase", "accuracy of the classes seen, %"]
    assert [float(row[2]) for row in rows[1:]] == [60.0, 50.0]
    assert (folder / "accuracy-1.svg").read_text().startswith("<svg")


def test_what_accuracy_is_measured_on_is_told(tmp_path: Path) -> None:
    """Images set aside, and synthetic ones; a test split of its own goes without saying."""
    results = [{"held_out": True, "synthetic": False}, {"held_out": False, "synthetic": True}, {}]
    folders = []
    for number, more in enumerate(results):
        folder = made(tmp_path / str(number), data=f"data-{number}")
        *events, result = (folder / "results.jsonl").read_text().splitlines()
        lines = [*events, json.dumps(json.loads(result) | more)]
        (folder / "results.jsonl").write_text("".join(f"{line}\n" for line in lines))
        folders.append(folder)
    page = written(folders, tmp_path)
    assert "data-0: no test images of their own" in page
    assert "data-1: synthetic images" in page
    assert "data-2:" not in page


def test_what_r_q_leaves_out_is_named(tmp_path: Path) -> None:
    """Classes, and candidates of which nothing is known."""
    events = [phase(0, 60.0), phase(1, 50.0)]
    events[0]["candidates"][1]["excluded_classes"] = {"c<1>": "one image"}
    events[1]["candidates"][2] |= {"volume_ratio": None, "verdict": "too many rows"}
    page = written([made(tmp_path / "a", events=events)], tmp_path)
    assert "left out of R_q: class c&lt;1&gt; (one image), jpeg 10 (too many rows)." in page
    assert "left out of R_q" not in written([made(tmp_path / "b")], tmp_path)


def test_runs_of_other_phases_are_told_apart(tmp_path: Path) -> None:
    """By their labels, and in a figure each."""
    runs = [made(tmp_path / str(n), (60.0,) * (n + 1), phases=n) for n in (1, 2)]
    runs.append(made(tmp_path / "more", (60.0, 50.0), phases=1, name="podnet"))
    page = written(runs, tmp_path)
    labels = [group.label for group in grouped(find_runs(runs))]
    names = ("lucir-mrdc", "lucir-mrdc", "podnet")
    told = [f"{name}, quality auto" for name in names]
    assert labels == [f"{told[0]}, 1 phases", f"{told[1]}, 2 phases", f"{told[2]}, 1 phases"]
    assert all(f"<td>{label}</td>" in page for label in labels)
    for number, named in ((1, {labels[0], labels[2]}), (2, {labels[1]})):
        drawn = (tmp_path / f"page-figures/accuracy-{number}.csv").read_text()
        assert {row[0] for row in csv.reader(drawn.splitlines())} == {"run"} | named


def test_only_budgets_that_differ_are_told(tmp_path: Path) -> None:
    """Beside the name."""
    runs = [made(tmp_path / "one"), made(tmp_path / "two", memory={"budget": "4/class"})]
    labels = [group.label for group in grouped(find_runs(runs))]
    assert labels == ["lucir-mrdc, 8/class, quality auto", "lucir-mrdc, 4/class, quality auto"]


def test_what_a_method_adds_to_the_network_is_told_in_bytes(tmp_path: Path) -> None:
    events = [phase(0, 60.0), phase(1, 50.0)]
    events[1]["memory"] = {**events[1]["memory"], "parameter_bytes": 50277392}
    page = written([made(tmp_path / "run", events=events)], tmp_path)
    assert "parameters added, bytes" in page and "50,277,392" in page


def test_small_figures_stand_in_pairs(tmp_path: Path) -> None:
    """R_q and confusion; its caption tells which quality was used, and numbers are in full."""
    page = written([made(tmp_path / "run")], tmp_path)
    assert page.count('<figure class="small">') == 2
    assert "in use: 50 (rule: auto)" in page
    curve = (tmp_path / "page-figures/volume-ratio-1.svg").read_text()
    assert ">0.5<" in curve and ">5<" in curve


def test_tasks_are_whole_numbers(tmp_path: Path) -> None:
    """Two tasks have two ticks, on both sides."""
    written([made(tmp_path / "run")], tmp_path)
    drawn = (tmp_path / "page-figures/confusion-1.svg").read_text()
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", drawn)
    assert texts.count("0") >= 2 and not any("." in text for text in texts)


def test_parts_of_the_time_differ_in_colour() -> None:
    """There are as many colours."""
    assert len(PARTS_DRAWN) + 1 <= len(COLOURS)


def test_pages_of_the_same_runs_are_the_same(tmp_path: Path) -> None:
    """To the byte."""
    run = made(tmp_path / "run")
    assert written([run], tmp_path) == written([run], tmp_path)


def test_the_best_quality_and_what_r_q_chose(tmp_path: Path) -> None:
    """Runs that differ only in quality; fewer than three are no curve."""
    values = {None: 40.0, 90: 50.0, 50: 62.0, 10: 45.0}
    runs = []
    for quality, value in values.items():
        memory = {"quality": str(quality or "original")}
        name = f"q{quality}"
        runs.append(made(tmp_path / name, (value, value), quality=quality, memory=memory))
    section = SECTIONS["trade-off"](find_runs(runs))
    assert section is not None
    figure, told = section.parts
    assert isinstance(figure, Figure)
    assert [row[0] for row in figure.data[1:]] == ["original", "90", "50", "10"]
    assert told == "Best by averaged accuracy: 50. R_q along the run of originals chooses 50."
    assert SECTIONS["trade-off"](find_runs(runs[:2])) is None


def test_curves_of_other_training_are_other_curves(tmp_path: Path) -> None:
    """Three qualities, and the same ones trained shorter."""
    runs = [
        made(tmp_path / f"{quality}-{epochs}", (value, value), quality=quality,
             memory={"quality": str(quality)}, train={"epochs": epochs})
        for epochs, more in ((90, 20.0), (1, 0.0))
        for quality, value in ((90, 50.0 + more), (50, 40.0 + more), (10, 30.0 + more))
    ]  # fmt: skip
    section = SECTIONS["trade-off"](find_runs(runs))
    assert section is not None
    figures = [part for part in section.parts if isinstance(part, Figure)]
    found = [[row[2] for row in figure.data[1:]] for figure in figures]
    assert sorted(found) == [[50.0, 40.0, 30.0], [70.0, 60.0, 50.0]]


def test_time_is_added_up_by_part() -> None:
    """Small parts are put together."""
    from mrdc.report.curves import seconds_of
    from mrdc.report.runs import Run

    run = Run(Path("x"), {}, {}, [phase(0, 1), phase(1, 1)], None)
    found = seconds_of(run)
    assert (found["train"], found["evaluate"], found["other"]) == (8.0, 2.0, 0.5)


def test_a_first_phase_taken_over_is_told(tmp_path: Path) -> None:
    """As a part of its own, where there was one; parts that took no time are not drawn."""
    took = [phase(0, 1, parts=PARTS | {"taken_over": 4.0}), phase(1, 1)]
    pages = []
    for name, events in (("own", None), ("other", took)):
        folder = tmp_path / name
        pages.append(written([made(folder / "run", events=events)], folder))
        head = (folder / "page-figures/time-1.csv").read_text().splitlines()[0]
        assert ("taken_over" in head) == (name == "other")
    assert ["Taken over: " in page for page in pages] == [False, True]


def test_the_rate_is_that_of_the_runs_own_training(tmp_path: Path) -> None:
    """The images of a phase that was taken over are counted, but nobody saw how fast they went."""
    took = phase(0, 1, trained_images=9000, parts={"train": 0.1, "taken_over": 4.0})
    section = SECTIONS["time"](find_runs([made(tmp_path / "run", events=[took, phase(1, 1)])]))
    assert section is not None
    (grid,) = (part for part in section.parts if isinstance(part, Grid))
    assert grid.rows[1][2:] == ["9,080", "20"]


def test_scenes_have_a_table_of_their_own(tmp_path: Path) -> None:
    """AP, AP by class, and what pseudo labels were worth."""
    more: dict[str, Any] = {"ap": 30.0, "ap50": 55.0, "ap75": 20.0}
    more["by_class"] = {"car": 31.0, "bus": None}
    more["report"] = {"labels_per_image": 1.5, "precision": 80.0, "recall": 40.0}
    run = made(tmp_path / "run", events=[phase(0, 30.0, **more)], detector="lite0",
               method="unbiased-teacher")  # fmt: skip
    page = written([run], tmp_path)
    assert '<section id="detection"' in page
    for text in ("AP75", "55.00", "car", "31.00", "80.00"):
        assert text in page


def test_pages_tell_of_pseudo_labels_without_a_truth(tmp_path: Path) -> None:
    """How many there were, the student's AP, warnings, and classes that only some runs have."""
    folders = []
    for name, report in (
        ("car", {"pseudo_labels_per_image": 2.25, "student_ap": 28.5, "warning": "R_q is noise"}),
        ("bus", {"labels_per_image": 0.75}),
    ):
        more: dict[str, Any] = {"ap": 30.0, "ap50": 55.0, "ap75": 20.0, "report": report}
        more["by_class"] = {name: 31.0}
        folders.append(
            made(tmp_path / name, events=[phase(0, 30.0, **more)], detector="lite0", data=name)
        )
    section = SECTIONS["detection"](find_runs(folders))
    assert section is not None
    scores, labels = (part for part in section.parts if isinstance(part, Grid))
    assert scores.rows[0][1:] == ["car", "bus"]
    assert labels.rows[0][1:] == ["phase", "labels an image", "AP", "AP of the student"]
    assert [row[2:] for row in labels.rows[1:]] == [
        ["2.25", "30.00", "28.50"],
        ["0.75", "30.00", ""],
    ]
    assert str(section.parts[-1]).endswith("phase 0: R_q is noise.")


def test_pages_about_scenes_average_over_seeds(tmp_path: Path) -> None:
    """AP by class and the worth of pseudo labels; what only one seed knows is its alone."""
    folders = []
    for seed, (score, precision) in enumerate([(30.0, None), (40.0, 80.0)]):
        more: dict[str, Any] = {"ap": score, "ap50": 55.0, "ap75": 20.0, "by_class": {"car": score}}
        more["report"] = {"labels_per_image": 1.0, "precision": precision, "warning": "few"}
        event = phase(0, score, **more)
        folders.append(made(tmp_path / str(seed), events=[event], detector="lite0", seed=seed))
    section = SECTIONS["detection"](find_runs(folders))
    assert section is not None
    scores, labels = (part for part in section.parts if isinstance(part, Grid))
    assert scores.rows[1][1:] == ["35.00 ± 7.07"]
    assert labels.rows[1][2:] == ["1.00 ± 0.00", "80.00", "35.00 ± 7.07"]
    assert len([part for part in section.parts if isinstance(part, str)]) == 1


def test_grids_leave_out_empty_columns_and_know_numbers() -> None:
    """Which stand to the right."""
    grid = Grid([["a", "b", "c", "d"], ["x", "", 1, "2.5 ± 1"], ["y", None, "-3", ""]])
    assert grid.rows[0] == ["a", "c", "d"]
    assert grid.numbers == [False, True, True]


@pytest.mark.parametrize(
    ("output", "kind", "message"),
    [
        ("page.txt", UsageError, "must end in .html"),
        ("no/page.html", OutputError, "there is no folder"),
        ("theirs.html", OutputError, "is no page of mrdc"),
    ],
)
def test_refuses_to_write_elsewhere(
    output: str, kind: type[Exception], message: str, tmp_path: Path
) -> None:
    """What is there stays."""
    (tmp_path / "theirs.html").write_text("mine")
    with pytest.raises(kind, match=message):
        write_page(tmp_path / output, "T", [Section("a", "A", ["text"])])
    assert (tmp_path / "theirs.html").read_text() == "mine"


def test_two_figures_share_no_names() -> None:
    """Clip paths and markers of one never serve another."""
    figures = [Figure(name, "t", "a") for name in ("one", "two")]
    for figure in figures:
        with drawn(figure) as axes:
            line(axes, 0, [0, 1], [1, 2], "l")
    first, second = (set(re.findall(r'\sid="([^"]+)"', figure.svg)) for figure in figures)
    assert first and not first & second
    for figure in figures:
        used = set(re.findall(r"(?:url\(#|href=\"#)([^)\"]+)", figure.svg))
        assert used <= set(re.findall(r'\sid="([^"]+)"', figure.svg))


# What is in the memory


def kept(folder: Path) -> Path:
    """A run folder with a memory of textures, and a network."""
    run = made(folder, data="textures", size=64)
    images = textures(3, 8)
    memory = ReplayMemory("20kB", "jpeg", 50, class_names=dict(enumerate(images.classes)))
    memory.add(dict(enumerate(images.photos)))
    memory.save(run / "memory-01.mrdc")
    what = Architecture("lucir", "SplitCosine", 2, "3x3", 32, (2, 1))
    with torch.random.fork_rng(devices=[]):
        net = what.build()
    tensors = {"model": dict(net.state_dict())}
    write_checkpoint(run / "phase-01.safetensors", Checkpoint(what, tensors, {"phase": 1}))
    return run


def test_a_memory_shows_its_images_and_features(tmp_path: Path) -> None:
    """At every quality, with bytes and likeness; bytes by class; t-SNE before and after."""
    page = written([kept(tmp_path / "run")], tmp_path)
    assert {"memory", "t-sne"} <= set(re.findall(r'<section id="([^"]+)"', page))
    assert page.count("data:image/png;base64,") == 3 * 3
    assert len(re.findall(r"jpeg 50, [\d,]+ bytes, features [01]\.\d+ alike", page)) == 2 * 3
    text = (tmp_path / "page-figures" / "t-sne-1.csv").read_text()
    rows = list(csv.reader(text.splitlines()))
    assert {row[0] for row in rows[1:]} == {"texture00", "texture01", "texture02"}
    assert [row[1] for row in rows[1:]].count("True") == [row[1] for row in rows[1:]].count("False")


def test_without_its_data_a_memory_shows_its_bytes_alone(tmp_path: Path) -> None:
    """And says nothing of what cannot be seen."""
    run = kept(tmp_path / "run")
    config = json.loads((run / "config.json").read_text())
    config["settings"]["data"] = str(tmp_path / "gone")
    (run / "config.json").write_text(json.dumps(config))
    page = written([run], tmp_path)
    assert '<section id="memory"' in page and '<section id="t-sne"' not in page
    assert "data:image/png" not in page


def test_originals_that_cannot_be_read_are_not_shown(tmp_path: Path) -> None:
    """Somebody wrote over them since."""
    from tests.conftest import make_photos

    photos = make_photos(tmp_path / "photos", classes=3, images=8)
    run = kept(tmp_path / "run")
    config = json.loads((run / "config.json").read_text())
    config["settings"]["data"] = str(photos)
    (run / "config.json").write_text(json.dumps(config))
    memory = ReplayMemory("20kB", "jpeg", 50, class_names={n: f"class{n}" for n in range(3)})
    memory.add(dict(enumerate(open_images(photos).photos)))
    memory.save(run / "memory-01.mrdc")
    assert "data:image/png" in written([run], tmp_path)
    for file in photos.rglob("*.jpg"):
        file.write_bytes(b"junk")
    page = written([run], tmp_path)
    assert '<section id="memory"' in page and "data:image/png" not in page


def test_a_photo_at_every_quality() -> None:
    """The original first; each as a part of at most 160 x 160 pixels."""
    from mrdc.codec import CODECS

    pixels = np.random.default_rng(0).integers(0, 256, (200, 300, 3), dtype=np.uint8)
    data = CODECS["jpeg"].encode(pixels, 95)
    jpeg = CODECS["jpeg"]
    strip = at_qualities(Photo("p", partial(bytes, data)), [(jpeg, 10), (jpeg, 90)], None)
    assert [caption.partition(",")[0] for _, caption in strip] == ["original", "jpeg 90", "jpeg 10"]
    assert strip[0][1] == f"original, {len(data):,} bytes"
    assert as_address(pixels).startswith("data:image/png;base64,")


# Commands


def test_the_command_writes_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And says about how many runs."""
    made(tmp_path / "runs" / "a")
    output = str(tmp_path / "r.html")
    assert main(["report", str(tmp_path / "runs"), "-o", output]) == 0
    assert "about 1 run" in " ".join(capsys.readouterr().out.split())
    assert main(["report", str(tmp_path / "runs"), "-o", output, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == {"output": output, "runs": [str(tmp_path / "runs" / "a")]}
    assert main(["report", str(tmp_path / "none"), "-o", output]) == 2
    assert "no such folder" in capsys.readouterr().err
    assert main(["report", "-o", str(tmp_path / "other.html")]) == 2
    assert "no folder given" in capsys.readouterr().err and not (tmp_path / "other.html").exists()


def test_a_plan_has_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The choice, the curve and the images; one quality is no choice."""
    from tests.conftest import make_photos

    photos = make_photos(tmp_path / "photos", classes=2, images=4)
    page = tmp_path / "plan.html"
    flags = ["--budget", "2/class", "--quality", "50", "20", "--report", str(page)]
    assert main(["plan", str(photos), *flags]) == 0
    text = page.read_text()
    assert re.findall(r'<section id="([^"]+)"', text) == ["choice", "curve", "images"]
    assert "features" in text and (tmp_path / "plan-figures" / "curve-1.csv").exists()
    capsys.readouterr()
    bad = photos / "class0" / "00.jpg"
    bad.rename(bad.with_name("0\udcff.jpg"))  # a name that is no text
    (photos / "class0" / "01.jpg").write_bytes(b"junk")
    assert main(["plan", str(photos), *flags, "--skip-bad"]) == 0
    assert page.read_text().count("data:image/png") < text.count("data:image/png")
    capsys.readouterr()
    one = ["--budget", "2/class", "--quality", "50", "--report", str(page)]
    assert main(["pack", str(photos), *one, "-o", str(tmp_path / "m.mrdc")]) == 2
    assert "allow more than one" in capsys.readouterr().err
