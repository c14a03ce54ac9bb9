"""Draw the figures of the README from results/runs."""

from statistics import mean

import matplotlib

from common import HERE, Row

matplotlib.use("svg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mrdc.planning.settings import ChoiceSettings, Limits
from runs import results

QUALITIES = (None, 75, 50, 25, 10)
DATA = (
    ("cub", "CUB-200-2011", "#0072b2"),
    ("flowers", "Flowers-102", "#d55e00"),
    ("caltech", "Caltech-101", "#56b4e9"),
    ("cifar", "CIFAR-10", "#009e73"),
    ("tiny", "Tiny-ImageNet", "#e69f00"),
    ("hands", "hands", "#cc79a7"),
)


def grid() -> None:
    """Draw the gain of every quality in the same bytes, and r, measured without training."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.4, 3.6), layout="constrained")
    shade(right)
    for label, name, colour in DATA:
        runs = [run for run in results(label) if run["budget"] == "5/class"]
        draw(left, gains(runs), name, colour)
        draw(right, ratios(runs), name, colour)
        values = ratios(runs)
        chosen = max(
            place
            for place, (value, (low, high)) in enumerate(zip(values, limits(), strict=True))
            if low < value < high
        )
        right.plot(chosen, values[chosen], "o", ms=14, mfc="none", mec=colour, mew=2)
    left.set(ylabel="accuracy gained over originals, points")
    left.set_title("trained with every quality, in the same bytes", fontsize=10)
    right.set(ylabel="r after the first phase", ylim=(0.975, 1.115))
    right.set_title("r: no training; what it picks (rings)", fontsize=10)
    handles, names = right.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncol=4, frameon=False, fontsize=9)
    for axes in (left, right):
        axes.set(xlabel="JPEG quality")
        axes.spines[["top", "right"]].set_visible(False)
    save(figure, "grid")


def limits() -> list[Limits]:
    """Where r of each quality must lie."""
    found = [ChoiceSettings().limits_of("jpeg", quality or 100) for quality in QUALITIES]
    return [one for one in found if one is not None]


def shade(axes: Axes) -> None:
    """Shade where r of each quality passes."""
    axes.plot([str(q or "original") for q in QUALITIES], [1.0] * len(QUALITIES), alpha=0)
    for place, (low, high) in enumerate(limits()):
        label = None if place else "passes"
        x = place - 0.5, place + 0.5
        axes.fill_between(x, low, high, color="#999999", alpha=0.25, lw=0, label=label)
    axes.set_xlim(-0.5, len(QUALITIES) - 0.5)


ARMS = (  # label, compressed, name, colour
    ("tiny-bytes-default", True, "JPEG 10, lucir-relaxed", "#0072b2"),
    ("tiny-bytes-default", False, "original files, lucir-relaxed", "#56b4e9"),
    ("tiny-bytes", True, "JPEG 10, LUCIR", "#d55e00"),
    ("tiny-bytes", False, "original files, LUCIR", "#e69f00"),
)


def bytes_() -> None:
    """Draw accuracy against the budget, for originals and compressed images; a dot is a run."""
    figure, axes = plt.subplots(figsize=(5.6, 3.6), layout="constrained")
    for label, compressed, name, colour in ARMS:
        scores: dict[int, list[float]] = {}
        for run in results(label):
            if (run["quality"] is not None) == compressed:
                budget = int(run["budget"].split("/")[0])
                scores.setdefault(budget, []).append(run["average_incremental_accuracy"])
        places = sorted(scores)
        axes.plot(places, [mean(scores[x]) for x in places], "-", color=colour, label=name)
        dots = [(x, y) for x in places for y in scores[x]]
        axes.plot(*zip(*dots, strict=True), "o", ms=4, color=colour, alpha=0.6)
    axes.set(xscale="log", xlabel="bytes of the memory, in originals per class")
    axes.set(ylabel="averaged accuracy, %")
    axes.set_xticks([2, 5, 10, 20, 40], ["2", "5", "10", "20", "40"])
    axes.minorticks_off()
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9)
    save(figure, "bytes")


def draw(axes: Axes, values: list[float], name: str, colour: str) -> None:
    axes.plot([str(q or "original") for q in QUALITIES], values, "o-", color=colour, label=name)


def gains(runs: list[Row]) -> list[float]:
    """Averaged accuracy minus that of originals, mean over seeds."""
    scores = [
        mean(r["average_incremental_accuracy"] for r in runs if r["quality"] == quality)
        for quality in QUALITIES
    ]
    return [score - scores[0] for score in scores]


def ratios(runs: list[Row]) -> list[float]:
    """r of each quality after phase 0, mean over seeds."""
    measured = [run["volume_ratios"] for run in runs if run["quality"] is None]
    found = [{row["quality"]: row["ratio_per_image"][0] for row in rows} for rows in measured]
    return [mean(one[quality] for one in found) for quality in QUALITIES]


def save(figure: Figure, name: str) -> None:
    out = HERE.parent / "docs" / f"{name}.svg"
    figure.savefig(out, metadata={"Date": None})
    print(f"wrote {out.relative_to(HERE.parent)}")


def main() -> None:
    plt.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "mrdc", "font.size": 10})
    grid()
    bytes_()


if __name__ == "__main__":
    main()
