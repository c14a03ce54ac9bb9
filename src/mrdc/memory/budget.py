"""Byte budgets: how they are written, and how classes share them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from mrdc._utils.errors import BudgetError, UsageError

UNITS = {
    "B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40,
}  # fmt: skip
ALLOWED = (
    "write 20/class (100/phase for scenes), '2000 originals', or bytes such as 200MB, 200MiB or "
    "1500000"
)


@dataclass(frozen=True)
class Budget:
    """A byte budget in one of three forms.

    Attributes:
        amount: originals for each class (or phase, of scenes), originals in all, or bytes in all.
        unit: which of these `amount` counts.
        original_bytes: mean bytes of an original image, where counted in originals.
    """

    amount: float
    unit: Literal["class", "phase", "originals", "bytes"]
    original_bytes: float | None = None

    def __str__(self) -> str:
        if self.unit == "bytes":
            whole = [name for name, size in UNITS.items() if int(self.amount) % size == 0]
            unit = max(whole, key=lambda name: UNITS[name])
            return f"{int(self.amount) // UNITS[unit]}{unit}"
        return f"{self.amount:.15g}" + (f"/{self.unit}" if self.grows else " originals")

    @property
    def grows(self) -> bool:
        """Whether every class, or phase, brings bytes of its own."""
        return self.unit in ("class", "phase")

    def as_json(self, total: int) -> dict[str, Any]:
        """As it was written, in bytes, and in originals where their size is known."""
        return {
            "text": str(self),
            "bytes": total,
            "originals": total / self.original_bytes if self.original_bytes else None,
            "original_bytes": self.original_bytes,
        }

    def less(self, charge: int, classes: int) -> "Budget":
        """What is left for images when so many classes share a charge of some bytes.

        Raises:
            BudgetError: nothing.
        """
        unit = self.original_bytes or 1
        per = 1.0 if self.unit == "bytes" else unit * (classes if self.grows else 1)
        if charge / per >= self.amount:
            raise BudgetError(
                f"the budget {self} is {self.total_bytes(classes):,} bytes for {classes} classes, "
                f"but {charge:,} are charged for further parameters of the network: raise it"
            )
        return replace(self, amount=self.amount - charge / per)

    def total_bytes(self, classes: int) -> int:
        """Bytes that so many classes may hold together."""
        if self.unit == "bytes":
            return int(self.amount)
        assert self.original_bytes is not None
        originals = self.amount * (classes if self.grows else 1)
        return int(originals * self.original_bytes)


def parse_budget(text: str | int, original_bytes: float | None = None) -> Budget:
    """Read a budget: `20/class`, `2000 originals`, `200MB`, or a number of bytes.

    Scenes come in phases rather than classes: `100/phase` is the same for them.

    Raises:
        UsageError: another form, nothing or less, or a budget counted in
            originals without their mean size in `original_bytes`.
    """
    match = re.fullmatch(
        r"\s*(\d+(?:\.\d+)?)\s*(/\s*(?:class|phase)|originals?|(?:[kmgt]i?)?b|)\s*",
        str(text),
        re.IGNORECASE,
    )
    if not match or not 0 < float(match[1]) < 1e15:
        raise UsageError(f"budget {text!r} is not one: {ALLOWED}")
    amount, unit = float(match[1]), match[2].lower() or "b"
    sizes = {name.lower(): size for name, size in UNITS.items()}
    if unit in sizes and amount * sizes[unit] < 1:
        raise UsageError(f"budget {text!r} is less than a byte: {ALLOWED}")
    if unit in sizes:
        return Budget(float(int(amount * sizes[unit])), "bytes", original_bytes)
    if original_bytes is None or original_bytes <= 0:
        raise UsageError(
            f"budget {text!r} counts originals, so it needs original_bytes, the mean "
            "bytes of one, as in parse_budget('20/class', original_bytes=17900)"
        )
    if "phase" in unit:
        return Budget(amount, "phase", original_bytes)
    return Budget(amount, "class" if "class" in unit else "originals", original_bytes)


def quantity(sizes: ArrayLike, budget_bytes: int) -> int:
    """How many images, taken in this order, fit into so many bytes."""
    return int(np.searchsorted(np.cumsum(sizes), budget_bytes, side="right"))


def level(total: int, needs: Sequence[float], firsts: Sequence[int]) -> int:
    """Bytes each class may hold so that all together hold at most `total`.

    Classes share equally, but each holds its first image in any case, and one
    that needs less hands the rest back to the others.

    Args:
        needs: bytes of all images of a class; infinite where nobody knows yet.
        firsts: bytes of its first image.
    """
    low, high = 0, max(total, 0)
    while low < high:
        limit = (low + high + 1) // 2
        pairs = zip(needs, firsts, strict=True)
        if sum(min(need, max(first, limit)) for need, first in pairs) <= total:
            low = limit
        else:
            high = limit - 1
    return low


def share(total: int, sizes: Sequence[ArrayLike]) -> list[int]:
    """How many images of each class, from its first, fit into `total` bytes together.

    Every class is cut at the common level, but has its first image if there is room for those
    of all classes; what is left over is offered, one image each, to the classes that hold the
    fewest bytes.
    """
    total = max(total, 0)
    sums = [np.cumsum([0, *np.asarray(of_class)]) for of_class in sizes]
    firsts = [int(s[:2][-1]) for s in sums]
    if sum(firsts) > total:
        firsts = [0] * len(sums)
    limit = level(total, [int(s[-1]) for s in sums], firsts)
    limits = [max(first, limit) for first in firsts]
    counts = [
        int(np.searchsorted(s, most, side="right")) - 1
        for s, most in zip(sums, limits, strict=True)
    ]
    spare = total - sum(int(s[count]) for s, count in zip(sums, counts, strict=True))
    for index in sorted(range(len(sums)), key=lambda i: int(sums[i][counts[i]])):
        held, next_one = sums[index][counts[index] :][:1], sums[index][counts[index] + 1 :][:1]
        if len(next_one) and next_one[0] - held[0] <= spare:
            spare -= int(next_one[0] - held[0])
            counts[index] += 1
    return counts
