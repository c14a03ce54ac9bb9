"""Add results of `mrdc study` (NAME.json) to results/studies.jsonl, replacing older ones."""

import argparse
import json
from pathlib import Path
from typing import Any

from common import HERE

OUT = HERE / "results" / "studies.jsonl"
COLUMNS = ("runs", "average_incremental_accuracy", "deviation", "last_accuracy", "items", "seconds")


def taken(path: Path) -> dict[str, Any]:
    """The table and answer of a study, with the commits, seeds and machines of its runs."""
    found = json.loads(path.read_text())
    rows = []
    for row in found["table"]:
        place = [str(row[name]) for name in list(row)[: list(row).index("runs")]]
        rows.append({"what": ", ".join(place), **{name: row[name] for name in COLUMNS}})
    lasts = [
        json.loads((path.parent.parent / run / "results.jsonl").read_text().splitlines()[-1])
        for run in found["runs"]
    ]
    about = {
        key: sorted({str(last[key]) for last in lasts})
        for key in ("commit", "seed", "gpu", "cores", "torch", "python")
    }
    kept = {key: found[key] for key in ("study", "title", "question", "answer")}
    return {**kept, "rows": rows, **about}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("studies", nargs="+", type=Path, help="NAME.json files")
    known = [json.loads(line) for line in OUT.read_text().splitlines()] if OUT.exists() else []
    by_name = {line["study"]: line for line in known}
    for path in parser.parse_args().studies:
        found = taken(path)
        by_name[found["study"]] = found
    lines = [json.dumps(line, sort_keys=True) for line in by_name.values()]
    OUT.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
