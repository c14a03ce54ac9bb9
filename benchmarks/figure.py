"""Draws the figure of the README from results/runs.jsonl."""

import matplotlib

from common import HERE, read

matplotlib.use("svg")
import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from mrdc.planning.settings import EPSILON


def grid() -> None:
    """Accuracy of every quality at one budget, and r, which was measured without training."""
    wanted = ("cub", "5/class", 1)
    found = [r for r in read("runs") if (r["label"], r["budget"], r["seed"]) == wanted]
    runs = sorted(found, key=lambda run: -(run["quality"] or 101))
    ratios = {r["quality"]: r["ratio_per_image"][0] for r in runs[0]["volume_ratios"]}
    names = [str(run["quality"] or "original") for run in runs]
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.4, 3.4), layout="constrained")
    scores = [run["average_incremental_accuracy"] for run in runs]
    left.plot(names, scores, "o-", color="#0072b2")
    for place, (run, score) in enumerate(zip(runs, scores, strict=True)):
        text = f"{run['memory']['items']:,}\nimages"
        left.annotate(
            text, (place, score), textcoords="offset points", xytext=(0, 8), ha="center", fontsize=8
        )
    top = max(scores) + 0.25 * (max(scores) - min(scores))
    left.set(ylim=(min(scores) - 0.5, top), xlabel="JPEG quality")
    left.set(ylabel="averaged incremental accuracy, %")
    left.set_title("trained six times, 5 originals per class", fontsize=10)
    bound = EPSILON["ratio-per-image"]
    right.axhspan(1 - bound, 1 + bound, color="#999999", alpha=0.25, lw=0, label="passes")
    values = [ratios[run["quality"]] for run in runs]
    right.plot(names, values, "o-", color="#d55e00")
    chosen = max(n for n, v in enumerate(values) if abs(v - 1) < bound)
    right.plot(chosen, values[chosen], "o", ms=14, mfc="none", mec="#d55e00", mew=2, label="chosen")
    right.set(ylim=(0.99, max(values) + 0.005), xlabel="JPEG quality")
    right.set(ylabel="r after the first phase")
    right.set_title("r: no training, the same choice", fontsize=10)
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
    grid()


if __name__ == "__main__":
    main()
