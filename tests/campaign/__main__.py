"""Run the campaign and print the outcome."""

import argparse
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from tests.campaign.areas import AREAS, run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.campaign", description=__doc__)
    parser.add_argument("--cases", type=int, default=1000, help="cases of the cheap areas")
    parser.add_argument("--seed", type=int, default=0, help="number of the first case")
    parser.add_argument("--only", nargs="+", choices=list(AREAS), default=list(AREAS))
    given = parser.parse_args()
    failures: list[str] = []
    cases = 0
    for name in given.only:  # each in a process of its own, to measure its memory
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            tally = pool.submit(run, name, given.cases, given.seed).result()
        print(tally, flush=True)
        failures += tally.failures
        cases += tally.cases
    print(f"{cases} cases, {len(failures)} failures")
    print("\n".join(failures))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
