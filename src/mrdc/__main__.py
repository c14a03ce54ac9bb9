"""Runs `mrdc` and `python -m mrdc`."""

from mrdc.cli import start

if __name__ == "__main__":
    start()
