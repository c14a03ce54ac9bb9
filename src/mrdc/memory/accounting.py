"""Bytes that a budget leaves for images, after everything else it covers."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from mrdc import __version__
from mrdc._utils.lazy import unordered
from mrdc.memory.budget import Budget
from mrdc.memory.classes import encodings_in_use, has_values, tables_in_use
from mrdc.memory.contents import Contents
from mrdc.memory.encode import Arrival, Encoder, Encoding, Item
from mrdc.memory.names import IndexCost
from mrdc.memory.split import folder_bytes
from mrdc.memory.write import head_bytes


@dataclass(frozen=True)
class Coming:
    """The most that is about to be stored."""

    classes: Mapping[int, dict[str, int]] = field(default_factory=dict)  # counts by label
    tables: Iterable[bytes] = ()
    encodings: Iterable[Encoding] = ()
    values: bool = False


def coming(
    memory: Contents,
    ranked: Mapping[int, Sequence[Item]],
    seen: Mapping[int, int],
    encoder: Encoder,
) -> Coming:
    """Upper bounds for classes that are about to hold some of the ranked images."""
    items = [item for of_class in ranked.values() for item in unordered(of_class)]
    encoded = [item for item in items if not isinstance(item, Arrival)]
    new = len(encoded) < len(items)
    split = new or not all(image.tables for image in encoded)
    found = memory.duplicates()
    return Coming(
        {
            label: {
                "items": seen[label],
                "duplicates": len(of_class) + found.get(label, 0),
                "seen": seen[label],
            }
            for label, of_class in ranked.items()
        },
        tables=[encoder.tables] * split + [image.tables for image in encoded if encoder.packed],
        encodings=[*([encoder.encoding] if new else []), *(image.encoding for image in encoded)],
        values=any(item.values for item in items),
    )


def entry_cost(memory: Contents, budget: Budget, values: bool = False) -> IndexCost | None:
    """Size of index entries, if the budget bounds the file."""
    if budget.unit != "bytes":
        return None
    boxes = memory.boxes if memory.box_classes else None
    return IndexCost(boxes, values or has_values(memory._classes))


def room(memory: Contents, budget: Budget, more: Coming | None = None) -> int:
    """Bytes left for images after shared tables and the rest of the file."""
    more = more or Coming()
    total = budget.total_bytes(len({*memory.labels, *more.classes}))
    tables = list(dict.fromkeys([*tables_in_use(memory._classes), *filter(None, more.tables)]))
    if budget.unit != "bytes" and memory.part_size is None:
        return total - sum(map(len, tables))
    meta, optional = metadata(memory, budget, more), optional_arrays(memory, more)
    if memory.part_size is None:
        return total - head_bytes(total, meta, tables, optional)
    rest = folder_bytes(total, memory.part_size, meta, tables, optional)  # checks the part size
    return total - (rest if budget.unit == "bytes" else sum(map(len, tables)))


def optional_arrays(memory: Contents, more: Coming | None = None) -> list[str]:
    """Names of the arrays that the file has because of boxes and values."""
    values = (more is not None and more.values) or has_values(memory._classes)
    boxes = ["box_counts", "boxes"] if memory.box_classes else []
    return [*boxes, *(["value_sizes"] if values else [])]


def metadata(memory: Contents, budget: Budget, more: Coming | None = None) -> dict[str, Any]:
    """Metadata of the memory file."""
    more = more or Coming()
    counts = {
        label: {"items": len(images), "duplicates": images.duplicates, "seen": images.seen}
        for label, images in memory._classes.items()
    }
    counts |= more.classes
    names = memory.class_names
    encodings = dict.fromkeys([*encodings_in_use(memory._classes), *more.encodings])
    return {
        "budget": asdict(budget) | {"bytes": budget.total_bytes(len(counts))},
        "accounting": memory.accounting,
        "fade": memory.fade,
        "whole_file": budget.unit == "bytes",
        "codec": memory.codec.name,
        "quality": memory.quality,
        "encodings": [asdict(encoding) for encoding in encodings],
        "mrdc": __version__,
        "classes": [
            {"label": label, **entry, "name": names.get(label, str(label))}
            for label, entry in counts.items()
        ],
        "notes": memory.notes,
        **({"box_classes": memory.box_classes} if memory.box_classes else {}),
    }
