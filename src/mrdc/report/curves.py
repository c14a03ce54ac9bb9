"""Figures about runs; a part without data is left out."""

import json
from collections.abc import Sequence
from itertools import pairwise
from statistics import mean

import numpy as np

from mrdc.data.images import some_of
from mrdc.experiments.summary import left_out
from mrdc.report.figures import (
    COLOURS,
    Figure,
    Table,
    drawn,
    legend,
    line,
    log_scale,
    whole_numbers,
)
from mrdc.report.parts import Grid, Part, Section
from mrdc.report.runs import Group, Json, Run, grouped

PARTS = ("train", "taken_over", "decode", "select", "volume_ratio", "encode", "evaluate")


def accuracy(runs: Sequence[Run]) -> Section | None:
    """Figures of all runs of as many phases on the same data, a line for every group."""
    section = Section("accuracy", "Accuracy by phase")
    streams: dict[tuple[str, object], list[Group]] = {}
    for group in grouped(runs):
        if group.first.phases:
            key = group.first.data, group.first.settings.get("phases", "?")
            streams.setdefault(key, []).append(group)
    figures = [
        (data, phases, part)
        for (data, phases), groups in streams.items()
        for part in evenly(groups, len(COLOURS))
    ]
    for data, phases, here in figures:
        what = "AP" if here[0].first.detects else "accuracy of the classes seen, %"
        figure = Figure(
            f"accuracy-{data}-{phases}", f"{data}, {phases} phases: {what} after each",
            f"Lines of {what} by phase for {', '.join(group.label for group in here)}",
            data=[["run", "phase", what, "lowest", "highest"]],
        )  # fmt: skip
        with drawn(figure) as axes:
            for number, group in enumerate(here):
                curves = _same_length([run.accuracy for run in group.runs])
                x, y = range(len(curves[0])), np.mean(curves, axis=0)
                low, high = np.min(curves, axis=0), np.max(curves, axis=0)
                line(axes, number, x, y, group.label)
                if len(curves) > 1:
                    colour = COLOURS[number % len(COLOURS)]
                    axes.fill_between(x, low, high, color=colour, alpha=0.15, lw=0)
                values = zip(x, y, low, high, strict=True)
                figure.data += [[group.label, *map(float, row)] for row in values]
            axes.set(xlabel="phase", ylabel=what)
            whole_numbers(axes.xaxis)
            legend(axes, len(here))
        section.parts.append(figure)
    return section if section.parts else None


def evenly(groups: Sequence[Group], most: int) -> list[Sequence[Group]]:
    """Parts of at most so many, about equally large: no line stands alone."""
    count = -(-len(groups) // most)
    cuts = [len(groups) * part // count for part in range(count + 1)]
    return [groups[start:end] for start, end in pairwise(cuts)]


def _same_length(curves: Sequence[list[float]]) -> list[list[float]]:
    """Only as many phases as all have; runs without any do not count."""
    known = [curve for curve in curves if curve]
    shortest = min(map(len, known))
    return [curve[:shortest] for curve in known]


def trade_off(runs: Sequence[Run]) -> Section | None:
    """Quality against quantity: runs of one method and budget that differ in quality."""
    section = Section("trade-off", "Quality against quantity")
    families: dict[str, list[Group]] = {}
    for group in grouped([run for run in runs if run.result]):
        run = group.first
        same = {k: v for k, v in run.decisive.items() if k != "memory.quality"}
        families.setdefault(json.dumps(same, sort_keys=True, default=str), []).append(group)
    for groups in families.values():
        run = groups[0].first
        data, method, budget = run.data, run.settings.get("method"), run.memory.get("budget")
        points = {quality_of(group.first): group for group in groups if quality_of(group.first)}
        if len(points) < 3:
            continue
        order = sorted(points, key=lambda q: -101 if q == "original" else -int(q))
        figure = Figure(
            f"trade-off-{data}-{method}", f"{data}, {method}, {budget}: accuracy by quality",
            f"Averaged accuracy and number of images held for the qualities {', '.join(order)}",
            data=[["quality", "images held", "averaged", "last"]],
        )  # fmt: skip
        average = [mean(run.average for run in points[q].runs) for q in order]
        held = [points[q].first.phases[-1]["memory"]["items"] for q in order]
        last = [mean(run.accuracy[-1] for run in points[q].runs) for q in order]
        figure.data += [list(row) for row in zip(order, held, average, last, strict=True)]
        with drawn(figure, 2) as (left, right):
            line(left, 0, range(len(order)), average, "averaged over the phases")
            line(left, 1, range(len(order)), last, "after the last phase")
            left.set_xticks(range(len(order)), order)
            left.set(xlabel="quality", ylabel="accuracy, %")
            legend(left, 2)
            line(right, 2, held, average, "averaged")
            for q, x, y in zip(order, held, average, strict=True):
                right.annotate(q, (x, y), textcoords="offset points", xytext=(4, 5), fontsize=8.5)
            right.set(xlabel="images held", ylabel="averaged accuracy, %")
        best = order[int(np.argmax(average))]
        section.parts += [figure, f"Best by averaged accuracy: {best}.{_choice(points)}"]
    return section if section.parts else None


def quality_of(run: Run) -> str:
    """The one quality of a run, as text; empty where it changed on the way."""
    qualities = {phase["quality"] for phase in run.phases}
    return str(qualities.pop() or "original") if len(qualities) == 1 else ""


def _choice(points: dict[str, Group]) -> str:
    """What R_q along the run of originals would have chosen."""
    original = points.get("original")
    choice = (original.first.result or {}).get("mean_choice") if original else None
    return "" if choice is None else f" R_q along the run of originals chooses {choice}."


def volume_ratios(runs: Sequence[Run]) -> Section | None:
    """R_q by phase and candidate, with the band that passes, for one run of each group."""
    section = Section("volume-ratio", "R_q by phase")
    notes: list[Part] = []
    for group in grouped(runs):
        run = group.first
        rows = [row for row in candidates(run) if row["quality"] is not None]
        if not rows:
            continue
        epsilon = float(run.memory.get("epsilon", 0.5))
        rule = run.memory.get("quality", "?")
        chose = f"in use: {quality_of(run) or 'chosen anew in every phase'} (rule: {rule})"
        figure = Figure(
            f"volume-ratio-{run.data}-{group.label}", f"{run.data}, {group.label}; {chose}",
            "R_q of each quality after each phase, with the band within which a quality passes",
            data=[["codec", "quality", "phase", "R_q"]],
        )  # fmt: skip
        with drawn(figure, size=(4.7, 3.7)) as axes:
            axes.axhspan(max(1 - epsilon, 1e-3), 1 + epsilon, color="#999999", alpha=0.2, lw=0,
                         label=f"|R_q - 1| < {epsilon:g}")  # fmt: skip
            for number, row in enumerate(rows):
                known = [(x, y) for x, y in enumerate(row["by_phase"]) if y is not None]
                x, y = [point[0] for point in known], [point[1] for point in known]
                line(axes, number, x, y, f"quality {row['quality']}")
                figure.data += [[row["codec"], row["quality"], *point] for point in known]
            axes.set(xlabel="phase", ylabel="R_q")
            log_scale(axes)
            whole_numbers(axes.xaxis)
            legend(axes, len(rows) + 1, below=True)
        section.parts.append(figure)
        lines = [f"{what} ({why})" for what, why in left_out(run.phases).items()]
        if lines:
            notes.append(f"{run.data}, {group.label}: left out of R_q: {some_of(lines)}.")
    section.parts += notes
    return section if section.parts else None


def candidates(run: Run) -> list[Json]:
    """R_q of each candidate, phase by phase."""
    rows: list[Json] = []
    for place, first in enumerate(run.phases[0]["candidates"] if run.phases else []):
        ratios = [phase["candidates"][place]["volume_ratio"] for phase in run.phases]
        rows.append({"codec": first["codec"], "quality": first["quality"], "by_phase": ratios})
    return rows


def times(runs: Sequence[Run]) -> Section | None:
    """Where the time of each group went, and how fast it trained."""
    groups = [group for group in grouped(runs) if group.first.phases]
    if not groups:
        return None
    spent = [seconds_of(group.first) for group in groups]
    names = [part for part in (*PARTS, "other") if any(seconds[part] for seconds in spent)]
    figure = Figure("time", "Seconds of one run, by what they went into",
                    "Stacked bars of seconds by part of the work, one bar a run",
                    data=[["run", *names]])  # fmt: skip
    with drawn(figure, size=(7.2, 1.3 + 0.36 * len(groups))) as axes:
        left = np.zeros(len(groups))
        for number, part in enumerate(names):
            widths = [seconds[part] for seconds in spent]
            colour = COLOURS[number % len(COLOURS)]
            axes.barh(
                range(len(groups)), widths, left=left, label=part.replace("_", " "), height=0.6,
                color=colour, edgecolor="white", linewidth=0.5,
            )  # fmt: skip
            left += np.array(widths)
        axes.set_yticks(range(len(groups)), [group.label for group in groups], fontsize=8.5)
        axes.invert_yaxis()
        axes.set(xlabel="seconds")
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8.5)
    for group, seconds in zip(groups, spent, strict=True):
        figure.data.append([group.label, *(f"{seconds[part]:.2f}" for part in names)])
    rows: Table = [["run", "seconds", "trained images", "images/s in training"]]
    for group in groups:
        phases = group.first.phases
        trained = sum(phase["trained_images"] for phase in phases)
        own = [phase for phase in phases if "taken_over" not in phase["parts"]]
        train = sum(phase["parts"].get("train", 0.0) for phase in own)
        images = sum(phase["trained_images"] for phase in own)
        rate = f"{images / train:,.0f}" if train and images else ""
        rows.append([group.label, f"{group.first.seconds:.0f}", f"{trained:,}", rate])
    told = "Taken over: a first phase that another run has trained, and this one needs, too."
    return Section("time", "Time", [figure, Grid(rows, told if "taken_over" in names else "")])


def seconds_of(run: Run) -> dict[str, float]:
    """Seconds of a run by part; small parts are put together."""
    found = dict.fromkeys([*PARTS, "other"], 0.0)
    for phase in run.phases:
        for part, seconds in phase["parts"].items():
            found[part if part in PARTS else "other"] += seconds
    return found


def confusion(runs: Sequence[Run]) -> Section | None:
    """Which task an image of each task is taken for, after the last phase."""
    section = Section("confusion", "Confusion by task")
    for group in grouped(runs):
        run = group.first
        counts = run.phases[-1].get("confusion") if run.phases else None
        if not counts or len(counts) < 2:
            continue
        shares = 100 * np.array(counts) / np.maximum(np.sum(counts, axis=1, keepdims=True), 1)
        figure = Figure(
            f"confusion-{run.data}-{group.label}", f"{run.data}, {group.label}",
            "Share of the images of each task that are taken for classes of each task, in percent",
            data=[["true task", "answered task", "percent"]],
        )  # fmt: skip
        with drawn(figure, size=(4.7, 3.9)) as axes:
            places = np.arange(len(shares))
            axes.pcolormesh(places, places, shares, cmap="Blues", vmin=0, vmax=100, ec="white")
            axes.invert_yaxis()
            for (row, column), value in np.ndenumerate(shares):
                colour = "white" if value > 55 else "black"
                axes.text(column, row, f"{value:.0f}", ha="center", va="center", color=colour,
                          fontsize=8.5 if len(shares) < 9 else 6)  # fmt: skip
                figure.data.append([row, column, float(value)])
            axes.grid(False)
            axes.set(xlabel="task of the answer", ylabel="task of the image")
            whole_numbers(axes.xaxis, axes.yaxis)
        section.parts.append(figure)
    return section if section.parts else None
