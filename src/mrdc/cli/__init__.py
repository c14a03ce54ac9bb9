"""The command line: one thin function per verb, and everything that prints."""

import ctypes
import os
import signal
import sys
from contextlib import suppress

from mrdc._utils.errors import lacks_memory

# Let idle OpenMP threads sleep instead of spinning. Torch reads this when it is first imported.
os.environ.setdefault("GOMP_SPINCOUNT", "2000")


NAMES = ("SIGINT", "SIGTERM", "SIGHUP")  # not all exist on Windows
SIGNALS = [getattr(signal, name) for name in NAMES if hasattr(signal, name)]


def interrupt(number: int, frame: object) -> None:
    """Let the command clean up, but only once."""
    for one in SIGNALS:
        if signal.getsignal(one) is interrupt:
            signal.signal(one, lambda *_: os._exit(130))
    raise KeyboardInterrupt


def keep_freed_memory() -> None:
    """Let the C library reuse large freed blocks rather than return them to the kernel.

    Networks on CPUs free and allocate maps of many megabytes all the time: faulting their pages
    in again took a quarter of the time of `mrdc plan`.
    """
    with suppress(OSError, AttributeError):  # not glibc
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(-3, 32 << 20)  # M_MMAP_THRESHOLD, at its maximum
        libc.mallopt(-1, 256 << 20)  # M_TRIM_THRESHOLD


def start() -> None:
    """Run the command line and exit with its code.

    SIGTERM and SIGHUP are handled like Ctrl-C, unless they are ignored (`nohup`). A second
    signal ends the process at once.
    """
    keep_freed_memory()
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
