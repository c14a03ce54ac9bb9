"""What a memory's budget leaves for images, after everything else that it bounds."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from mrdc import __version__
from mrdc._utils.lazy import unordered
from mrdc.memory.budget import Budget
from mrdc.memory.classes import encodings_in_use, has_values, tables_in_use
from mrdc.memory.contents import Contents
from mrdc.memory.encode import Encoded, Encoder, Encoding, Item
from mrdc.memory.file import IndexCost, head_bytes


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
    encoded = [item for item in items if isinstance(item, Encoded)]
    new = len(encoded) < len(items)
    split = new or any(not image.tables and not image.kept for image in encoded)
    found = memory.duplicates()
    return Coming(
        {
            label: {
                "items": len(of_class),
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
    if budget.unit != "bytes":
        return total - sum(map(len, tables))
    optional = [*(["box_counts", "boxes"] if memory.box_classes else [])]
    optional += ["value_sizes"] if more.values or has_values(memory._classes) else []
    return total - head_bytes(total, metadata(memory, budget, more), tables, optional)


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
