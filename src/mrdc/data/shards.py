"""Many files as one source: `photos-*.parquet`, `shard-{0000..0099}.tar`, a folder of them.

Files of a folder belong to a split if their names begin with one: train-00000-of-00002.parquet.
"""

import glob
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from mrdc._utils import stores
from mrdc._utils.errors import DataError
from mrdc._utils.store_path import StorePath, as_path
from mrdc.data.images import SPLITS, TRAIN, Columns, ImageSet, merged, some_of
from mrdc.data.parquet import read_table
from mrdc.data.tar import read_tar

ENDINGS = (".tar", ".parquet", ".arrow")
MOST = 100_000  # files that braces may name
BRACES = re.compile(r"\{([^{}]*)\}")
RANGE = re.compile(r"(\d{1,9})\.\.(\d{1,9})")


def find_files(source: Path) -> list[Path] | None:
    """Files that a pattern names, in order; None if it is a plain path.

    Raises:
        DataError: nothing matches, a file that braces name is missing, or it is not a shard.
    """
    if not is_pattern(source):
        return None
    files: list[Path] = []
    for name in expand(str(source)):
        path = as_path(name)
        if glob.has_magic(name) and isinstance(path, StorePath):
            found = [as_path(url) for url in stores.glob(name)]
        elif glob.has_magic(name):
            root = Path(path.anchor)
            found = sorted(root.glob(str(path.relative_to(root))))
        else:
            found = [path]
        if not found:
            raise DataError(f"{name}: no file matches")
        files += found
    files = list(dict.fromkeys(files))
    known = stores.sizes([str(file) for file in files if isinstance(file, StorePath)])
    absent = [str(file) for file in files if str(file) not in known and not file.is_file()]
    if absent:
        raise DataError(f"{source}: no such file: {some_of(absent)}")
    odd = [file.name for file in files if file.suffix.lower() not in ENDINGS]
    if odd:
        raise DataError(f"{source}: patterns name {', '.join(ENDINGS)} files; got {some_of(odd)}")
    return files


def is_pattern(source: Path) -> bool:
    """Check for a pattern; a file may have such a name too."""
    return any(sign in str(source) for sign in "*?[{") and not source.exists()


def expand(pattern: str) -> list[str]:
    """Expand the braces of a pattern: {a,b}, and {00..99}, which keeps leading zeros.

    Raises:
        DataError: more than 100,000 names, or a brace that is neither a list nor a range.
    """
    names = [pattern]
    while any(map(BRACES.search, names)):
        longer: list[str] = []
        for name in names:
            longer += _first_expanded(name, pattern)
            if len(longer) > MOST:
                raise DataError(f"{pattern}: names more than {MOST:,} files")
        names = list(dict.fromkeys(longer))
    return names


def _first_expanded(name: str, pattern: str) -> list[str]:
    """A name with each choice of its first innermost braces."""
    found = BRACES.search(name)
    if found is None:
        return [name]
    start, end = found.span()
    return [name[:start] + choice + name[end:] for choice in _choices(found[1], pattern)]


def _choices(inside: str, pattern: str) -> list[str]:
    ends = RANGE.fullmatch(inside)
    if ends:
        first, last = int(ends[1]), int(ends[2])
        if last - first >= MOST:
            raise DataError(f"{pattern}: names more than {MOST:,} files")
        if last >= first:
            return [str(n).zfill(len(ends[1])) for n in range(first, last + 1)]
    elif "," in inside:
        return inside.split(",")
    raise DataError(f"{pattern}: {{{inside}}} must be a list such as {{a,b}} or a range {{00..99}}")


def shard_folder(root: Path) -> dict[str, list[Path]]:
    """Shards in a folder, or in its data/, by split; "train" if no name says so.

    Empty if the folder has no shards, or has sub-folders, which are classes.
    """
    for folder in (root, root / "data"):
        children = list(_visible(folder))
        files = [one for one in children if one.name.lower().endswith(ENDINGS)]
        if files and not any(one.is_dir() for one in children):
            return _by_split(sorted(files))
    return {}


def _visible(folder: Path) -> Iterator[Path]:
    try:
        yield from (one for one in folder.iterdir() if not one.name.startswith("."))
    except OSError:
        return


def _by_split(files: Sequence[Path]) -> dict[str, list[Path]]:
    """Files by the split that their names begin with; all are training files if none has one."""
    splits: dict[str, list[Path]] = {}
    for file in files:
        word = re.split(r"[-_.]", file.name.lower())[0]
        splits.setdefault(word if word in SPLITS else "", []).append(file)
    if TRAIN not in splits:
        return {TRAIN: list(files)}
    if "" in splits:
        odd = some_of([file.name for file in splits[""]])
        raise DataError(
            f"{files[0].parent}: {TRAIN} files, but with {odd} beside them; name what you want, "
            f"such as '{files[0].parent}/{TRAIN}-*{files[0].suffix}'"
        )
    return splits


def read_shards(files: Sequence[Path], columns: Columns | None = None) -> ImageSet:
    """Open some tars, Parquet and Arrow files as one set; ids begin with the file, if several."""
    common = os.path.commonpath([file.absolute().parent for file in files])
    many = len(files) > 1
    prefixes = [os.path.relpath(file, common) + "/" if many else "" for file in files]
    return merged([read_shard(*pair, columns) for pair in zip(files, prefixes, strict=True)])


def read_shard(path: Path, prefix: str, columns: Columns | None) -> ImageSet:
    """Open a tar, Parquet or Arrow file; ids begin with `prefix`."""
    if path.suffix.lower() in (".parquet", ".arrow"):
        return read_table(path, prefix, columns)
    return read_tar(path, prefix)
