"""CPU time of the `mrdc plan` command, without cached features."""

import json
import os
import subprocess
import sys
import time

from common import emit, machine, options


def cpu() -> float:
    """CPU seconds of all finished child processes."""
    times = os.times()
    return times.children_user + times.children_system


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--budget", nargs="+", default=["5/class", "10/class", "20/class"])
    chosen = parser.parse_args()
    for budget in chosen.budget:
        command = [sys.executable, "-m", "mrdc", "plan", str(chosen.photos or "textures")]
        spent, start = cpu(), time.perf_counter()
        flags = ["--budget", budget, "--no-cache", "--json"]
        made = subprocess.run([*command, *flags], check=True, capture_output=True, text=True)
        seconds = time.perf_counter() - start
        found = json.loads(made.stdout)
        emit(
            "plan_cost",
            label=chosen.label,
            budget=budget,
            images=found["images"],
            chosen=[found["chosen"]["codec"], found["chosen"]["quality"]],
            cpu_seconds=cpu() - spent,
            seconds=seconds,
            **machine(),
        )


if __name__ == "__main__":
    main()
