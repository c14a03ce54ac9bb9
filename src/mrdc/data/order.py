"""Orders in which classes arrive."""

from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path

import numpy as np

from mrdc._utils.errors import DataError, UsageError
from mrdc.data.images import Splits, some_of
from mrdc.data.lists import read_pairs

SEED = 1993  # for the class order that the papers share


def order_classes(splits: Splits, order: str | int, superclasses: Path | None) -> list[int]:
    """All labels of a data set in the order of arrival; arguments as for `make_stream`."""
    classes = splits.train.classes
    if order in ("similar", "dissimilar"):
        groups = read_superclasses(superclasses, classes) if superclasses else splits.superclasses
        if groups is None:
            need = "the superclass of each class, which this data set does not have"
            fix = "give superclasses, a CSV of class,superclass"
            raise UsageError(f"order {order} needs {need}; {fix}")
        return superclass_order(groups, str(order), SEED)
    if order == "sorted":
        return list(range(len(classes)))
    seed = whole_number(order, "order must be a seed, sorted, similar or dissimilar")
    return class_order(len(classes), seed)


def class_order(classes: int, seed: int) -> list[int]:
    """All labels, shuffled with numpy's legacy generator as in the papers' code."""
    order = np.arange(classes)
    _legacy(seed).shuffle(order)
    return order.tolist()


def superclass_order(superclasses: Sequence[str], kind: str, seed: int) -> list[int]:
    """All labels, so that a phase has as few ("similar") or as many superclasses as possible.

    "similar" puts the classes of a superclass next to each other; "dissimilar" takes one class
    of each superclass in turn. The seed shuffles superclasses, and classes within (see App. B.1).
    """
    rng = _legacy(seed)
    names = sorted(set(superclasses))
    groups: list[list[int]] = []
    for place in rng.permutation(len(names)).tolist():
        members = [label for label, name in enumerate(superclasses) if name == names[place]]
        groups.append(rng.permutation(members).tolist())
    if kind == "similar":
        return [label for group in groups for label in group]
    return [label for turn in zip_longest(*groups) for label in turn if label is not None]


def _legacy(seed: int) -> np.random.RandomState:
    if not 0 <= seed < 2**32:
        raise UsageError(f"the seed of an order must be from 0 to 2**32 - 1, got {seed}")
    return np.random.RandomState(seed)


def read_superclasses(path: Path, classes: Sequence[str]) -> tuple[str, ...]:
    """The superclass of each class, from a CSV of class,superclass."""
    table: dict[str, str] = {}
    for line, name, group in read_pairs(path, "class", "superclass"):
        if name in table or name not in classes:
            fault = "appears twice" if name in table else "is not a class of the data set"
            raise DataError(f"{path}: line {line}: {name!r} {fault}; give each class once")
        table[name] = group
    missing = [name for name in classes if name not in table]
    if missing:
        raise DataError(f"{path}: no superclass for {some_of(missing)}; give each class once")
    return tuple(table[name] for name in classes)


def whole_number(value: str | int, rule: str) -> int:
    """Parse a whole number; a refusal begins with `rule`."""
    try:
        return int(value)
    except ValueError:
        raise UsageError(f"{rule}, got {value!r}") from None
