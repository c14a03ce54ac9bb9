"""Results of runs, sweeps and studies."""

from itertools import accumulate, zip_longest
from typing import Any

from rich.console import Console
from rich.table import Table

from mrdc._utils.text import count, learned, printable, ratio, small_number
from mrdc.cli.tables import plain, remarks, some, styled, table
from mrdc.codec.jpeg_progressive import SCANS
from mrdc.experiments.pairs import Difference
from mrdc.planning.settings import SYMBOLS
from mrdc.training.advice import advice
from mrdc.training.results import RunResult

SCORES = {
    "averaged %": "average_incremental_accuracy",
    "+-": "deviation",
    "last %": "last_accuracy",
    "forgetting": "average_forgetting",
    "initial": "initial_forgetting",
}
SCENE_SCORES = {"AP": "ap", "+-": "ap_deviation", "AP50": "ap50", "AP75": "ap75"}


def run(console: Console, found: RunResult, url: str | None = None) -> None:
    synthetic = " (synthetic)" if found.synthetic else ""
    data = printable(found.data)
    console.print(styled((printable(found.name), "bold"), f" on {data}{synthetic}"))
    if found.in_training:
        line = styled(("Warning:", "yellow"), f" {learned(found.in_training)}")
        console.print(line, soft_wrap=True)
    if found.ap is None:
        rows = table("phase", "classes", "accuracy %", "head %", "old as old %", "new as new %")
        lists = (found.accuracy, found.head_accuracy, found.old_as_old, found.new_as_new)
        columns = zip_longest(accumulate(found.sizes or []), *(one or [] for one in lists))
        for phase, (seen, *scores) in enumerate(columns):
            shares = ("" if score is None else f"{score:.2f}" for score in scores)
            rows.add_row(str(phase), str(seen), *shares)
    else:
        rows = table("phase", "AP", "AP50", "AP75")
        for phase, aps in enumerate(zip(found.ap, found.ap50 or [], found.ap75 or [], strict=True)):
            rows.add_row(str(phase), *(f"{ap:.2f}" for ap in aps))
    console.print(rows)
    volumes(console, found)
    kept(console, found)
    published = f" (the paper: {found.paper:.2f})" if found.paper else ""
    where = f"{found.seconds:.0f} s; {printable(found.folder)}"
    if found.ap and found.ap50 and found.ap75:
        each = {n: "-" if v is None else f"{v:.1f}" for n, v in (found.by_class or {}).items()}
        console.print("AP by class: " + ", ".join(f"{printable(n)} {v}" for n, v in each.items()))
        last = f"AP {found.ap[-1]:.2f}, AP50 {found.ap50[-1]:.2f}, AP75 {found.ap75[-1]:.2f}"
        console.print(styled((last, "bold"), f"{published}, {where}"))
        if found.dropped:
            console.print(f"Left out: {count(found.dropped, 'box')} below 1 pixel")
    else:
        mean = f"Averaged incremental accuracy {found.average_incremental_accuracy:.2f} %"
        forgetting = (
            f"forgetting {found.average_forgetting:.2f} (initial classes "
            f"{found.initial_forgetting:.2f})"
        )
        console.print(styled((mean, "bold"), f"{published}, {forgetting}, {where}"))
        for said in advice(found):
            console.print(styled(("Note:", "yellow"), f" {said}."), soft_wrap=True)
    if found.held_out:
        console.print("The data has no test images: some training images were set aside.")
    if url is not None:
        console.print(f"Published to {printable(url)}")
    remarks(console, found.skipped, found.ignored or [])


def volumes(console: Console, found: RunResult) -> None:
    """R_q, r and discrepancy of each candidate, averaged over the phases, and the choice."""
    if not found.volume_ratios:
        return
    stored = stored_as(found)
    rows = table(
        "candidate<", "images that fit", "mean R_q", "mean r", "mean discrepancy", "verdict<"
    )
    for row in found.volume_ratios:
        name = named(row["codec"], row["quality"])
        rows.add_row(
            name,
            f"{sum(row['quantity']):,}",
            ratio(row["mean"]),
            ratio(row.get("mean_ratio_per_image")),
            small_number(row.get("mean_discrepancy")),
            "stored" if name in stored else row.get("verdict", ""),
        )
    console.print(rows)
    lines = [f"{what}: {why}" for what, why in found.left_out.items()]
    if lines:
        console.print(f"Left out of R_q ({len(lines):,}):{some(lines)}")
    if found.quality_rule == "auto":
        mean = found.mean_choice or "nothing"
        agrees = "agrees" if mean in (found.quality, stored[0]) else f"would choose {mean}"
        console.print(
            f"Chosen by {SYMBOLS[found.criterion]} after the first phase: {stored[0]}; its mean "
            f"over the phases {agrees}."
        )


def stored_as(found: RunResult) -> list[str]:
    """Codec and quality of the images in the memory, once each, in the order of the phases."""
    chosen = found.quality
    qualities = chosen if isinstance(chosen, list) else [chosen] * len(found.codecs)
    return list(dict.fromkeys(map(named, found.codecs, qualities)))


def named(codec: str, quality: int | None) -> str:
    return codec if quality is None else f"{codec} {quality}"


def kept(console: Console, found: RunResult) -> None:
    """The memory, the parameters that the method adds, and the method's report."""
    held = found.memory
    if held.budget_bytes:
        scans = "" if held.scans is None else f" with {held.scans:.1f} of {SCANS} scans"
        names = ["originals" if name == "original" else name for name in stored_as(found)]
        console.print(
            f"Memory: {held.items:,} images as {', '.join(names)}{scans}, "
            f"{held.bytes:,} of {held.budget_bytes:,} bytes ({printable(found.budget)})"
        )
    if held.parameter_bytes:
        charged = "charged" if found.strict_budget else "not charged"
        console.print(
            f"The method adds {held.parameter_bytes:,} bytes of parameters to the network "
            f"({charged} to the budget; --memory.strict-budget charges them)"
        )
    for what, value in found.report.items():
        console.print(printable(f"{what.replace('_', ' ')}: {in_words(value)}"))


def in_words(value: Any) -> str:
    """A value that a method reports, in words."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {in_words(one)}" for name, one in value.items())
    if isinstance(value, list):
        return ", ".join(map(in_words, value))
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def sweep(console: Console, found: dict[str, Any]) -> None:
    if found["table"]:
        reached(console, found["table"])
    console.print(f"{count(len(found['runs']), 'run')} in {printable(found['folder'])}")
    for run in found["failed"]:
        what = f" {printable(run['folder'])}: {printable(run['error'])}"
        why = styled(("Failed:", "yellow"), what)
        console.print(why, soft_wrap=True)


def reached(console: Console, rows: list[dict[str, Any]]) -> tuple[str, list[str]]:
    """Print scores and accuracy by phase; returns the title and the names of the rows."""
    axes = list(rows[0])[: list(rows[0]).index("runs")]
    names = [", ".join(printable(str(row[axis])) for axis in axes) for row in rows]
    title = f"{', '.join(axes)}<"
    console.print(scores(title, names, rows))
    console.print("Accuracy after each phase, %:" if "ap" not in rows[0] else "AP by phase:")
    phases = max(len(row["accuracy"]) for row in rows)
    made = table(title, *(f"phase {phase}" for phase in range(phases)))
    for name, row in zip(names, rows, strict=True):
        made.add_row(name, *(f"{score:.1f}" for score in row["accuracy"]))
    console.print(made)
    return title, names


def study(console: Console, found: dict[str, Any]) -> None:
    console.print(styled((found["title"], "bold"), f"\n{found['question']}"))
    rows = found["table"]
    title, names = reached(console, rows)
    if any(row["volume_ratio"] is not None for row in rows):
        console.print("R_q of what was stored, and the quality its mean over phases picks:")
        made = table(title, "quality", "R_q", "R_q picks")
        for name, row in zip(names, rows, strict=True):
            known = "" if row["volume_ratio"] is None else ratio(row["volume_ratio"])
            made.add_row(name, printable(", ".join(row["quality"])), known, ", ".join(row["picks"]))
        console.print(made)
    differences(console, title, names, rows)
    if "regret" in found:
        regret(console, found["regret"])
    if found["answer"]:
        console.print(plain(found["answer"], "bold"))
    if found["paper"]:
        console.print("The paper:")
        (first, *columns), *published = ([*map(str, row)] for row in found["paper"])
        console.print(table(f"{first}<", *columns, rows=published))
    console.print(f"{count(len(found['runs']), 'run')}; the page: {printable(found['page'])}")


def regret(console: Console, found: dict[str, Any]) -> None:
    """Loss of each rule over all grids, and its pick in each."""
    made = table("rule<", "grids", "points lost", "95 % interval", "worst")
    for row in found["rules"]:
        known = row["mean"] is not None
        between = "" if row["low"] is None else f"{row['low']:.2f} to {row['high']:.2f}"
        numbers = [f"{row['mean']:.2f}", between, f"{row['worst']:.2f}"] if known else ["?"] * 3
        made.add_row(row["rule"], str(row["grids"]), *numbers)
    console.print(made)
    rules = [row["rule"] for row in found["rules"]]
    made = table("setting<", "seed", "best<", *(f"{rule}<" for rule in rules))
    for row in found["grids"]:
        picks = [(row[rule]["pick"] or "?").removeprefix("jpeg ") for rule in rules]
        made.add_row(printable(row["setting"]), str(row["seed"]), row["best"], *picks)
    console.print(made)


def differences(console: Console, title: str, names: list[str], rows: list[dict[str, Any]]) -> None:
    """Differences from originals over pairs of the same seed, with standard errors."""
    if not any(row["difference"] for row in rows):
        return
    console.print("Difference from originals, mean of pairs of the same seed ± standard error:")
    fields = {"AP" if "ap" in rows[0] else "averaged %": "difference"}
    if any(row["initial_forgetting_difference"] for row in rows):
        fields["forgetting of the first classes"] = "initial_forgetting_difference"
    made = table(title, "pairs", *fields)
    for name, row in zip(names, rows, strict=True):
        if row["difference"]:
            values = [Difference(**row[field]).value for field in fields.values()]
            made.add_row(name, str(row["difference"]["pairs"]), *values)
    console.print(made)


def scores(title: str, names: list[str], rows: list[dict[str, Any]]) -> Table:
    """Scores of the runs; seconds include a first phase that another run has trained."""
    fields = SCENE_SCORES if "ap" in rows[0] else SCORES
    fields = {c: f for c, f in fields.items() if any(row.get(f) is not None for row in rows)}
    made = table(title, "runs", *fields, "images", "seconds")
    for name, row in zip(names, rows, strict=True):
        numbers = ["" if row.get(f) is None else f"{row[f]:.2f}" for f in fields.values()]
        size = (f"{row['items']:,.0f}", f"{row['seconds']:.0f}")
        made.add_row(name, str(row["runs"]), *numbers, *size)
    return made
