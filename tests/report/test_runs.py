"""Reading run folders: what counts as a run, its order, groups over seeds, and damage."""

import json
from pathlib import Path
from typing import Any

import pytest

from mrdc._utils.errors import DataError
from mrdc.report.runs import by_seed, find_runs, read_run
from mrdc.report.tables import compared
from tests.report.folders import RESULT, made, phase


def test_each_run_is_found_once(tmp_path: Path) -> None:
    """By its folder, its results, a parent folder or a link; a folder without runs is refused."""
    for where, message in (("nowhere", "no such folder"), (".", "contains no run")):
        with pytest.raises(DataError, match=message):
            find_runs([tmp_path / where])
    one, two = made(tmp_path / "s" / "one"), made(tmp_path / "s" / "two", seed=1)
    (tmp_path / "link").symlink_to(one)
    found = find_runs([tmp_path / "s", one, two / "results.jsonl", tmp_path / "link"])
    assert [run.path for run in found] == [one, two]


def test_quality_0_is_not_the_original(tmp_path: Path) -> None:
    """A codec from a plugin may have it."""
    found = [read_run(made(tmp_path / str(n), quality=n)).quality for n in (0, None)]
    assert found == ["0", "original"]


def test_runs_are_in_the_order_of_their_grid(tmp_path: Path) -> None:
    """Originals first, numbers sorted as numbers, whatever the folder names."""
    qualities = ("10", "auto", "90", "original", "100")
    for quality in qualities:
        made(tmp_path / "q" / quality, memory={"quality": quality})
    found = [run.memory["quality"] for run in find_runs([tmp_path / "q"])]
    assert found == ["original", "100", "90", "10", "auto"]
    for budget in ("16MB", "4MB", "900kB"):
        for phases in (25, 5):
            folder = tmp_path / "b" / f"{budget}-{phases}"
            made(folder, memory={"budget": budget}, phases=phases)
    found = [(run.settings["phases"], run.memory["budget"]) for run in find_runs([tmp_path / "b"])]
    assert found == [(p, b) for p in (5, 25) for b in ("900kB", "4MB", "16MB")]


def test_only_runs_that_differ_in_nothing_but_the_seed_are_averaged(tmp_path: Path) -> None:
    """Labels name what else differs."""
    for number, epochs in enumerate([1, 1, 4]):
        made(tmp_path / "s" / str(number), seed=number, train={"epochs": epochs})
    made(tmp_path / "s" / "3", memory={"select": "random"}, train={"epochs": 1}, seed=5)
    groups = by_seed(find_runs([tmp_path / "s"]))
    assert [(group.label, len(group.runs)) for group in groups] == [
        ("lucir-mrdc, quality auto, train.epochs 1", 2),
        ("lucir-mrdc, quality auto, train.epochs 4", 1),
        ("lucir-mrdc, quality auto, random", 1),
    ]


def test_a_fixed_quality_does_not_depend_on_how_one_would_be_chosen(tmp_path: Path) -> None:
    """Seeds with two criteria are averaged, but not if the criterion chose."""
    for quality in ("50", "auto"):
        for seed, criterion in enumerate(("volume-ratio", "discrepancy")):
            memory = {"quality": quality, "criterion": criterion}
            made(tmp_path / f"{quality}{seed}", seed=seed, memory=memory)
    assert [len(group.runs) for group in by_seed(find_runs([tmp_path]))] == [2, 1, 1]


def test_a_setting_that_an_older_version_did_not_know_had_its_default(tmp_path: Path) -> None:
    """So seeds of two versions are averaged, unless the newer one changes the setting."""
    made(tmp_path / "old", seed=0)
    made(tmp_path / "new", seed=1, train={"match": 0.0})
    made(tmp_path / "matched", seed=2, train={"match": 1.0})
    groups = by_seed(find_runs([tmp_path]))
    assert [len(group.runs) for group in groups] == [2, 1]
    assert "train.match 1.0" in groups[1].label


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ({"memory": {"budget": "4/class"}}, {}, ["4/class, quality auto", "8/class, quality auto"]),
        ({"phases": 1}, {"phases": 2}, ["quality auto, 1 phases", "quality auto, 2 phases"]),
        ({"options": []}, {"options": ["a=1", "b=2"]}, ["options none", "options a=1 b=2"]),
        ({"data": "/a/x"}, {"data": "/b/x"}, ["data /a/x", "data /b/x"]),
        ({"data": "/a/x"}, {"data": "/a/y", "first": "2"}, ["quality auto, x", "quality auto, y"]),
        ({"seed": 0}, {"seed": 1, "done": False}, ["quality auto", "unfinished after 2"]),
    ],
)
def test_labels_name_what_differs(
    first: dict[str, Any], second: dict[str, Any], expected: list[str], tmp_path: Path
) -> None:
    runs = [made(tmp_path / "0", **first), made(tmp_path / "1", **second)]
    found = [group.label for group in by_seed(find_runs(runs))]
    pairs = zip(found, expected, strict=True)
    assert all(label.startswith("lucir-mrdc, ") and label.endswith(text) for label, text in pairs)


def test_a_seed_counts_once(tmp_path: Path) -> None:
    """A repeated run would look like a second seed without any spread."""
    seeds = [("a", 0, 60.0), ("b", 1, 40.0), ("c", 0, 60.0)]
    runs = [made(tmp_path / name, (value, value), seed=seed) for name, seed, value in seeds]
    (group,) = by_seed(find_runs(runs))
    assert [run.path.name for run in group.runs] == ["a", "b"]
    counted = [str(part) for part in compared(find_runs(runs)).parts]
    assert counted[1] == "A seed that was run more than once counts once."


def test_damage_is_reported(tmp_path: Path) -> None:
    """Broken lines are skipped; a run that lacks a phase or its settings is left out."""
    run = made(tmp_path / "run")
    found = read_run(run)
    assert found.phases == [phase(0, 60.0), phase(1, 50.0)] and not found.problems
    assert found.result is not None and found.result.mean_choice == RESULT.mean_choice
    with (run / "results.jsonl").open("ab") as file:
        file.write(b'{"event": "phase", "phase"\n{"event": "phase", "phase": 2}\n')
    found = read_run(run)
    broken, lacking = found.problems
    assert broken == "line 5 of results.jsonl cannot be read (not a JSON object)"
    assert lacking.startswith("line 6 of results.jsonl cannot be read (not a PhaseResult: ")
    assert found.accuracy == [60.0, 50.0] and found.name == "lucir-mrdc"
    found = read_run(made(tmp_path / "lacking", events=[phase(0, 50), phase(2, 40)]))
    assert found.phases == [] and found.result is None and "lacks phases" in found.problems[0]
    for text in ("{", "[]", "3", "{}", '{"settings": {"phases": "x"}}', "[" * 5000):
        (run / "config.json").write_text(text)
        found = read_run(run)
        assert found.phases == [] and "config.json cannot be read" in found.problems[0]


def test_settings_that_a_damaged_file_lacks_are_unknown(tmp_path: Path) -> None:
    run = made(tmp_path / "run")
    config = json.loads((run / "config.json").read_text())
    config["settings"]["memory"] = {"codec": ["jpeg"]}
    (run / "config.json").write_text(json.dumps(config))
    assert read_run(run).label() == "lucir-mrdc, ?, quality ?"
