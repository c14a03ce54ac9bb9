"""Ignore interruptions for a moment."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread

NAMES = ("SIGINT", "SIGTERM", "SIGHUP")  # Windows lacks some of them


@contextmanager
def undisturbed() -> Iterator[None]:
    """Ignore Ctrl-C, SIGTERM and SIGHUP, such as while a last checkpoint is written."""
    if current_thread() is not main_thread():  # it can set no handlers, and is not interrupted
        yield
        return
    numbers = [getattr(signal, name) for name in NAMES if hasattr(signal, name)]
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
