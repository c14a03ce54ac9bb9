"""Byte budgets: parsing them, and sharing them among classes."""

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
EXACT = 2**53  # bytes; floats count exactly up to here
ALLOWED = (
    "write 20/class (100/phase for scenes), '2000 originals', or bytes such as 200MB, 200MiB or "
    "1500000"
)


@dataclass(frozen=True)
class Budget:
    """A byte budget in one of three forms.

    A budget in bytes bounds the whole memory file, index included. A budget in originals
    counts image bytes only, as in the paper.
    """

    amount: float  # originals per class (per phase for scenes), originals in total, or bytes
    unit: Literal["class", "phase", "originals", "bytes"]
    original_bytes: float | None = None  # mean bytes of an original, required to count originals

    def __post_init__(self) -> None:
        if self.unit != "bytes" and not (self.original_bytes or 0) > 0:
            raise UsageError(
                f"budget '{self}' counts originals: pass original_bytes, their mean size in "
                "bytes, for example original_bytes=17900"
            )

    def __str__(self) -> str:
        if self.unit == "bytes":
            whole = [name for name, size in UNITS.items() if int(self.amount) % size == 0]
            unit = max(whole, key=lambda name: UNITS[name])
            return f"{int(self.amount) // UNITS[unit]}{unit}"
        return f"{self.amount:.15g}" + (f"/{self.unit}" if self.grows else " originals")

    @property
    def grows(self) -> bool:
        """True if every class or phase adds to the budget."""
        return self.unit in ("class", "phase")

    def as_json(self, total: int) -> dict[str, Any]:
        """The budget as text, in bytes, and in originals if their size is known."""
        return {
            "text": str(self),
            "bytes": total,
            "originals": total / self.original_bytes if self.original_bytes else None,
            "original_bytes": self.original_bytes,
        }

    def less(self, charge: int, classes: int) -> "Budget":
        """The budget left for images after a charge of `charge` bytes shared by the classes."""
        unit = self.original_bytes or 1
        per = 1.0 if self.unit == "bytes" else unit * (classes if self.grows else 1)
        if charge / per >= self.amount:
            raise BudgetError(
                f"the budget {self} is {self.total_bytes(classes):,} bytes for {classes} classes, "
                f"but the extra parameters of the network take {charge:,}: raise the budget"
            )
        return replace(self, amount=self.amount - charge / per)

    def part(self, share: float) -> "Budget":
        """The budget of a share of the classes."""
        return self if self.grows else replace(self, amount=self.amount * share)

    def total_bytes(self, classes: int) -> int:
        """Bytes that this many classes may take together."""
        if self.unit == "bytes":
            return int(self.amount)
        assert self.original_bytes is not None
        return int(self.amount * (classes if self.grows else 1) * self.original_bytes)


def parse_budget(text: str | int | Budget, original_bytes: float | None = None) -> Budget:
    """Parse a budget: `20/class`, `100/phase`, `2000 originals`, `200MB` or a number of bytes."""
    if isinstance(text, Budget):
        return text
    form = r"\s*(\d+(?:\.\d+)?)\s*(/\s*(?:class|phase)|originals?|(?:[kmgt]i?)?b|)\s*"
    match = re.fullmatch(form, str(text), re.IGNORECASE)
    if not match or not 0 < float(match[1]) < 1e15:
        raise UsageError(f"invalid budget {text!r}: {ALLOWED}")
    amount, unit = float(match[1]), match[2].lower() or "b"
    sizes = {name.lower(): size for name, size in UNITS.items()}
    if "/" in unit:
        return Budget(amount, "phase" if "phase" in unit else "class", original_bytes)
    if "original" in unit:
        return Budget(amount, "originals", original_bytes)
    if amount * sizes[unit] < 1:
        raise UsageError(f"invalid budget {text!r}, less than a byte: {ALLOWED}")
    return Budget(float(int(amount * sizes[unit])), "bytes", original_bytes)


def parse_bytes(given: int | str) -> int:
    """Parse a size, as in a budget in bytes: 1GB, 512MiB, or a number of bytes."""
    try:
        size = parse_budget(given)
    except UsageError:
        size = None
    if size is None or size.unit != "bytes":
        raise UsageError(f"invalid size {given!r}: write bytes such as 1GB, 512MiB or 1500000")
    return int(size.amount)


def quantity(sizes: ArrayLike, budget_bytes: int) -> int:
    """Number of images, taken in order, that fit into `budget_bytes`."""
    return int(np.searchsorted(np.cumsum(sizes), budget_bytes, side="right"))


def level(total: int, needs: Sequence[float], firsts: Sequence[int]) -> int:
    """Bytes each class may take so that all together take at most `total`.

    Classes share equally, but each takes at least its first image, and a class that
    needs less leaves the rest to the others.

    Args:
        needs: bytes of all images of each class; infinite if not known yet.
        firsts: bytes of the first image of each class.
    """
    total = min(max(total, 0), EXACT)
    most, least = np.array(needs, float), np.array(firsts, float)
    low, high = 0, total
    while low < high:
        limit = (low + high + 1) // 2
        if np.minimum(most, np.maximum(least, limit)).sum() <= total:
            low = limit
        else:
            high = limit - 1
    return low


def share(total: int, sizes: Sequence[ArrayLike]) -> list[int]:
    """Number of images of each class, in order, that fit into `total` bytes together.

    Every class is cut at the common level, but keeps its first image if the first images of
    all classes fit. The remaining bytes go to one more image each, starting with the class
    that holds the fewest bytes.
    """
    total = max(total, 0)
    sums = [np.cumsum([0, *np.asarray(of_class)]) for of_class in sizes]
    firsts = [int(s[:2][-1]) for s in sums]
    if sum(firsts) > total:
        firsts = [0] * len(sums)
    limit = level(total, [int(s[-1]) for s in sums], firsts)
    limits = [max(first, limit) for first in firsts]
    counts = [quantity(of_class, most) for of_class, most in zip(sizes, limits, strict=True)]
    held = [int(s[count]) for s, count in zip(sums, counts, strict=True)]
    spare = total - sum(held)
    for index in sorted(range(len(sums)), key=held.__getitem__):
        following = sums[index][counts[index] + 1 :]
        if len(following) and following[0] - held[index] <= spare:
            spare -= int(following[0]) - held[index]
            counts[index] += 1
    return counts
