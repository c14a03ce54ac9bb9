"""Write finished and stopped `mrdc run` folders as lines of results/runs/LABEL.jsonl.

A line has the settings, the phases (without the candidates, which the result sums up) and the
result. A folder that is collected again replaces its line.
"""

import argparse
import json
from pathlib import Path
from statistics import median
from typing import Any

from runs import FOLDER, runs_of


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


def collected(folder: Path, data: str, remark: str | None) -> dict[str, Any]:
    """A run folder as a line, without epochs, candidates and paths."""
    config = json.loads((folder / "config.json").read_text())
    config["settings"]["data"] = data
    events = list(map(json.loads, (folder / "results.jsonl").read_text().splitlines()))
    result = events.pop() if "event" not in events[-1] else None
    phases = [event for event in events if event["event"] == "phase"]
    if result is not None:
        result.pop("folder", None)
        choosing = phases[0]["parts"].get("volume_ratio")  # all candidates after phase 0
        result |= {"data": data, "remark": remark, "choosing_seconds": choosing, **pace(events)}
    short = [
        {k: v for k, v in phase.items() if k not in ("event", "candidates")} for phase in phases
    ]
    return {"folder": folder.name, "config": config, "phases": short, "result": result}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path, help="run folders")
    parser.add_argument("--label", required=True, help="name of the runs in the tables")
    parser.add_argument("--data", help="name of the data, if not the label")
    parser.add_argument("--remark", help="anything unusual about these runs")
    given = parser.parse_args()
    lines = {run["folder"]: run for run in runs_of(given.label)}
    for folder in given.folders:
        lines[folder.name] = collected(folder, given.data or given.label, given.remark)
    FOLDER.mkdir(exist_ok=True)
    text = "".join(json.dumps(line) + "\n" for line in lines.values())
    (FOLDER / f"{given.label}.jsonl").write_text(text)


if __name__ == "__main__":
    main()
