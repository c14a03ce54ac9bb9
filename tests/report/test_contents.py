"""What a memory holds, and the commands that write pages."""

import csv
import json
import re
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from mrdc.cli.main import main
from mrdc.codec import CODECS
from mrdc.data import open_images, open_splits
from mrdc.data.photo import Photo
from mrdc.memory.replay import ReplayMemory
from mrdc.report.contents import as_address, at_qualities
from mrdc.report.plane import extremes, latest_classes
from mrdc.report.runs import read_run
from tests.conftest import make_photos
from tests.report.folders import change_data, made, phase, with_memory
from tests.report.test_page import names_of, written


def test_a_memory_shows_its_images_and_features(tmp_path: Path) -> None:
    """At each quality; bytes by class, with names; t-SNE of compressed and of stored images."""
    page = written([with_memory(tmp_path / "run")], tmp_path)
    assert {"memory", "t-sne"} <= set(names_of(page))
    assert page.count("data:image/png;base64,") == 3 * 3
    assert len(re.findall(r"jpeg 50, [\d,]+ bytes, feature cosine [01]\.\d+", page)) == 2 * 3
    assert ">texture01<" in (tmp_path / "page-figures" / "memory-1.svg").read_text()
    one, two = (
        list(csv.reader((tmp_path / "page-figures" / f"t-sne-{n}.csv").read_text().splitlines()))
        for n in (1, 2)
    )
    stored = Counter(row[0] for row in two[1:] if row[1] == "stored")
    assert set(stored) == {"texture00", "texture01", "texture02"}
    known = Counter(row[0] for row in two[1:] if row[1] == "training image")
    splits = open_splits("textures").train
    assert known == dict(zip(splits.classes[:3], map(len, splits.photos), strict=False))
    for name in ("jpeg 50", "jpeg 10"):
        assert Counter(row[0] for row in one[1:] if row[1] == name) == stored
    originals = [row[2:] for row in one[1:] if row[1] == "original"]  # of both panels
    assert originals[: stored.total()] == originals[stored.total() :]


def test_without_readable_originals_a_memory_shows_its_bytes_alone(tmp_path: Path) -> None:
    """The data is missing or was overwritten."""
    run = with_memory(tmp_path / "run")
    change_data(run, tmp_path / "gone")
    page = written([run], tmp_path)
    assert "memory" in names_of(page) and "t-sne" not in names_of(page)
    assert "data:image/png" not in page
    photos = make_photos(tmp_path / "photos", classes=3, images=8)
    change_data(run, photos)
    memory = ReplayMemory("20kB", "jpeg", 50, class_names={n: f"class{n}" for n in range(3)})
    memory.add(dict(enumerate(open_images(photos).photos)))
    memory.save(run / "memory-01.mrdc")
    assert "data:image/png" in written([run], tmp_path)
    for file in photos.rglob("*.jpg"):
        file.write_bytes(b"junk")
    page = written([run], tmp_path)
    assert "memory" in names_of(page) and "data:image/png" not in page


def test_the_plane_shows_the_latest_task(tmp_path: Path) -> None:
    """Five of its classes, always the same ones; the last five of all if it has fewer."""
    events = [phase(0, 60.0, classes=10), phase(1, 50.0, classes=20)]
    run = read_run(made(tmp_path / "many", events=events))
    chosen, what = latest_classes(run, range(20))
    assert set(chosen) <= set(range(10, 20)) and len(set(chosen)) == 5
    assert (chosen, what) == latest_classes(run, range(20)) and "of the latest task" in what
    events = [phase(0, 60.0, classes=10), phase(1, 50.0, classes=12)]
    run = read_run(made(tmp_path / "few", events=events))
    assert latest_classes(run, range(12)) == ([7, 8, 9, 10, 11], "the last 5 classes")
    jpeg = CODECS["jpeg"]
    assert [q for _, q in extremes([(jpeg, q) for q in (10, 25, 50, 75, 90)])] == [90, 50, 10]
    assert [q for _, q in extremes([(jpeg, 50)])] == [50] and extremes([]) == []


def test_a_photo_at_each_quality() -> None:
    """The original first, then from best to worst."""
    pixels = np.random.default_rng(0).integers(0, 256, (200, 300, 3), dtype=np.uint8)
    jpeg = CODECS["jpeg"]
    data = jpeg.encode(pixels, 95)
    strip = at_qualities(Photo("p", partial(bytes, data)), [(jpeg, 10), (jpeg, 90)], None)
    assert [caption.partition(",")[0] for _, caption in strip] == ["original", "jpeg 90", "jpeg 10"]
    assert strip[0][1] == f"original, {len(data):,} bytes"
    assert as_address(pixels).startswith("data:image/png;base64,")


def test_the_command_writes_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made(tmp_path / "runs" / "a")
    output = str(tmp_path / "r.html")
    assert main(["report", str(tmp_path / "runs"), "-o", output]) == 0
    assert "about 1 run" in " ".join(capsys.readouterr().out.split())
    assert main(["report", str(tmp_path / "runs"), "-o", output, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == {"output": output, "runs": [str(tmp_path / "runs" / "a")]}
    assert main(["report", str(tmp_path / "none"), "-o", output]) == 2
    assert "no such folder" in capsys.readouterr().err
    assert main(["report", "-o", str(tmp_path / "other.html")]) == 2
    assert "no folder given" in capsys.readouterr().err and not (tmp_path / "other.html").exists()


def test_a_plan_has_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The choice, the curve and the images; one quality is no choice."""
    photos = make_photos(tmp_path / "photos", classes=2, images=4)
    page = tmp_path / "plan.html"
    flags = ["--budget", "2/class", "--quality", "50", "20", "--report", str(page)]
    assert main(["plan", str(photos), *flags]) == 0
    text = page.read_text()
    assert names_of(text) == ["choice", "curve", "images"]
    assert "feature cosine" in text and (tmp_path / "plan-figures" / "curve-1.csv").exists()
    bad = photos / "class0" / "00.jpg"
    bad.rename(bad.with_name("0\udcff.jpg"))  # a name that is not text
    (photos / "class0" / "01.jpg").write_bytes(b"junk")
    assert main(["plan", str(photos), *flags, "--skip-bad"]) == 0
    assert page.read_text().count("data:image/png") < text.count("data:image/png")
    capsys.readouterr()
    one = ["--budget", "2/class", "--quality", "50", "--report", str(page)]
    assert main(["pack", str(photos), *one, "-o", str(tmp_path / "m.mrdc")]) == 2
    assert "allow more than one" in capsys.readouterr().err
