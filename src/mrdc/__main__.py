"""Runs `mrdc` and `python -m mrdc`."""

import os
import signal
import sys

# Threads of torch that wait shall soon sleep, not spin on: others need the cores. Torch reads
# this when it is first imported.
os.environ.setdefault("GOMP_SPINCOUNT", "2000")


def main() -> None:
    """Run the command line and exit with its code; a polite kill is like Ctrl-C."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        from mrdc.cli.main import main as run

        sys.exit(run())
    except KeyboardInterrupt:  # while it was still starting
        print("mrdc: interrupted: nothing was written", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
