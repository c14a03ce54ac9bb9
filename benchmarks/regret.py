"""How many points does each rule for choosing a quality lose against the best of its grid?

Reads run folders, or results/LABEL/ as collect.py keeps them, and prints Markdown.
"""

import argparse
from pathlib import Path

from common import table
from mrdc.report.choices import choice
from mrdc.report.figures import Grid
from mrdc.report.runs import find_runs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path, help="of runs, searched with sub-folders")
    runs = find_runs(parser.parse_args().folders)
    parts = choice([run for run in runs if run.phases]).parts
    for part in parts:
        if isinstance(part, Grid):
            print(part.caption, table(*part.rows), sep="\n\n")
    if not parts:
        raise SystemExit(f"{len(runs)} runs, but no three that differ only in quality")


if __name__ == "__main__":
    main()
