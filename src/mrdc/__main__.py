"""Runs `mrdc` and `python -m mrdc`."""

import signal
import sys


def main() -> None:
    """Run the command line and exit with its code; a polite kill is like Ctrl-C."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        from mrdc.cli import main as run

        sys.exit(run())
    except KeyboardInterrupt:
        sys.exit("mrdc: interrupted: nothing was written")


if __name__ == "__main__":
    main()
