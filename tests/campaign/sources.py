"""Data that users pack: folders with odd names, CSV and COCO files with odd contents."""

import io
import json
import shutil
import tarfile
from pathlib import Path
from random import Random
from typing import Any

from tests.campaign.forge import change
from tests.campaign.harness import Area, Case, command
from tests.campaign.images import damaged
from tests.conftest import jpeg

FAST = ["--select", "random_choice", "--quality", "50"]  # needs no network
CELLS = (
    "a.jpg", "b.jpg", "cat", "dog", "", " ", '"', '"a', "../a.jpg", "/etc/passwd", "=1+1", "@x",
    "\x1b[31m", "[/b]", "é", "x" * 5000, "\0", "1e999", "nan", "a\rb", "path", "label",
)  # fmt: skip
ABOUT = (b"{}", b"[", b'{"class": 3}', b"null", b'{"class": "c"}')
NAMES = (
    "a[", "[b]", "..b", " ", "-x", "'", '"', "\x1b[1m", "é", "x" * 200, ":smile:", "%s", "{0}",
    "a\nb", "=1", "CON",
)  # fmt: skip


def coco() -> dict[str, Any]:
    """A small COCO file about a.jpg and b.jpg."""
    boxes = [(1, 1, [2, 3, 9, 8]), (2, 2, [0, 0, 12, 5]), (1, 2, [5, 5, 6, 6])]
    return {
        "images": [
            {"id": n, "file_name": f"{name}.jpg", "width": 32, "height": 24}
            for n, name in enumerate("ab", 1)
        ],
        "annotations": [
            {"id": n, "image_id": i, "category_id": c, "bbox": box, "area": 9.0, "iscrowd": 0}
            for n, (i, c, box) in enumerate(boxes, 1)
        ],
        "categories": [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}],
    }


def write_csv(path: Path, random: Random) -> Path:
    """Rows of the right and of the wrong shape."""
    rows = []
    for number in range(random.randint(1, 6)):
        right = [random.choice("ab") + ".jpg", random.choice(("cat", "dog"))]
        strange = random.choices(CELLS, k=random.choice((1, 2, 2, 3)))
        rows.append(",".join(right if number == 0 or random.random() < 0.6 else strange))
    text = random.choice(("\n", "\r\n", "\n\n")).join(rows).encode(errors="replace")
    path.write_bytes(damaged(text, random) if random.random() < 0.3 else text)
    return path


def write_coco(path: Path, random: Random) -> Path:
    """A COCO file with a few changes to its values, or to its bytes."""
    found = coco()
    for _ in range(random.randint(1, 3)):
        found = change(found, random)
    text = json.dumps(found).encode(errors="replace")
    path.write_bytes(damaged(text, random) if random.random() < 0.2 else text)
    return path


def write_folder(path: Path, random: Random) -> Path:
    """Class folders and stray files with odd names."""
    shutil.rmtree(path, ignore_errors=True)
    for name in random.sample(NAMES, 3):
        (path / name).mkdir(parents=True)
        (path / name / f"{random.choice(NAMES)[:99]}.jpg").write_bytes(jpeg(1))
        (path / name / "more.jpg").write_bytes(jpeg(2))
    for name in random.sample(NAMES, 2):
        if not (path / name).exists():
            (path / name).touch()
    return path


def prepare(folder: Path) -> Case:
    for number, name in enumerate("ab"):
        (folder / f"{name}.jpg").write_bytes(jpeg(number))

    def case(random: Random) -> None:
        kind = random.choice(("csv", "json", "folder", "tar"))
        path = folder / f"source.{kind}"
        if kind == "tar":
            archive(path, folder, random)
        else:
            {"csv": write_csv, "json": write_coco, "folder": write_folder}[kind](path, random)
        made = folder / "m.mrdc"
        more = ["--skip-bad"] if random.random() < 0.5 else []
        if command("pack", path, "--budget", "1MB", "-o", made, *FAST, *more) == 0:
            command("info", made)
            made.unlink()

    return case


def archive(path: Path, folder: Path, random: Random) -> None:
    """A tar of images and classes, some of them damaged."""
    with tarfile.open(path, "w") as tar:
        for number in range(3):
            parts = {"jpg": jpeg(number), "cls": random.choice((b"0", b"1", b"x", b"", b"9" * 50))}
            parts["json"] = random.choice(ABOUT)
            for suffix, data in random.sample(sorted(parts.items()), random.randint(2, 3)):
                member = tarfile.TarInfo(f"{number}.{suffix}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    if random.random() < 0.4:
        broken = bytearray(path.read_bytes())
        for _ in range(random.randint(1, 5)):
            broken[random.randrange(len(broken))] = random.randrange(256)
        path.write_bytes(broken)


AREA = Area("sources", prepare)
