"""Data sets that Hugging Face's `save_to_disk` wrote, read without `datasets`."""

import json
from pathlib import Path
from typing import Any

from mrdc._utils.errors import DataError
from mrdc.data.images import SPLITS, TRAIN

PREFIX = "hf:"


def saved_folder(source: str) -> Path | None:
    """The folder in hf:FOLDER; None for another source.

    Raises:
        DataError: `save_to_disk` did not write the folder.
    """
    if not source.startswith(PREFIX) or Path(source).exists():
        return None
    folder = Path(source.removeprefix(PREFIX)).expanduser()
    if not folder.exists():
        raise DataError(f"{folder}: no such folder; give {PREFIX} one that save_to_disk wrote")
    if not is_saved(folder):
        raise DataError(
            f"{folder}: no data set in it; give {PREFIX} a folder that save_to_disk wrote"
        )
    return folder


def is_saved(root: Path) -> bool:
    """Check for a folder that `save_to_disk` wrote."""
    return (root / "state.json").is_file() or (root / "dataset_dict.json").is_file()


def saved_splits(root: Path) -> dict[str, list[Path]]:
    """Arrow files by split; "train" for a data set without splits, or with one of another name."""
    if (root / "state.json").is_file():
        return {TRAIN: _files(root)}
    names = _read(root / "dataset_dict.json").get("splits")
    if not isinstance(names, list) or not names:
        raise DataError(f"{root / 'dataset_dict.json'}: names no splits")
    splits = {str(name): root / Path(str(name)).name for name in names}
    if len(splits) == 1:
        return {TRAIN: _files(next(iter(splits.values())))}
    if TRAIN not in splits:
        raise DataError(
            f"{root}: no split {TRAIN} among {', '.join(splits)}; give one, hf:{root}/NAME"
        )
    return {name: _files(folder) for name, folder in splits.items() if name in SPLITS}


def _files(folder: Path) -> list[Path]:
    state = folder / "state.json"
    listed = _read(state).get("_data_files")
    if not isinstance(listed, list) or not listed:
        raise DataError(f"{state}: names no data files")
    names = [one.get("filename") if isinstance(one, dict) else None for one in listed]
    files = [folder / Path(str(name)).name for name in names]  # never outside the folder
    absent = next((file for file in files if not file.is_file()), None)
    if absent:
        raise DataError(f"{absent}: no such file, but {state.name} names it")
    return files


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path}: cannot be read ({error})") from None
    return found if isinstance(found, dict) else {}
