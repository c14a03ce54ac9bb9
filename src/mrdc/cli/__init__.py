"""The command line: one thin function per verb, and everything that prints."""

import os
import signal
import sys

from mrdc._utils.errors import lacks_memory

# Let idle OpenMP threads sleep instead of spinning. Torch reads this when it is first imported.
os.environ.setdefault("GOMP_SPINCOUNT", "2000")


NAMES = ("SIGINT", "SIGTERM", "SIGHUP")  # Windows has not all of them
SIGNALS = [getattr(signal, name) for name in NAMES if hasattr(signal, name)]


def interrupt(number: int, frame: object) -> None:
    """Let the command clean up, but only once."""
    for one in SIGNALS:
        if signal.getsignal(one) is interrupt:
            signal.signal(one, lambda *_: os._exit(130))
    raise KeyboardInterrupt


def start() -> None:
    """Run the command line and exit with its code.

    SIGTERM and SIGHUP are handled like Ctrl-C, unless they are ignored (`nohup`). The second one
    ends the process at once.
    """
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, interrupt)
    try:
        from mrdc.cli.main import main

        sys.exit(main())
    except KeyboardInterrupt:  # during start-up
        print("mrdc: interrupted: nothing was written", file=sys.stderr)
        sys.exit(130)
    except (MemoryError, ImportError) as error:  # during start-up
        if not lacks_memory(error):
            raise
        print("mrdc: not enough memory to start", file=sys.stderr)
        sys.exit(2)
