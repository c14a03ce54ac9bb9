"""Prints the tables of REPRODUCTION.md from results/*.jsonl."""

import json
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

from mrdc.experiment.presets import COLUMNS, TABLE_1

RESULTS = Path(__file__).resolve().parent / "results"
Row = dict[str, Any]


def read(name: str) -> list[Row]:
    path = RESULTS / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def table(*rows: list[object]) -> None:
    """A Markdown table; the first row is its head."""
    for number, row in enumerate(rows):
        print("|" + "|".join(f" {cell} " for cell in row) + "|")
        if number == 0:
            print("|" + "-|" * len(row))
    print()


def name(candidate: Row) -> str:
    quality = candidate["quality"]
    return candidate["codec"] if quality is None else f"{candidate['codec']} {quality}"


def plans() -> None:
    """Every plan: images and R_q by candidate, the choice in bold."""
    for plan in read("plan"):
        exact = any("l2" in candidate for candidate in plan["candidates"])
        print(
            f"{plan['label']}, {plan['budget']['text']}, {plan['pairing']}, {plan['seconds']:.0f} s"
        )
        print(f"(commit {plan['commit']}, {plan['gpu'] or plan['cpu']})\n")
        head = ["candidate", "bytes/image", "images", "R_q", "verdict"]
        rows: list[list[object]] = [[*head, *(["log Z_q", "L_2"] if exact else [])]]
        for c in plan["candidates"]:
            label = f"**{name(c)}**" if c["verdict"] == "chosen" else name(c)
            each = f"{c['bytes'] / c['quantity']:,.0f}"
            cells = [label, each, f"{c['quantity']:,}", f"{c['volume_ratio']:.3f}", c["verdict"]]
            if exact:
                cells += [f"{c['log_z']:.2f}", f"{c['l2']:.3f}"] if "l2" in c else ["", ""]
            rows.append(list(cells))
        table(*rows)
        file = plan["audit"]
        print(
            f"`pack` wrote {file['items']:,} images, {file['payload_bytes']:,} of "
            f"{file['budget_bytes']:,} budget bytes, in a file of {file['file_bytes']:,}; "
            f"audit: {'sound' if file['ok'] else file['problems']}.\n"
        )


def speed() -> None:
    """Ratios, the newest line of each question and data set."""
    rows: list[list[object]] = [["question", "data", "ratio", "aim"]]
    rows += [
        ["decode against Pillow", r["label"], f"{r['ratio']:.2f}", ">= 1.4"] for r in read("decode")
    ]
    for r in read("batches"):
        threads = f"{r['threads']} threads, {r['workers']} workers"
        for what, ratio in (("a reused buffer", "ratio"), ("new memory", "ratio_fresh")):
            question = f"batches against the PIL loader, {threads}, as floats in {what}"
            rows.append([question, r["label"], f"{r[ratio]:.2f}", ">= 2.4"])
    for r in read("selection"):
        rows.append(
            [
                f"{r['what']} against a plain loop",
                f"{r['rows']} x {r['columns']}",
                f"{r['ratio']:.1f}",
                "",
            ]
        )
    for r in read("ram"):
        for what, ratio in (("resident", "ratio"), ("objects added up", "ratio_counted")):
            question = f"RAM of a memory against its payload, {what}"
            rows.append([question, r["label"], f"{r[ratio]:.4f}", "<= 1.02"])
    rows += [
        ["pack against the bare encode", r["label"], f"{r['ratio']:.2f}", "<= 1.3"]
        for r in read("pack")
    ]
    for r in read("peak"):
        what = f"RAM for each image beyond 1,000, {r['select']}, {r['feature_bytes']} B of features"
        rows.append([what, r["label"], f"{r['bytes_per_extra_image']:,.0f} B", ""])
    table(*rows)


def same(run: Row) -> tuple[object, ...]:
    """What runs that differ only in their seed share."""
    return run["label"], run["name"], len(run["sizes"]), run["budget"], run["quality_rule"]


def compared() -> None:
    """Averaged incremental accuracy of every recipe beside the paper's."""
    groups: dict[tuple[object, ...], list[Row]] = {}
    for run in read("runs"):
        if run["budget"] != "5/class":  # that budget has a table of its own
            groups.setdefault(same(run), []).append(run)
    head = ["data", "recipe", "phases", "runs", "ours, %", "the paper, %", "last, %"]
    rows: list[list[object]] = [[*head, "forgetting", "quality", "images held", "by seed"]]
    for (label, name, sizes, *_), runs in groups.items():
        assert isinstance(sizes, int) and isinstance(name, str)
        column = COLUMNS.index(("cub", sizes - 1)) if label == "cub256" else None
        published = TABLE_1[name][column] if column is not None and name in TABLE_1 else None
        scores = [run["average_incremental_accuracy"] for run in runs]
        spread = f" +- {stdev(scores):.2f}" if len(scores) > 1 else ""
        rows.append(
            [
                label, name, sizes - 1, len(runs), f"{mean(scores):.2f}{spread}",
                published or "", f"{mean(run['accuracy'][-1] for run in runs):.2f}",
                f"{mean(run['average_forgetting'] for run in runs):.2f}",
                ", ".join(sorted({str(run["quality"] or "original") for run in runs})),
                f"{mean(run['memory']['items'] for run in runs):,.0f}",
                ", ".join(f"{run['average_incremental_accuracy']:.2f}"
                          for run in sorted(runs, key=lambda run: int(run["seed"]))),
            ]
        )  # fmt: skip
    table(*rows)


def grids() -> None:
    """Every quality at a small budget, beside R_q of the run that replays originals."""
    runs = [run for run in read("runs") if run["budget"] == "5/class" and run["name"] == "lucir"]
    ratios = {
        row["quality"]: row
        for run in runs
        if run["quality"] is None
        for row in run["volume_ratios"]
    }
    head = ["quality", "images held", "averaged, %", "last, %", "forgetting"]
    rows: list[list[object]] = [
        [*head, "R_q after phase 0", "R_q, mean of the phases", "mean R_q of 25 along this run"]
    ]
    for run in runs:
        ratio = ratios[run["quality"]]
        rows.append(
            [
                run["quality"] or "original", f"{run['memory']['items']:,}",
                f"{run['average_incremental_accuracy']:.2f}", f"{run['accuracy'][-1]:.2f}",
                f"{run['average_forgetting']:.2f}", f"{ratio['by_phase'][0]:.2f}",
                f"{ratio['mean']:.2f}",
                *(f"{r['mean']:.2f}" for r in run["volume_ratios"] if r["quality"] == 25),
            ]
        )  # fmt: skip
    table(*rows)


def times() -> None:
    """Where the time of a run goes, of runs that had the card to themselves."""
    parts = ("decode", "train", "select", "volume_ratio", "encode", "evaluate", "write")
    head: list[object] = [
        "recipe",
        "phases",
        "seconds",
        *parts,
        "trained images",
        "images/s",
        "start",
        "R_q to choose",
    ]
    rows: list[list[object]] = [head]
    for run in read("runs"):
        if run["gpu"] and run["remark"] is None:
            cells = [f"{run['parts'].get(part, 0):.1f}" for part in parts]
            rows.append(
                [
                    run["name"], len(run["sizes"]) - 1, f"{run['seconds']:.0f}", *cells,
                    f"{run['trained_images']:,}", f"{median(run['images_per_second']):,.0f}",
                    f"{run['start_seconds']:.1f}", f"{run['choosing_seconds']:.1f}",
                ]
            )  # fmt: skip
    table(*rows)
    rates: list[list[object]] = [["step", "batch", "plain", "graph", "compiled", "both"]]
    for batch, teacher in ((128, False), (128, True), (512, False)):
        found = {
            (r["graph"], r["compiled"]): f"{r['rate']:,.0f}"
            for r in read("step")
            if r["batch"] == batch and r["teacher"] == teacher
        }
        name = "LUCIR with its teacher" if teacher else "the bare network"
        kinds = ((False, False), (True, False), (False, True), (True, True))
        rates.append([name, batch, *(found.get(kind, "") for kind in kinds)])
    table(*rates)


if __name__ == "__main__":
    compared()
    grids()
    times()
    speed()
    plans()
