"""Sentences that answer the question of a page."""

from collections.abc import Mapping, Sequence
from statistics import mean

from mrdc._utils.text import count, size
from mrdc.planning.settings import SYMBOLS
from mrdc.report.runs import Group, RunRecord, by_seed, quality_grids, spread, with_spread

MOST = 3  # comparisons in the lead


def lead_text(runs: Sequence[RunRecord]) -> str:
    """Compare finished runs that share data, phases and budget."""
    streams: dict[tuple[str, str, str], list[RunRecord]] = {}
    for run in runs:
        if run.result:
            where = run.data, f"{run.settings['phases']} phases", str(run.memory.get("budget", ""))
            streams.setdefault(where, []).append(run)
    if not streams:
        return "No run has finished yet."
    varying = [len(set(column)) > 1 for column in zip(*streams, strict=True)]
    said = []
    for parts, here in streams.items():
        place = ", ".join(part for part, varies in zip(parts, varying, strict=True) if varies)
        said += [f"{place}: {text}" if place else text for text in sentences(by_seed(here))]
    if len(said) > MOST:
        said[MOST:] = ["The tables below have the other comparisons."]
    if unfinished := sum(run.result is None for run in runs):
        said.append(f"Not counted: {count(unfinished, 'unfinished run')}.")
    return "\n".join(said)


def sentences(groups: Sequence[Group]) -> list[str]:
    """One sentence for each grid of qualities; without grids, one for all groups."""
    if len(groups) == 1:
        return [summary(groups[0])]
    grids = quality_grids(groups)
    if not grids:
        return [verdict({f"“{group.label}”": group for group in groups}, "settings")]
    said = [verdict(grid, "qualities") + picked(grid) for grid in grids]
    names = [next(iter(grid.values())).first.name for grid in grids]
    return [f"{name}: {one}" for name, one in zip(names, said, strict=True)] if said[1:] else said


def summary(group: Group) -> str:
    """Accuracy of a group, and what its memory holds."""
    run, score = group.first, with_spread(group.scores)
    result = f"an AP of {score}" if run.detects else f"an averaged accuracy of {score} %"
    said = f"{group.label} on {run.data} reaches {result} ({seeds(group)})"
    if not run.replays:
        return f"{said} and stores no images."
    how = {"": "at a quality chosen in each phase", "original": "as originals"}
    stored = how.get(run.quality, f"at quality {run.quality}")
    items = round(group.mean(lambda run: run.last.memory.items))
    used = size(group.mean(lambda run: run.last.memory.bytes))
    budget = size(group.mean(lambda run: run.last.memory.budget_bytes))
    return f"{said}; its memory holds {count(items, 'image')} {stored}, {used} of {budget}."


def seeds(*groups: Group) -> str:
    fewest = min(len(group.runs) for group in groups)
    return "one seed" if fewest == 1 else f"{fewest} seeds"


def verdict(groups: Mapping[str, Group], what: str) -> str:
    """The best of several groups, if it leads by more than the spread over seeds."""
    scores = {name: group.scores for name, group in groups.items()}
    ranked = sorted(scores, key=lambda name: -mean(scores[name]))
    best, second = ranked[:2]
    detects = groups[best].first.detects
    known = seeds(groups[best], groups[second])

    def value(name: str) -> str:
        return with_spread(scores[name]) + ("" if detects else " %")

    def behind(name: str) -> float:
        return mean(scores[best]) - mean(scores[name])

    tied = [n for n in ranked if behind(n) <= max(spread(scores[best]), spread(scores[n]))]
    measure = "AP" if detects else "averaged accuracy"
    if len(tied) > 1:
        *others, last = [f"{name} ({value(name)})" for name in tied]
        why = "differ by less than the spread" if behind(tied[-1]) else "are equal"
        said = f"None of the {len(groups)} {what} is clearly best by {measure}"
        return f"{said}: {', '.join(others)} and {last} {why} ({known})."
    first = "Highest" if known == "one seed" else "Best"
    return (
        f"{first} {measure} of the {len(groups)} {what}: {value(best)} for {best}, "
        f"{behind(second):.2f} points above {second} ({value(second)}; {known})."
    )


def picked(grid: Mapping[str, Group]) -> str:
    """What a search would choose, measured along the run of originals."""
    original = grid.get("original")
    results = [run.result for run in original.runs if run.result] if original else []
    picks = dict.fromkeys(str(r.mean_choice) for r in results if r.mean_choice is not None)
    if not picks:
        return ""
    symbol = SYMBOLS[results[0].criterion]
    return f" Along the run of originals, {symbol} picks {' or '.join(picks)}."
