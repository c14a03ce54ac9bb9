"""Prints the tables of REPRODUCTION.md from results/*.jsonl."""

import json
from pathlib import Path
from typing import Any

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


if __name__ == "__main__":
    speed()
    plans()
