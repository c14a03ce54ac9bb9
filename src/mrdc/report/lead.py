"""Sentences that answer the question of a page."""

from collections.abc import Mapping, Sequence
from statistics import mean

from mrdc._utils.text import count, size
from mrdc.experiments.pairs import Difference, difference
from mrdc.planning.settings import SYMBOLS
from mrdc.report.pairs import Pairing, pairings
from mrdc.report.runs import Group, RunRecord, by_seed, quality_grids, with_spread

MOST = 3  # comparisons in the lead
FEW = 3  # pairs needed for a claim


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
    pairs = [] if grids else pairings(groups)
    if pairs:
        return [differences(pairs)]
    if not grids:
        return [verdict({f"“{group.label}”": group for group in groups}, "settings")]
    said = [verdict(grid, "qualities") + picked(grid) + only_originals(grid) for grid in grids]
    names = [next(iter(grid.values())).first.name for grid in grids]
    return [f"{name}: {one}" for name, one in zip(names, said, strict=True)] if said[1:] else said


def differences(pairs: Sequence[Pairing]) -> str:
    """Gain of compression, over pairs of the same seed."""
    detects = pairs[0].group.first.detects
    said = [f"“{pair.group.label}” {pair.difference()}" for pair in pairs]
    measure = "AP" if detects else "averaged accuracy"
    return f"Difference of {measure} from originals: {'; '.join(said)}."


def summary(group: Group) -> str:
    """Accuracy of a group, and what its memory holds."""
    run, score = group.first, with_spread(list(group.scores.values()))
    result = f"an AP of {score}" if run.detects else f"an averaged accuracy of {score} %"
    said = f"{group.label} on {run.data} reaches {result} ({seeds(group)})"
    if not run.replays:
        return f"{said} and stores no images."
    how = {"": "at a quality chosen in each phase", "original": "as originals"}
    stored = how.get(run.quality, f"as {run.last.codec} {run.quality}")
    items = round(group.mean(lambda run: run.last.memory.items))
    used = size(group.mean(lambda run: run.last.memory.bytes))
    budget = size(group.mean(lambda run: run.last.memory.budget_bytes))
    return f"{said}; its memory holds {count(items, 'image')} {stored}, {used} of {budget}."


def seeds(*groups: Group) -> str:
    fewest = min(len(group.runs) for group in groups)
    return "one seed" if fewest == 1 else f"{fewest} seeds"


def verdict(groups: Mapping[str, Group], what: str) -> str:
    """The best of several groups, if it leads by more than two standard errors."""
    scores = {name: group.scores for name, group in groups.items()}
    ranked = sorted(scores, key=lambda name: -mean(scores[name].values()))
    best, second = ranked[:2]
    detects = groups[best].first.detects
    known = seeds(groups[best], groups[second])

    def value(name: str) -> str:
        return with_spread(list(scores[name].values())) + ("" if detects else " %")

    leads = {name: lead(scores[best], scores[name]) for name in ranked}
    tied = [name for name in ranked if leads[name].mean <= 2 * (leads[name].error or 0)]
    measure = "AP" if detects else "averaged accuracy"
    if len(tied) > 1:
        *others, last = [f"{name} ({value(name)})" for name in tied]
        why = "differ by less than two standard errors" if leads[tied[-1]].mean else "are equal"
        said = f"None of the {len(groups)} {what} is clearly best by {measure}"
        return f"{said}: {', '.join(others)} and {last} {why} ({known})."
    gap = leads[second]
    first = "Best" if gap.pairs >= FEW else "Highest"
    error = "" if gap.error is None else f" (standard error {gap.error:.2f})"
    return (
        f"{first} {measure} of the {len(groups)} {what}: {value(best)} for {best}, "
        f"{gap.mean:.2f} points{error} above {second} ({value(second)}; {known})."
    )


def lead(ours: Mapping[int, float], others: Mapping[int, float]) -> Difference:
    """Difference over pairs of the same seed; without any, of the means."""
    apart = Difference(mean(ours.values()) - mean(others.values()), None, 0)
    return difference(ours, others) or apart


def only_originals(grid: Mapping[str, Group]) -> str:
    """That a grid compares nothing, as every run of it has stored originals."""
    if {run.quality for group in grid.values() for run in group.runs} != {"original"}:
        return ""
    return " All runs stored originals: to compare, choose a budget that they do not all fit."


def picked(grid: Mapping[str, Group]) -> str:
    """Choice of a search measured along the run with originals."""
    original = grid.get("original")
    results = [run.result for run in original.runs if run.result] if original else []
    picks = dict.fromkeys(str(r.mean_choice) for r in results if r.mean_choice is not None)
    if not picks:
        return ""
    symbol = SYMBOLS[results[0].criterion]
    return f" Along the run with originals, {symbol} picks {' or '.join(picks)}."
