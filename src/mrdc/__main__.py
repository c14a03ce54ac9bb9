"""Runs `mrdc` and `python -m mrdc`."""

import sys

from mrdc.cli import main as run


def main() -> None:
    """Run the command line and exit with its code."""
    sys.exit(run())


if __name__ == "__main__":
    main()
