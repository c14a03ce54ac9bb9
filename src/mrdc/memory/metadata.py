"""The JSON metadata of a memory file."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from mrdc import __version__
from mrdc.memory.budget import Budget
from mrdc.memory.classes import ClassImages
from mrdc.memory.encode import Encoding


def class_metadata(
    classes: Mapping[int, ClassImages], name: Callable[[int], str], encoding: Encoding
) -> list[dict[str, Any]]:
    """Metadata of each class, with its encoding if that differs from the memory's."""
    return [
        {
            "label": label,
            "name": name(label),
            "items": len(images),
            "duplicates": images.duplicates,
            **({} if images.encoding == encoding else asdict(images.encoding)),
        }
        for label, images in classes.items()
    ]


def new_metadata(counts: Mapping[int, int], name: Callable[[int], str]) -> list[dict[str, Any]]:
    """Metadata of classes to be added, at its longest, from their numbers of images."""
    return [
        {"label": label, "name": name(label), "items": count, "duplicates": count}
        for label, count in counts.items()
    ]


def file_metadata(
    budget: Budget,
    accounting: str,
    encoding: Encoding,
    classes: Sequence[Mapping[str, Any]],
    notes: Mapping[str, Any],
    box_classes: Sequence[str],
) -> dict[str, Any]:
    """Metadata of a file; the writer adds the tables."""
    return {
        "budget": asdict(budget) | {"bytes": budget.total_bytes(len(classes))},
        "accounting": accounting,
        "whole_file": budget.unit == "bytes",
        **asdict(encoding),
        "mrdc": __version__,
        "classes": classes,
        "notes": notes,
        **({"box_classes": box_classes} if box_classes else {}),
    }
