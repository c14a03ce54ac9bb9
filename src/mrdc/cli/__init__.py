"""The command line: one thin function per verb, and everything that prints."""

import os
import signal
import sys

# Let idle OpenMP threads sleep instead of spinning. Torch reads this when it is first imported.
os.environ.setdefault("GOMP_SPINCOUNT", "2000")


def start() -> None:
    """Run the command line and exit with its code; SIGTERM is handled like Ctrl-C."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        from mrdc.cli.main import main

        sys.exit(main())
    except KeyboardInterrupt:  # during start-up
        print("mrdc: interrupted: nothing was written", file=sys.stderr)
        sys.exit(130)
