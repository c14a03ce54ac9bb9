"""Conclusions of a study, in sentences."""

import math
from collections.abc import Callable, Sequence
from itertools import combinations
from statistics import mean

from mrdc._utils.text import count
from mrdc.experiments.pairs import Number, difference, score
from mrdc.experiments.study_table import Line, initial_forgetting, originals, stored_ratio
from mrdc.experiments.worth import sentence, study_points, worth
from mrdc.planning.settings import SYMBOLS

QUALITY = "memory.quality"


def answer(lines: Sequence[Line], kind: str) -> str:
    """The answer to a study's question; empty if it asks for none."""
    if kind == "grid":
        return best_of_grids(lines)
    if kind == "pairs":
        return all_pairs(lines, "averaged accuracy", score)
    if kind == "forgetting":
        return all_pairs(lines, "forgetting of the first classes", initial_forgetting)
    if kind == "bytes":
        return sentence(worth(study_points(lines)))
    if kind == "images":
        return orders(lines, "images held within R_q's bound", images_held)
    if kind == "nearness":
        return orders(lines, "R_q nearest to 1", nearness)
    return ""


def all_pairs(lines: Sequence[Line], what: str, number: Number) -> str:
    """Differences from originals of every line that has such pairs."""
    said = []
    for line in lines:
        base = originals(line, lines)
        found = base and difference(line.arm.numbers(number), base.arm.numbers(number))
        said += [f"{line.name()} {found}"] if found else []
    return f"Difference from originals in {what}: {'; '.join(said)}." if said else ""


def best_of_grids(lines: Sequence[Line]) -> str:
    """The best quality by training, and the one R_q picks along the run with originals."""
    grids: dict[str, list[Line]] = {}
    for line in lines:
        grids.setdefault(line.name(QUALITY), []).append(line)
    sentences = []
    for name, grid in grids.items():
        said = "; ".join(filter(None, (best_of(grid), picked(grid), changing(grid))))
        if said:
            sentences.append(f"{name}: {said}." if name else f"{said[0].upper()}{said[1:]}.")
    return " ".join(sentences)


def best_of(grid: Sequence[Line]) -> str:
    """The best of a grid, and how far it is above the second and above originals."""
    if len(grid) < 2:
        return ""
    best, second, *_ = sorted(grid, key=trained, reverse=True)
    reached = f"{trained(best):.2f} %" if best.runs[0].ap is None else f"AP {trained(best):.2f}"
    said = f"the best of the grid is {best.place[QUALITY]} ({reached}"
    pairs = ""
    for name, other in {second.place[QUALITY]: second, "original": originals(best, grid)}.items():
        if other and (gap := difference(best.arm.numbers(), other.arm.numbers())):
            said += f", {gap.value} from {name}"
            pairs = f", {count(gap.pairs, 'pair')}"
    return f"{said}{pairs})"


def picked(grid: Sequence[Line]) -> str:
    """The choice of R_q, averaged over the phases of the run with originals, as in the paper.

    Each seed is compared at the quality that its own run with originals picks.
    """
    base = next((line for line in grid if line.place[QUALITY] == "original"), None)
    if base is None or not base.picks:
        return ""
    by_quality = {line.place[QUALITY]: line.arm.numbers() for line in grid}
    chosen = {
        seed: by_quality.get(str(run.mean_choice), {}).get(seed)
        for seed, run in base.arm.runs.items()
    }
    gain = None if base.picks == ["original"] else difference(chosen, base.arm.numbers())
    more = f", which differs from originals by {gain}" if gain else ""
    symbol = SYMBOLS[base.runs[0].criterion]
    where = f"{symbol}, averaged over the phases of the run with originals, picks"
    return f"{where} {' or '.join(base.picks)}{more}"


def changing(grid: Sequence[Line]) -> str:
    """A quality chosen anew in every phase, compared with originals."""
    line = next((line for line in grid if line.place[QUALITY] == "dynamic"), None)
    base = line and originals(line, grid)
    gain = line and base and difference(line.arm.numbers(), base.arm.numbers())
    return f"dynamic differs from originals by {gain}" if gain else ""


def trained(line: Line) -> float:
    return mean(map(score, line.runs))


def images_held(line: Line) -> float:
    return mean(run.memory.items for run in line.runs)


def nearness(line: Line) -> float:
    return -abs(math.log(line.mean(stored_ratio) or math.inf))


def orders(lines: Sequence[Line], by: str, predicted: Callable[[Line], float]) -> str:
    """The order of lines by R_q and by training, and the pairs they agree on."""
    known = [line for line in lines if line.mean(stored_ratio)]
    if len(known) < 2:
        return ""

    def order(value: Callable[[Line], float]) -> str:
        return " > ".join(line.name() for line in sorted(known, key=value, reverse=True))

    pairs = list(combinations(known, 2))
    agree = sum((predicted(a) - predicted(b)) * (trained(a) - trained(b)) > 0 for a, b in pairs)
    return (
        f"By {by}: {order(predicted)}. By training: {order(trained)}. "
        f"They agree on {agree} of {len(pairs)} pairs."
    )
