"""`mrdc` as a process of a sweep or of `--nproc`, which ends when its standard input does."""

import os
from threading import Thread

from mrdc.cli import start


def end_with_input() -> None:
    """Wait until the parent closes the input or is killed; the run can be resumed later."""
    os.read(0, 1)
    os._exit(1)


if __name__ == "__main__":
    Thread(target=end_with_input, daemon=True).start()
    start()
