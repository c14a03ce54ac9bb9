"""Takes the results of `mrdc run` folders into results/runs.jsonl, each once."""

import argparse
import json
from pathlib import Path

from common import HERE

OUT = HERE / "results" / "runs.jsonl"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", nargs="+", type=Path, help="results.jsonl of finished runs")
    parser.add_argument("--label", required=True, help="what the tables call the data")
    parser.add_argument("--remark", help="anything unusual about how they were made")
    chosen = parser.parse_args()
    known = set(OUT.read_text().splitlines()) if OUT.exists() else set()
    with OUT.open("a") as out:
        for path in chosen.results:
            *events, result = map(json.loads, path.read_text().splitlines())
            del result["folder"]
            first = next(e for e in events if e["event"] == "phase" and e["phase"] == 0)
            choosing = first["parts"].get("volume_ratio")
            fields = {**result, "label": chosen.label, "remark": chosen.remark}
            fields["choosing_seconds"] = choosing  # R_q of all candidates after phase 0
            line = json.dumps(fields, sort_keys=True)
            if line not in known:
                out.write(line + "\n")


if __name__ == "__main__":
    main()
