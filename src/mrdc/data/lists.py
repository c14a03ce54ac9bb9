"""Images listed in a CSV of path,label, or in two columns of any CSV with a heading."""

import csv
import os
from collections.abc import Sequence
from pathlib import Path

from mrdc._utils.errors import DataError
from mrdc._utils.stores import is_url, sizes
from mrdc.data.images import Columns, ImageSet, by_number, file_entry, gather

Row = tuple[int, list[str]]  # line number and cells


def read_csv(path: Path, missing: bool = False, columns: Columns | None = None) -> ImageSet:
    """Open the images of a CSV; paths are relative to its folder, or URLs.

    Args:
        missing: accept files that do not exist; loading one raises an ImageError.
        columns: names of the columns with the path and the class, as in the heading.
    """
    rows = read_columns(path, columns) if columns else read_pairs(path, "path", "label")
    paths = [n if is_url(n) else os.path.join(path.parent, n) for _, n, _ in rows]
    known = sizes([one for one in paths if is_url(one)])
    entries = [
        file_entry(label, file, name, known.get(file))
        for (_, name, label), file in zip(rows, paths, strict=True)
    ]
    empty = [n for n, entry in enumerate(entries) if entry[2] == 0 and paths[n] not in known]
    absent = [rows[n] for n in empty if not os.access(paths[n], os.F_OK)]
    if absent and not missing:
        line, name, _ = absent[0]
        reason = f"{len(absent):,} of {len(rows):,} missing; --skip-bad leaves them out"
        if absent[0] == rows[0] and not columns and not os.path.splitext(name)[1]:
            reason = "columns are path,label; a heading must be path,label; --columns names others"
        raise DataError(f"{path}: line {line}: no such file {name!r} ({reason})")
    return gather(entries, sorted({label for _, _, label in rows}, key=by_number))


def read_pairs(path: Path, first: str, second: str) -> list[tuple[int, str, str]]:
    """Line number and both cells of the rows of a CSV; a heading of these names is optional."""
    rows = _rows(path)
    if rows and [cell.strip().lower() for cell in rows[0][1]] == [first, second]:
        rows = rows[1:]
    form = f"{first},{second}"
    wide = next((row for row in rows if len(row[1]) != 2), None)
    if wide:
        raise DataError(f"{path}: line {wide[0]} must be {form}, got {','.join(wide[1])!r}")
    return _cells(path, rows, (0, 1), form)


def read_columns(path: Path, columns: Columns) -> list[tuple[int, str, str]]:
    """Line number and two cells of the rows of a CSV, in the columns that the heading names."""
    rows = _rows(path)
    heading = [cell.strip() for cell in rows[0][1]] if rows else []
    for name in columns:
        if heading.count(name) != 1:
            found = ", ".join(heading) or "nothing"
            raise DataError(f"{path}: no single column {name!r}; its heading has {found}")
    first, second = map(heading.index, columns)
    return _cells(path, rows[1:], (first, second), ",".join(columns))


def _rows(path: Path) -> list[Row]:
    """Rows that are not empty."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as text:
            reader = csv.reader(text)
            return [(reader.line_num, row) for row in reader if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: cannot be read as CSV ({error})") from None


def _cells(
    path: Path, rows: Sequence[Row], places: tuple[int, int], form: str
) -> list[tuple[int, str, str]]:
    """The cells at two places of every row, none of them empty."""
    found = []
    for line, row in rows:
        first, second = (row[place].strip() if place < len(row) else "" for place in places)
        if not first or not second or "\0" in first:
            raise DataError(f"{path}: line {line} must be {form}, got {','.join(row)!r}")
        found.append((line, first, second))
    if not found:
        raise DataError(f"{path}: no row of {form}")
    return found
