"""`mrdc` for a sweep: a process that ends when its standard input does."""

import os
from threading import Thread

from mrdc.__main__ import main


def end_with_input() -> None:
    """Wait for the sweep to close it, or to be killed; a run that is cut off can go on later."""
    os.read(0, 1)
    os._exit(1)


if __name__ == "__main__":
    Thread(target=end_with_input, daemon=True).start()
    main()
