"""Images listed in a CSV file."""

import csv
import os
from collections.abc import Sequence
from pathlib import Path

from mrdc._utils.errors import DataError
from mrdc.data.files import Listing, by_number, file_photo, file_size

Row = tuple[int, str, str]  # line number and both cells


def read_csv(path: Path, missing: bool) -> Listing:
    """List the images of a CSV of path,label; paths are relative to its folder.

    Args:
        missing: accept missing files; loading one raises an ImageError.

    Raises:
        DataError: a row that is not path,label, or a missing file.
    """
    rows = read_pairs(path, "path", "label")
    files = [os.path.join(path.parent, name) for _, name, _ in rows]
    sizes = [file_size(file) for file in files]
    absent = [row for row, size in zip(rows, sizes, strict=True) if size is None]
    if absent and not missing:
        raise DataError(_absent(path, absent, rows))
    entries = [
        (label, file_photo(file, name), size or 0)
        for (_, name, label), file, size in zip(rows, files, sizes, strict=True)
    ]
    return Listing(entries, sorted({label for _, _, label in rows}, key=by_number), [])


def _absent(path: Path, absent: Sequence[Row], rows: Sequence[Row]) -> str:
    line, name, _ = absent[0]
    reason = f"{len(absent):,} of {len(rows):,} missing; --skip-bad leaves them out"
    if absent[0] == rows[0] and not os.path.splitext(name)[1]:
        reason = "columns are path,label; a heading must be path,label"
    return f"{path}: line {line}: no such file {name!r} ({reason})"


def read_pairs(path: Path, first: str, second: str) -> list[Row]:
    """Rows of a CSV with two columns; a heading of the columns' names is optional.

    Raises:
        DataError: it cannot be read, has no rows, or has a row without two filled cells.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as text:
            reader = csv.reader(text)
            rows = [(reader.line_num, row) for row in reader if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: cannot be read as CSV ({error})") from None
    if rows and [cell.strip().lower() for cell in rows[0][1]] == [first, second]:
        rows = rows[1:]
    form = f"{first},{second}"
    for line, row in rows:
        if len(row) != 2 or not all(cell.strip() for cell in row) or "\0" in row[0]:
            raise DataError(f"{path}: line {line} must be {form}, got {','.join(row)!r}")
    if not rows:
        raise DataError(f"{path}: no row of {form}")
    return [(line, row[0].strip(), row[1].strip()) for line, row in rows]
