"""How results look to people: tables and sentences."""

from mrdc._utils.text import count, printable
from mrdc.cli.lists import listing, names, study_lines
from mrdc.cli.memories import about, audit, info, packed, plan
from mrdc.cli.runs import run, study, sweep
from mrdc.cli.tables import clean

__all__ = [
    "about", "audit", "clean", "count", "info", "listing", "names", "packed", "plan", "printable",
    "run", "study", "study_lines", "sweep",
]  # fmt: skip
