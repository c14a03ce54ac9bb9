"""Append the results of `mrdc run` folders to results/runs.jsonl, without duplicates.

The files that `mrdc report` needs are also copied to results/LABEL/. A run that was stopped is
only copied there, with its last line.
"""

import argparse
import json
from pathlib import Path
from statistics import median
from typing import Any

from common import HERE

OUT = HERE / "results" / "runs.jsonl"


def pace(events: list[dict[str, Any]]) -> dict[str, Any]:
    """Images/s of each phase (median epoch), and the extra seconds of first epochs.

    The extra time goes into compiling, recording graphs and searching for kernels. Also returns
    the largest and the last epoch loss of each phase.
    """
    epochs = [e for e in events if e["event"] == "epoch" and e["stage"] == 0]
    images = {e["phase"]: e["train_images"] for e in events if e["event"] == "phase_start"}
    phases = sorted({epoch["phase"] for epoch in epochs})
    rates = {p: median(e["images_per_second"] for e in epochs if e["phase"] == p) for p in phases}
    starts = [
        images[e["phase"]] * (1 / e["images_per_second"] - 1 / rates[e["phase"]])
        for e in epochs
        if e["epoch"] == 1
    ]
    losses = {p: [e["loss"] for e in epochs if e["phase"] == p] for p in phases}
    return {
        "images_per_second": list(rates.values()),
        "start_seconds": sum(starts),
        "largest_loss": {p: max(found) for p, found in losses.items()},
        "last_loss": {p: found[-1] for p, found in losses.items()},
    }


def keep(folder: Path, to: Path, events: list[dict[str, Any]], result: dict[str, Any]) -> None:
    """Copy a run folder without epochs, networks, images and paths."""
    to.mkdir(parents=True, exist_ok=True)
    config = json.loads((folder / "config.json").read_text())
    config["settings"]["data"] = result["data"]
    (to / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    lines = [event for event in events if event["event"] == "phase"]
    text = "".join(json.dumps(line) + "\n" for line in [*lines, result])
    (to / "results.jsonl").write_text(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path, help="run folders")
    parser.add_argument("--label", required=True, help="name of the data in the tables")
    parser.add_argument("--data", help="name of the data, if not the label")
    parser.add_argument("--remark", help="anything unusual about these runs")
    chosen = parser.parse_args()
    known = set(OUT.read_text().splitlines()) if OUT.exists() else set()
    with OUT.open("a") as out:
        for folder in chosen.folders:
            lines = (folder / "results.jsonl").read_text().splitlines()
            *events, result = map(json.loads, lines)
            result.pop("folder", None)
            result["data"] = chosen.data or chosen.label
            keep(folder, OUT.parent / chosen.label / folder.name, events, result)
            if "average_incremental_accuracy" not in result:
                continue
            first = next(e for e in events if e["event"] == "phase" and e["phase"] == 0)
            choosing = first["parts"].get("volume_ratio")
            fields = {**result, "label": chosen.label, "remark": chosen.remark}
            fields["choosing_seconds"] = choosing  # R_q of all candidates after phase 0
            fields |= pace(events)
            line = json.dumps(fields, sort_keys=True)
            if line not in known:
                out.write(line + "\n")


if __name__ == "__main__":
    main()
