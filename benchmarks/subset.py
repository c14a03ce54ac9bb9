"""Copy some images of every class, drawn at random, into train/ and test/.

    python benchmarks/subset.py CIFAR-10 CIFAR --train 500 --test 200
    python benchmarks/subset.py Sign-Language-Digits HANDS --train 150

The source has train/ and test/, from which as many are drawn as are asked for, or only folders of
classes, whose other images are for testing.
"""

import argparse
import shutil
from pathlib import Path
from random import Random

from common import SEED


def drawn(folder: Path, rng: Random) -> list[Path]:
    """The images of a folder, shuffled."""
    files = sorted(
        path for path in folder.iterdir() if path.suffix.lower() in (".jpg", ".jpeg", ".png")
    )
    rng.shuffle(files)
    return files


def copy(files: list[Path], target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for file in files:
        shutil.copy(file, target / file.name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--train", type=int, required=True, help="images per class")
    parser.add_argument("--test", type=int, help="images per class; by default all others")
    given, rng = parser.parse_args(), Random(SEED)
    if (given.source / "train").is_dir():
        for split, count in (("train", given.train), ("test", given.test)):
            for folder in sorted((given.source / split).iterdir()):
                copy(drawn(folder, rng)[:count], given.target / split / folder.name)
        return
    for folder in sorted(given.source.iterdir()):
        files, end = drawn(folder, rng), given.train + given.test if given.test else None
        copy(files[: given.train], given.target / "train" / folder.name)
        copy(files[given.train : end], given.target / "test" / folder.name)


if __name__ == "__main__":
    main()
