"""Large images are shrunk before anything else."""

import base64
import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import mrdc
from mrdc._utils.errors import UsageError
from mrdc.codec import CODECS
from mrdc.planning.resize import shrink
from mrdc.report.figures import Strip
from mrdc.report.plans import images
from tests.conftest import jpeg, pixels, project
from tests.data.test_coco import described, make_images, write


def size(data: bytes | None) -> tuple[int, int]:
    assert data is not None
    return Image.open(io.BytesIO(data)).size


def test_the_longer_side_shrinks() -> None:
    """The shape stays; a small image is left alone; lossless files stay lossless."""
    assert size(shrink(jpeg(0, 95, 100, 60), 50, "a")) == (30, 50)
    assert size(shrink(jpeg(0, 95, 60, 100), 50, "a")) == (50, 30)
    assert size(shrink(jpeg(0, 95, 2, 100), 20, "a")) == (20, 1)
    assert shrink(jpeg(0, 95, 50, 30), 50, "a") is None
    image = pixels(0, 100, 60)
    made = shrink(CODECS["png"].encode(image), 50, "a")
    assert made is not None and made.startswith(b"\x89PNG")
    by_hand = Image.fromarray(image).resize((30, 50), Image.Resampling.LANCZOS, reducing_gap=3.0)
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(made))), np.asarray(by_hand))


def make_large(root: Path) -> Path:
    for label in range(2):
        (root / str(label)).mkdir(parents=True)
        for number in range(4):
            file = jpeg(10 * label + number, 95, 96, 64)
            (root / str(label) / f"{number}.jpg").write_bytes(file)
    return root


def test_pages_show_what_is_stored(tmp_path: Path) -> None:
    photos = make_large(tmp_path / "photos")
    made = mrdc.plan(photos, "1MB", embed=project, cache=False, max_side=48)
    strips = images(replace(made, settings=replace(made.settings, embed="lite0"))).parts
    assert strips and all(isinstance(strip, Strip) for strip in strips)
    for strip in strips:
        assert isinstance(strip, Strip)
        for address, _ in strip.images:
            data = base64.b64decode(address.partition(",")[2])
            assert max(size(data)) == 48


def test_plans_and_packs_count_what_is_stored(tmp_path: Path) -> None:
    """Originals are the shrunk files, for the budget and in the memory; small ones stay."""
    photos = make_large(tmp_path / "photos")
    (photos / "0" / "small.jpg").write_bytes(jpeg(99))
    whole = mrdc.plan(photos, "4/class", embed=project, cache=False)
    small = mrdc.plan(photos, "4/class", embed=project, cache=False, max_side=48)
    assert small.budget_bytes < whole.budget_bytes / 2
    packed = mrdc.pack(
        photos,
        "1MB",
        tmp_path / "m",
        codec="original",
        qualities=90,
        max_side=48,
        select="random_choice",
    )
    sizes = sorted(size(packed.memory.encoded(index)) for index in range(len(packed.memory)))
    assert sizes == [(32, 24)] + [(32, 48)] * 8
    assert packed.seen.images.original_bytes * 9 == sum(
        len(packed.memory.encoded(index)) for index in range(9)
    )
    assert mrdc.ReplayMemory.load(tmp_path / "m").notes["max_side"] == 48


def test_a_bad_image_is_skipped_or_reported_as_usual(tmp_path: Path) -> None:
    """Shrinking leaves it as it is."""
    photos = make_large(tmp_path / "photos")
    (photos / "0" / "bad.jpg").write_bytes(b"text")
    with pytest.raises(mrdc.ImageError, match=r"0/bad\.jpg: not an image file"):
        mrdc.plan(photos, "1MB", embed=project, cache=False, max_side=48)
    plan = mrdc.plan(photos, "1MB", embed=project, cache=False, max_side=48, skip_bad=True)
    assert len(plan.skipped) == 1


def test_refusals(tmp_path: Path) -> None:
    """An invalid side, and scenes."""
    with pytest.raises(UsageError, match="--max-side must be 16 or more, got 0"):
        mrdc.plan(make_large(tmp_path / "photos"), "1MB", max_side=0)
    with pytest.raises(UsageError, match="--max-side is for classes: boxes are in pixels"):
        make_images(tmp_path / "road" / "images")
        write(tmp_path / "road" / "train.json", described(3, []))
        mrdc.plan(tmp_path / "road", "1MB", max_side=64)
