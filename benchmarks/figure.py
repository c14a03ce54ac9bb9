"""Draws the figures of docs/ and REPRODUCTION.md from what lies in results/."""

import json
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

HERE = Path(__file__).resolve().parent
COLOURS = {"5/class": "#0072b2", "10/class": "#d55e00", "20/class": "#009e73"}


def lines(label: str) -> list[dict[str, Any]]:
    """The paired JPEG-only plans of a data set, one a budget."""
    rows = map(json.loads, (HERE / "results" / "plan.jsonl").read_text().splitlines())
    wanted = [r for r in rows if r["label"] == label and r["pairing"] == "paired"]
    return [r for r in wanted if {c["codec"] for c in r["candidates"]} == {"original", "jpeg"}]


def draw(axes: Axes, plan: dict[str, Any], names: dict[tuple[float, float], list[str]]) -> None:
    """R_q against images a class, one point a quality, the choice ringed."""
    budget = plan["budget"]["text"]
    points = [c for c in plan["candidates"] if c["volume_ratio"]]
    x = [c["quantity"] / plan["classes"] for c in points]
    y = [c["volume_ratio"] for c in points]
    label = f"budget of {budget.replace('/', ' originals a ')}"
    axes.plot(x, y, "o-", color=COLOURS[budget], label=label)
    for candidate, a, b in zip(points, x, y, strict=True):
        name = "original" if candidate["quality"] is None else str(candidate["quality"])
        here = names.setdefault((round(a, 1), round(b, 2)), [])
        if name not in here:
            here.append(name)
        if candidate["verdict"] == "chosen":
            axes.plot(a, b, "o", ms=14, mfc="none", mec=COLOURS[budget], mew=2)


def plans() -> None:
    """Quality against quantity, and R_q, for three budgets."""
    figure, axes = plt.subplots(figsize=(7.6, 3.8), layout="constrained")
    axes.axhspan(0.5, 1.5, color="#999999", alpha=0.2, lw=0, label="|R_q - 1| < 0.5: passes")
    names: dict[tuple[float, float], list[str]] = {}
    for plan in lines("cub256"):
        draw(axes, plan, names)
    for place, here in names.items():
        axes.annotate(", ".join(here), place, textcoords="offset points", xytext=(8, 8), fontsize=8)
    axes.set(
        xlabel="images a class that fit the budget",
        ylabel="R_q",
        yscale="log",
        title="CUB-200-2011: labels are JPEG qualities, rings the choice",
    )
    ticks = [0.5, 0.7, 1.0, 1.5, 2.0, 4.0]
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.yaxis.set_minor_formatter(matplotlib.ticker.NullFormatter())
    axes.set_xlim(4, 32)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9)
    save(figure, "plan")


def grid() -> None:
    """Accuracy of every quality at one budget, and R_q, which knows nothing of it."""
    rows = map(json.loads, (HERE / "results" / "runs.jsonl").read_text().splitlines())
    runs = [run for run in rows if run["budget"] == "5/class" and run["name"] == "lucir"]
    ratios = {r["quality"]: r["by_phase"][0] for r in runs[0]["volume_ratios"]}
    names = [str(run["quality"] or "original") for run in runs]
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.4, 3.4), layout="constrained")
    scores = [run["average_incremental_accuracy"] for run in runs]
    left.plot(names, scores, "o-", color="#0072b2")
    for place, (run, score) in enumerate(zip(runs, scores, strict=True)):
        text = f"{run['memory']['items']:,}\nimages"
        left.annotate(
            text, (place, score), textcoords="offset points", xytext=(0, 8), ha="center", fontsize=8
        )
    left.set(ylim=(38, 43.5), xlabel="JPEG quality", ylabel="averaged incremental accuracy, %")
    left.set_title("trained six times, 5 originals a class", fontsize=10)
    right.axhspan(0.5, 1.5, color="#999999", alpha=0.25, lw=0, label="passes")
    values = [ratios[run["quality"]] for run in runs]
    right.plot(names, values, "o-", color="#d55e00")
    chosen = max((n for n, v in enumerate(values) if abs(v - 1) < 0.5))
    right.plot(chosen, values[chosen], "o", ms=14, mfc="none", mec="#d55e00", mew=2, label="chosen")
    right.set(yscale="log", xlabel="JPEG quality", ylabel="R_q after the first phase")
    right.set_title("R_q: no training, the same choice", fontsize=10)
    right.set_yticks([0.5, 1, 1.5, 3, 6], ["0.5", "1", "1.5", "3", "6"])
    right.yaxis.set_minor_formatter(matplotlib.ticker.NullFormatter())
    right.legend(frameon=False, fontsize=9, loc="upper left")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    save(figure, "grid")


def save(figure: Figure, name: str) -> None:
    out = HERE.parent / "docs" / f"{name}.svg"
    figure.savefig(out, metadata={"Date": None})
    print(f"wrote {out.relative_to(HERE.parent)}")


def main() -> None:
    plt.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "mrdc", "font.size": 10})
    plans()
    grid()


if __name__ == "__main__":
    main()
