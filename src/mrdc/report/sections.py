"""The parts of a page, in their order."""

from collections.abc import Callable, Sequence

from mrdc.report import curves, tables
from mrdc.report.parts import Section
from mrdc.report.runs import Run

SECTIONS: dict[str, Callable[[Sequence[Run]], Section | None]] = {
    "runs": tables.what_was_run,
    "table": tables.compared,
    "accuracy": curves.accuracy,
    "budget": tables.budgets,
    "trade-off": curves.trade_off,
    "volume-ratio": curves.volume_ratios,
    "detection": tables.detection,
    "confusion": curves.confusion,
    "time": curves.times,
}
