"""What a study concludes from its runs."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mrdc.experiments.conclusions import answer
from mrdc.experiments.study_table import Line, stored_ratio, study_lines, study_table
from mrdc.experiments.sweep import Cell, Outcome
from mrdc.training.results import MemorySummary, RunResult
from mrdc.training.settings import RunSettings
from tests.experiments.results import RATIOS, result

Json = dict[str, Any]


@pytest.mark.parametrize(
    ("quality", "ratio"), [(75, 1.3), (None, 1.0), ([50, 75], 2.2), (50, 3.0), (10, None)]
)
def test_the_ratio_of_the_stored_images(quality: Any, ratio: float | None) -> None:
    """Mean over the phases where it is known, at each phase's own quality if that changes."""
    found = stored_ratio(result(quality=quality, volume_ratios=RATIOS))
    assert found == (None if ratio is None else pytest.approx(ratio))


def lines(places: Sequence[Json], found: Sequence[Outcome]) -> list[Line]:
    """A study of classes; keys with a dot, and the seed, are also settings."""
    made = []
    for place in places:
        memory = {k.partition(".")[2]: v for k, v in place.items() if "." in k}
        seed = int(place.get("seed", 0))
        settings = RunSettings("x", method=place.get("recipe", "lucir"), seed=seed)
        settings = replace(settings, memory=replace(settings.memory, **memory))
        made.append(Cell(place, "lucir", settings, Path("x")))
    return study_lines(made, found)


def graded(runs: dict[str, RunResult]) -> list[Line]:
    return lines([{"memory.quality": quality} for quality in runs], list(runs.values()))


def test_the_best_of_the_grid_and_the_choice() -> None:
    """50 wins with 61 %; R_q along the run with originals picks 75."""
    runs = {"original": result(55.0, quality=None, mean_choice=75)}
    runs |= {"75": result(60.0, mean_choice=50), "50": result(61.0, mean_choice=50)}
    assert answer(graded(runs), "grid") == (
        "The best of the grid is 50 (61.00 %, +1.00 from 75, +6.00 from original, 1 pair); "
        "R_q, averaged over the phases of the run with originals, picks 75, which "
        "differs from originals by +5.00 (1 pair)."
    )
    runs["dynamic"] = result(54.0)
    assert "; dynamic differs from originals by -1.00 (1 pair)." in answer(graded(runs), "grid")
    scenes = {q: result(ap=[1.0, ap]) for q, ap in (("original", 30.0), ("50", 31.0))}
    assert answer(graded(scenes), "grid").startswith("The best of the grid is 50 (AP 31.00, +1.00")


def test_every_recipe_has_its_grid() -> None:
    """A recipe that was only run with originals has a choice, but no best."""
    places = [("lucir", "original"), ("lucir", "75"), ("lucir-dde", "original")]
    found = lines(
        [{"recipe": recipe, "memory.quality": quality} for recipe, quality in places],
        [result(score, mean_choice=pick) for score, pick in ((50, 75), (40, 75), (30, "original"))],
    )
    picks = "R_q, averaged over the phases of the run with originals, picks"
    assert answer(found, "grid") == (
        "lucir: the best of the grid is original (50.00 %, +10.00 from 75, 1 pair); "
        f"{picks} 75, which differs from originals by -10.00 (1 pair). lucir-dde: {picks} original."
    )


def test_each_seed_counts_at_the_quality_it_picks() -> None:
    """Gains of 4 at 75 and of 2 at 50: 3 with a standard error of 1."""
    scores = {"original": (50.0, 60.0), "75": (54.0, 1.0), "50": (2.0, 62.0)}
    places = [{"memory.quality": q, "seed": str(seed)} for q in scores for seed in (0, 1)]
    picks = iter((75, 50, 10, 10, 10, 10))
    runs = [
        result(value, seed=n, mean_choice=next(picks))
        for v in scores.values()
        for n, value in enumerate(v)
    ]
    said = answer(lines(places, runs), "grid")
    assert "picks 50 or 75, which differs from originals by +3.00 ± 1.00 (2 pairs)." in said


def test_differences_from_originals_are_those_of_pairs() -> None:
    """Seeds 1, 2 and 3 gain 1, 2 and 3 points: 2 with a standard error of 1 / sqrt(3)."""
    places = [
        {
            "recipe": "lucir",
            "memory.quality": quality,
            "memory.budget": "8/class",
            "seed": str(seed),
        }
        for quality in ("original", "auto")
        for seed in (1, 2, 3)
    ]
    pairs = [(40.0, -9.0), (50.0, -9.0), (60.0, -9.0), (41.0, -8.0), (52.0, -7.0), (63.0, -6.0)]
    runs = [result(score, initial_forgetting=lost) for score, lost in pairs]
    found = lines(places, runs)
    base, compressed = study_table(found)
    assert base["difference"] is None and base["originals"] is None
    assert compressed["originals"] == "lucir, original, 8/class"
    assert compressed["difference"] == {"mean": 2.0, "error": pytest.approx(3**-0.5), "pairs": 3}
    expected = "lucir, auto, 8/class +2.00 ± 0.58 (3 pairs)."
    assert answer(found, "pairs") == f"Difference from originals in averaged accuracy: {expected}"
    assert answer(found, "forgetting").endswith(f"of the first classes: {expected}")
    assert answer(found[:1], "pairs") == ""


def test_orders_by_ratio_and_by_training() -> None:
    """R_q 1.0, 1.3 and 3.0: nearest to 1 first. Training swaps the last two."""
    runs = {
        "herding": result(60.0, quality=75, volume_ratios=RATIOS),
        "random_choice": result(62.0, quality=None, volume_ratios=RATIOS),
        "dpp_greedy": result(61.0, quality=50, volume_ratios=RATIOS),
    }

    def said(kind: str) -> str:
        return answer(lines([{"memory.select": name} for name in runs], [*runs.values()]), kind)

    assert said("nearness") == (
        "By R_q nearest to 1: random_choice > herding > dpp_greedy. "
        "By training: random_choice > dpp_greedy > herding. They agree on 2 of 3 pairs."
    )
    assert said("") == ""
    runs["herding"] = result(63.0, volume_ratios=RATIOS, memory=MemorySummary(1, 2, 90))
    assert said("images").startswith("By images held within R_q's bound: herding > ")
