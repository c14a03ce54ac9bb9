"""How results look to people: tables and sentences."""

from mrdc.show.lists import listing, names, study_lines
from mrdc.show.memories import about, audit, info, packed, plan
from mrdc.show.runs import run, study, sweep
from mrdc.show.words import clean, count, printable

__all__ = [
    "about", "audit", "clean", "count", "info", "listing", "names", "packed", "plan", "printable",
    "run", "study", "study_lines", "sweep",
]  # fmt: skip
