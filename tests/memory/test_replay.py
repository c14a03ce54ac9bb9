"""The replay memory: what is stored, refused, copied and saved."""

import math
import re
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from mrdc._utils.errors import BudgetError, ImageError, MemoryFileError, UsageError
from mrdc.codec import CODECS
from mrdc.codec.image import Pixels
from mrdc.codec.jpeg import Jpeg
from mrdc.data.photo import Photo
from mrdc.memory.encode import Encoded
from mrdc.memory.file import MemoryFile
from mrdc.memory.replay import ReplayMemory
from tests.conftest import jpeg, pixels
from tests.memory.memories import ACCOUNTING, CLASSES, MADE, PHOTOS, Photos, filled, streams


def test_exact_duplicates_are_stored_once() -> None:
    """They are counted per class."""
    memory = ReplayMemory("1MB", "jpeg", 50)
    memory.add({0: [jpeg(0), jpeg(1), jpeg(0), jpeg(0)], 1: [jpeg(0)]})
    assert memory.targets.tolist() == [0, 0, 1]
    assert memory.duplicates() == {0: 2}


def test_sources_are_kept_if_encoding_does_not_shrink_them() -> None:
    """A source of quality 30 stays at quality 95; `original` keeps files of any format."""
    sources = [jpeg(0, 30), jpeg(1, 99)]
    memory = ReplayMemory("1MB", "jpeg", 95)
    memory.add({0: sources})
    assert memory.encoded(0) == sources[0]
    assert len(memory.encoded(1)) < len(sources[1])
    assert memory.kept_sources() == 1
    files = [jpeg(0), CODECS["png"].encode(pixels(1)), CODECS["webp"].encode(pixels(2), 80)]
    memory = ReplayMemory("1MB", "original")
    memory.add({0: [*files, pixels(0)]})
    assert streams(memory)[:3] == files
    np.testing.assert_array_equal(memory[3][0].permute(1, 2, 0).numpy(), pixels(0))


def test_kept_sources_share_their_tables() -> None:
    """Sources of the memory's own quality are stored bare, and come back as they were."""
    sources = [jpeg(seed, 50) for seed in range(6)]
    memory = ReplayMemory("1MB", "jpeg", 50)
    memory.add({0: sources})
    assert len({*sources} & {*streams(memory)}) == memory.kept_sources() >= 2
    shared = len(CODECS["jpeg"].tables(50))
    bare = sum(len(stream) - shared + 4 - 2 for stream in streams(memory))  # sides, no end marker
    assert memory.nbytes == shared + bare


def test_classes_may_differ_in_codec_and_quality(tmp_path: Path) -> None:
    """Each keeps its own settings and tables, also in the file."""
    memory = ReplayMemory("1MB", "jpeg", 80)
    images = [[pixels(10 * label + n) for n in range(4)] for label in range(3)]
    made = [("jpeg", 80), ("jpeg", 20), ("webp", 50)]
    for label, (codec, quality) in enumerate(made):
        memory.codec, memory.quality = CODECS[codec], quality
        memory.add({label: images[label]})
    expected = [
        CODECS[c].encode(i, q) for (c, q), part in zip(made, images, strict=True) for i in part
    ]
    assert streams(memory) == expected
    memory.save(tmp_path / "m")
    loaded = ReplayMemory.load(tmp_path / "m")
    assert streams(loaded) == expected
    assert loaded.nbytes == memory.nbytes
    loaded.save(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == (tmp_path / "m").read_bytes()


@pytest.mark.parametrize("made", [("jpeg", 100), ("jpeg-optimised", 50), ("jpeg2000", 20)])
def test_a_change_of_codec_or_quality_keeps_a_file_in_its_budget(
    made: tuple[str, int], tmp_path: Path
) -> None:
    """Full memories of many classes, whose names and notes also change."""
    for budget in range(20_000, 20_400, 25):
        memory = filled(budget, classes=12, images=20)
        memory.codec, memory.quality = CODECS[made[0]], made[1]
        memory.save(tmp_path / "a")
        assert (tmp_path / "a").stat().st_size <= budget
    before = len(memory)
    memory.notes["why"] = "x" * 500
    memory.class_names[3] = "y" * 500
    memory.save(tmp_path / "a")
    assert (tmp_path / "a").stat().st_size <= budget
    assert before - 20 < len(memory) < before


def test_labels_become_ints(tmp_path: Path) -> None:
    """Numpy integers and integer tensors, also in the file."""
    memory = ReplayMemory("1MB", class_names={1: "owl", 0: "cat"})
    memory.add({np.int64(2): [jpeg(2)], torch.tensor(1): [jpeg(1)]})  # type: ignore[dict-item]
    memory.add({0: [jpeg(0)]})
    memory.save(tmp_path / "a")
    loaded = ReplayMemory.load(tmp_path / "a")
    assert loaded.labels == [2, 1, 0]
    assert {type(label) for label in memory.labels} == {int}
    assert memory.classes == loaded.classes == ["cat", "owl", "2"]
    assert memory.sources(np.int64(1)) == ["1/0"]


@pytest.mark.parametrize(
    ("images", "message"),
    [
        *(
            ({label: [jpeg(0)]}, rf"label {re.escape(repr(label))} must be a whole number from 0")
            for label in (-1, 2**31, True, 1.0, "1", np.float32(1), np.True_, torch.tensor(True))
        ),
        ({np.int64(1): [jpeg(0)]}, "class 1 is already in the memory: use extend to add to it"),
        ({7: [jpeg(0)], torch.tensor(7): [jpeg(1)]}, "class 7 is given twice"),
        ({8: [3.0]}, "image 0 of class 8: got float; pass a path, the bytes of a file, a PIL"),
    ],
)
def test_wrong_images_and_labels_are_refused(images: dict[int, list[bytes]], message: str) -> None:
    """The memory stays unchanged; no images at all are fine."""
    memory = filled()
    before = streams(memory)
    with pytest.raises(UsageError, match=message):
        memory.add(images)
    memory.add({})
    assert streams(memory) == before


def test_a_list_in_place_of_a_label_is_not_printed_whole() -> None:
    """Images and labels, as `reservoir` takes them, given to `extend`."""
    paths = [f"photos/{number}.jpg" for number in range(1000)]
    with pytest.raises(UsageError, match=r"label \['photos/0.jpg', .*\.\.\.\] must be") as refused:
        filled().extend(paths, [1] * 1000)  # type: ignore[arg-type, list-item]
    assert len(str(refused.value)) < 250


def test_new_images_encoded_once_look_as_they_will_be_stored() -> None:
    """A memory of their own, with the codec and quality of the old one, decodes to `as_stored`."""
    old = ReplayMemory("1MB", codec="avif", quality=5)
    old.add({0: [jpeg(0)]})
    new = ReplayMemory("1GB", codec=old.codec, quality=old.quality)
    new.add({1: [jpeg(1), jpeg(2)]})
    for place, source in enumerate((jpeg(1), jpeg(2))):
        assert torch.equal(new[place][0], old.as_stored(source))


def test_unreadable_images_raise_or_are_skipped() -> None:
    """The first one raises, unless `skip` handles it; a class needs a readable image."""
    images = {0: [Photo("good.jpg", lambda: jpeg(0)), Photo("bad.jpg", lambda: jpeg(1)[:200])]}
    memory = ReplayMemory("1MB", "jpeg", 50, class_names={1: "owl"})
    with pytest.raises(ImageError, match=r"bad\.jpg: the image is damaged"):
        memory.add(images)
    assert len(memory) == 0
    skipped: list[ImageError] = []
    memory.add(images, skip=skipped.append)
    assert memory.sources(0) == ["good.jpg"]
    assert len(skipped) == 1
    with pytest.raises(ImageError, match="class 'owl' has no readable image"):
        memory.add({1: [b"text"]}, skip=skipped.append)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_threads_do_not_change_what_is_stored(threads: int, tmp_path: Path) -> None:
    """Bytes and order are the same, in RAM or spooled."""
    images = {label: [jpeg(100 * label + n) for n in range(20)] for label in range(3)}
    expected = ReplayMemory(12_000, "jpeg", 40)
    memory = ReplayMemory(12_000, "jpeg", 40, spool=tmp_path)
    expected.add(images, threads=3)
    memory.add(images, threads=threads)
    assert streams(memory) == streams(expected)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"codec": "jpg"}, "unknown codec 'jpg'"),
        ({"quality": 0}, "from 1 to 100, got 0"),
        ({"quality": "50"}, "from 1 to 100, got '50'"),
        ({"codec": "png", "quality": 5}, "codec png has no quality"),
        ({"accounting": "disk"}, "accounting must be"),
    ],
)
def test_wrong_settings_are_refused(arguments: dict[str, object], message: str) -> None:
    """When the memory is made; the default quality is the codec's."""
    with pytest.raises(UsageError, match=message):
        ReplayMemory("1MB", **arguments)  # type: ignore[arg-type]
    assert (ReplayMemory("1MB").quality, ReplayMemory("1MB", "png").quality) == (75, None)


class Broken(Jpeg):
    """A codec of another package that keeps no promise."""

    name: ClassVar[str] = "broken"
    made: Any = None

    def encode(self, image: Pixels, quality: int | None = None) -> Any:
        return self.made

    def tables(self, quality: int | None) -> bytes:
        return b""


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (None, "codec broken: encode returned NoneType instead of bytes"),
        (b"hello", "codec broken: encode returned what is no image file"),
        (jpeg(0, 50, 8, 8), r"codec broken: encode made \(8, 8, 3\) of an image of the shape"),
    ],
)
def test_what_a_codec_returns_is_checked(made: Any, message: str) -> None:
    codec = Broken()
    codec.made = made
    memory = ReplayMemory("1MB", codec, 50)
    with pytest.raises(UsageError, match=message):
        memory.add({0: [jpeg(0)]})
    assert len(memory) == 0


def test_a_codec_that_is_missing_is_named(tmp_path: Path) -> None:
    """Files made with it open once it is registered again."""
    codec = Broken()
    codec.made = jpeg(1, 20)
    CODECS[codec.name] = codec
    try:
        memory = ReplayMemory("1MB", codec, 50)
        memory.add({0: [jpeg(0)]})
        memory.save(tmp_path / "a")
        assert ReplayMemory.load(tmp_path / "a").encoded(0) == codec.made
    finally:
        del CODECS[codec.name]
    with pytest.raises(UsageError, match=r"a: was made with the codec 'broken', which is not"):
        ReplayMemory.load(tmp_path / "a")


def test_wrong_arguments_are_explained() -> None:
    memory = ReplayMemory("1MB")
    with pytest.raises(UsageError, match=r"by label, as \{7: \[...\]\}, got <class 'list'>"):
        memory.add([jpeg(0)])  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="codec must be a name or an object such as Jpeg"):
        ReplayMemory("1MB", Jpeg)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="batch_size and size must be 1 or more, got 4 and 0"):
        memory.batches(4, 0)


def test_quality_may_be_any_integer(tmp_path: Path) -> None:
    """Also one of NumPy, which JSON does not write; a wrong one is refused when it is set."""
    memory = ReplayMemory("1MB", "jpeg", np.int64(50))
    memory.add({0: [pixels(0)]})
    memory.save(tmp_path / "a")
    assert ReplayMemory.load(tmp_path / "a").quality == 50
    with pytest.raises(UsageError, match="from 1 to 100, got 101"):
        memory.quality = 101
    assert memory.quality == 50


@pytest.mark.parametrize("part_size", [None, "30kB"])
@pytest.mark.parametrize(
    ("attribute", "value"),
    [
        ("class_names", {0: 7}),
        ("notes", [1]),
        ("notes", {"seen": object()}),
        ("notes", {"mean": math.nan}),
    ],
)
def test_what_could_not_be_opened_again_is_not_saved(
    attribute: str, value: object, part_size: str | None, tmp_path: Path
) -> None:
    """The memory saved before stays, and nothing is left beside it."""
    memory = ReplayMemory("1MB", part_size=part_size)
    memory.add({0: [pixels(0)]})
    memory.save(tmp_path / "a")
    setattr(memory, attribute, value)
    with pytest.raises(UsageError, match=r"cannot be saved|must be JSON values"):
        memory.save(tmp_path / "a")
    with pytest.raises(UsageError, match=r"cannot be saved|must be JSON values"):
        memory.save(tmp_path / "b")
    assert {path.name for path in tmp_path.iterdir()} == {"a"}
    assert ReplayMemory.load(tmp_path / "a").classes == ["0"]


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    images=st.lists(st.lists(PHOTOS, min_size=1, max_size=6, unique_by=lambda p: p.id), min_size=1),
    made=MADE,
    accounting=ACCOUNTING,
    budget=st.integers(1_000, 20_000),
    prefix=st.integers(0, 6),
)
def test_encoded_images_are_stored_as_if_encoded_again(
    images: list[list[Photo]],
    made: dict[str, Any],
    accounting: str,
    budget: int,
    prefix: int,
    tmp_path: Path,
) -> None:
    """Byte for byte, from RAM or a file, also if only the first images are encoded."""
    everything = ReplayMemory("1MB", **made | {"accounting": accounting})
    everything.add(dict(enumerate(images)))
    assume(not everything.duplicates())  # the file records their number
    if prefix % 2:
        everything.save(tmp_path / "everything")
        everything = ReplayMemory.load(tmp_path / "everything")
    mixed: dict[int, list[Photo | Encoded]] = {
        label: [*everything.encoded_images(label)[:prefix], *of_class[prefix:]]
        for label, of_class in enumerate(images)
    }
    again, copy = ReplayMemory(budget, **made), ReplayMemory(budget, **made)
    try:
        again.add(dict(enumerate(images)))
    except BudgetError:
        with pytest.raises(BudgetError):
            copy.add(mixed)
        return
    copy.add(mixed)
    again.save(tmp_path / "again")
    copy.save(tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == (tmp_path / "again").read_bytes()


def test_encoded_images_are_not_encoded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copying a class does not read or encode any photo, whatever its encoding."""
    first, second = filled(), ReplayMemory("1MB", "jpeg", 50, accounting="file")
    monkeypatch.setattr(type(second.codec), "encode", lambda *_: pytest.fail("encoded again"))
    second.add({label: first.encoded_images(label) for label in first.labels})
    assert streams(second) == streams(first)
    for codec, quality in (("jpeg", 51), ("webp", 50)):
        third = ReplayMemory("1MB", codec, quality, accounting="file")
        third.add({4: first.encoded_images(1)})
        assert streams(third) == streams(first)[6:12]


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(CLASSES, MADE)
def test_load_restores_what_save_wrote(
    tmp_path: Path, images: Photos, made: dict[str, Any]
) -> None:
    """Every stream, label, rank, source and setting; saving again gives the same bytes."""
    memory = ReplayMemory("1MB", **made, class_names={0: "zero"})
    memory.add(images)
    memory.notes = {"why": "test"}
    memory.save(tmp_path / "a.mrdc")
    loaded = ReplayMemory.load(tmp_path / "a.mrdc")
    assert streams(loaded) == streams(memory)
    settings = "targets ranks labels classes nbytes budget quality accounting notes whole_file"
    for name in settings.split():
        assert np.array_equal(getattr(loaded, name), getattr(memory, name)), name
    assert all(loaded.sources(label) == memory.sources(label) for label in images)
    assert loaded.duplicates() == memory.duplicates()
    assert loaded.kept_sources() == memory.kept_sources()
    loaded.save(tmp_path / "b.mrdc")
    assert (tmp_path / "a.mrdc").read_bytes() == (tmp_path / "b.mrdc").read_bytes()


def test_damaged_images_get_no_new_checksum(tmp_path: Path) -> None:
    """They are neither saved nor copied."""
    path = tmp_path / "a.mrdc"
    filled(images=4).save(path)
    content = bytearray(path.read_bytes())
    offsets = MemoryFile(path).arrays["offsets"]  # the payload is the end of the file
    content[int(offsets[5] - offsets[-1]) - 3] ^= 1
    path.write_bytes(content)
    loaded = ReplayMemory.load(path)
    message = r"image 1/0: its bytes do not match its checksum"
    with pytest.raises(MemoryFileError, match=message):
        loaded.save(tmp_path / "b.mrdc")
    with pytest.raises(MemoryFileError, match=message):
        loaded.encoded_images(1)
    assert not (tmp_path / "b.mrdc").exists()
