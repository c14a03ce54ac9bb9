"""The replay memory: budget, ranks, files, batches."""

import multiprocessing
import pickle
import re
import tempfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from mrdc._utils.errors import BudgetError, ImageError, MemoryFileError, UsageError
from mrdc.codec import CODECS
from mrdc.data.photo import Photo
from mrdc.memory.budget import Budget
from mrdc.memory.file import MemoryFile, index_entry
from mrdc.memory.replay import ReplayMemory
from tests.conftest import jpeg, pixels

FAST_CODECS = ["original", "jpeg", "jpeg-optimised", "png"]


def filled(budget: int | str | Budget = "1MB", classes: int = 3, images: int = 6) -> ReplayMemory:
    memory = ReplayMemory(budget, "jpeg", 50)
    memory.add({label: [jpeg(100 * label + n) for n in range(images)] for label in range(classes)})
    return memory


def streams(memory: ReplayMemory) -> list[bytes]:
    return [memory.encoded(index) for index in range(len(memory))]


# Budget


@st.composite
def streams_by_class(draw: st.DrawFn) -> dict[int, list[bytes]]:
    sizes = st.tuples(st.integers(1, 40), st.integers(1, 40))
    image = st.builds(
        lambda seed, size, q: jpeg(seed, q, *size),
        st.integers(0, 5),
        sizes,
        st.sampled_from([60, 95]),
    )
    lists = draw(st.lists(st.lists(image, min_size=1, max_size=6), min_size=1, max_size=4))
    return dict(enumerate(lists))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    images=streams_by_class(),
    codec=st.sampled_from(FAST_CODECS),
    quality=st.integers(1, 100),
    accounting=st.sampled_from(["packed", "file"]),
    budget=st.integers(1, 20_000),
    smaller=st.integers(1, 20_000),
)
def test_bytes_never_exceed_the_budget(
    images: dict[int, list[bytes]],
    codec: str,
    quality: int,
    accounting: str,
    budget: int,
    smaller: int,
) -> None:
    """For any images, codec, quality and budget, also after a change of budget; or a refusal."""
    setting = None if CODECS[codec].qualities is None else quality
    memory = ReplayMemory(budget, codec, setting, accounting=accounting)  # type: ignore[arg-type]
    try:
        memory.add(images)
    except BudgetError:
        assert len(memory) == 0
        return
    assert memory.nbytes <= budget
    assert memory.labels == list(images)
    before = streams(memory)
    try:
        memory.rebudget(smaller)
    except BudgetError:
        assert streams(memory) == before
        return
    assert memory.nbytes <= smaller
    assert set(memory.targets) == set(images)
    assert set(streams(memory)) <= set(before)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(images=streams_by_class(), budget=st.integers(1, 20_000), quality=st.integers(1, 100))
def test_what_is_held_is_a_prefix_of_the_ranking(
    images: dict[int, list[bytes]], budget: int, quality: int
) -> None:
    """Against a memory that has room for everything."""
    everything = ReplayMemory("1GB", "jpeg", quality)
    everything.add(images)
    memory = ReplayMemory(budget, "jpeg", quality)
    try:
        memory.add(images)
    except BudgetError:
        return
    for label in images:
        sources = memory.sources(label)
        assert sources == everything.sources(label)[: len(sources)]


def test_paths_are_no_images() -> None:
    """As people try first."""
    memory = ReplayMemory("1MB", "jpeg", 50)
    with pytest.raises(UsageError, match="image 0 of class 2 is a str: give a Photo"):
        memory.add({2: ["a.jpg"]})  # type: ignore[list-item]
    assert len(memory) == 0


def test_a_class_short_of_images_hands_its_bytes_back() -> None:
    """One image against forty: the large class gets all but the small one's bytes."""
    one = len(jpeg(0))
    memory = ReplayMemory(20 * one, "original")
    memory.add({0: [jpeg(0)], 1: [jpeg(n) for n in range(1, 41)]})
    assert memory.targets.count(1) >= 18
    assert memory.nbytes <= 20 * one


def test_per_class_budget_grows_with_the_classes() -> None:
    """20/class is a promise to each class, however many come."""
    size = np.mean([len(jpeg(n)) for n in range(40)])
    memory = ReplayMemory(Budget(2, "class", float(size)), "original")
    memory.add({0: [jpeg(n) for n in range(20)]})
    first = memory.budget_bytes
    memory.add({1: [jpeg(n) for n in range(20, 40)]})
    assert memory.budget_bytes == 2 * first
    assert memory.nbytes <= memory.budget_bytes


def test_fixed_budget_makes_room_for_new_classes() -> None:
    """Older classes lose their lowest ranks, and nothing is encoded again."""
    memory = filled(8_000, classes=1, images=40)
    alone = memory.sources(0)
    before = {memory.encoded(index) for index in range(len(memory))}
    memory.add({1: [jpeg(1000 + n) for n in range(40)]})
    assert memory.nbytes <= 8_000
    shared = memory.sources(0)
    assert 0 < len(shared) < len(alone)
    assert shared == alone[: len(shared)]
    assert {memory.encoded(i) for i in range(len(shared))} <= before


def test_shrinking_then_growing_keeps_the_order() -> None:
    """Growing brings nothing back, and what stays keeps its rank."""
    memory = filled(50_000, images=20)
    names = {label: memory.sources(label) for label in memory.labels}
    memory.rebudget(9_000)
    small = {label: memory.sources(label) for label in memory.labels}
    memory.rebudget(50_000)
    for label in memory.labels:
        assert memory.sources(label) == small[label]
        assert small[label] == names[label][: len(small[label])]
    assert memory.ranks == [rank for label in small for rank in range(len(small[label]))]


def test_one_call_and_many_calls_hold_the_same_under_a_fixed_budget() -> None:
    """Adding class by class ends near where adding them together does."""
    images = {label: [jpeg(100 * label + n) for n in range(20)] for label in range(4)}
    together, apart = ReplayMemory(20_000, "jpeg", 50), ReplayMemory(20_000, "jpeg", 50)
    together.add(images)
    for label, ranked in images.items():
        apart.add({label: ranked})
    for label in images:
        assert abs(len(together.sources(label)) - len(apart.sources(label))) <= 1


def test_packed_charges_shared_tables_once() -> None:
    """One header for all images, however many; `file` charges each."""
    images = {0: [pixels(n) for n in range(10)], 1: [pixels(n) for n in range(10, 20)]}
    packed, whole = (
        ReplayMemory("1MB", "jpeg", 50),
        ReplayMemory("1MB", "jpeg", 50, accounting="file"),
    )
    packed.add(images)
    whole.add(images)
    tables = len(CODECS["jpeg"].tables(50))
    assert whole.nbytes == sum(map(len, streams(whole)))
    assert packed.nbytes == whole.nbytes - 20 * (tables + 2 - 4) + tables
    assert streams(packed) == streams(whole)


def test_a_class_that_gets_nothing_is_an_error_that_names_it() -> None:
    """And the memory stays as it was."""
    memory = ReplayMemory(3_000, "original", class_names={1: "big"})
    memory.add({0: [jpeg(0)]})
    with pytest.raises(
        BudgetError, match=r"first of each .* class 'big' \(1/0\) .* 2 classes need"
    ):
        memory.add({1: [jpeg(1, 95, 100, 100)]})
    assert memory.targets == [0]


@given(
    st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=4), min_size=1, max_size=5),
    st.booleans(),
    st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_a_small_budget_is_told_what_is_enough(
    sides: list[list[int]], whole_file: bool, apart: bool
) -> None:
    """With these bytes the classes fit, together or one by one, and with one less they do not."""
    images = {
        label: [CODECS["png"].encode(pixels(n, side, side)) for n, side in enumerate(of_class)]
        for label, of_class in enumerate(sides)
    }

    def attempt(budget: int) -> None:
        memory = ReplayMemory(budget, "original", whole_file=whole_file)
        for part in [{label: images[label]} for label in images] if apart else [images]:
            memory.add(part)
        assert set(memory.targets) == set(images)

    def refused(budget: int) -> tuple[int, int]:
        with pytest.raises(BudgetError) as refusal:
            attempt(budget)
        found = re.search(r"(\d+) classes need ([\d,]+) bytes", str(refusal.value))
        assert found is not None
        return int(found[1]), int(found[2].replace(",", ""))

    classes, needed = refused(1)
    while classes < len(images):  # as classes come, more is needed
        classes, needed = refused(needed)
    assert refused(needed - 1) == (classes, needed)
    attempt(needed)


@given(st.lists(st.integers(1, 40), min_size=2, max_size=30), st.integers(2_000, 20_000))
@settings(max_examples=60, deadline=None)
def test_a_file_is_as_large_as_its_budget_allows(sides: list[int], budget: int) -> None:
    """One image more would be too many, but for some digits that its header may come to have."""
    images = [CODECS["png"].encode(pixels(n, side, side)) for n, side in enumerate(sides)]
    memory = ReplayMemory(budget, "original", whole_file=True)
    with suppress(BudgetError), tempfile.TemporaryDirectory() as folder:
        memory.add({0: images})
        memory.save(Path(folder, "a"))
        left = budget - Path(folder, "a").stat().st_size
        assert left >= 0
        for following in images[len(memory) : len(memory) + 1]:
            assert left < len(following) + index_entry(f"0/{len(memory)}") + 100


def test_rebudget_that_would_empty_a_class_changes_nothing() -> None:
    """Refused with the class's name."""
    memory = filled()
    before = streams(memory)
    with pytest.raises(BudgetError, match="none of class '0' fits"):
        memory.rebudget(700)
    assert streams(memory) == before
    assert memory.budget_bytes == 1_000_000


# What is stored


def test_exact_duplicates_are_stored_once() -> None:
    """And counted."""
    memory = ReplayMemory("1MB", "jpeg", 50)
    memory.add({0: [jpeg(0), jpeg(1), jpeg(0), jpeg(0)], 1: [jpeg(0)]})
    assert memory.targets == [0, 0, 1]
    assert memory.duplicates() == {0: 2}


def test_encodings_that_are_not_smaller_keep_the_source_bytes() -> None:
    """A source of quality 30 stays when asked for quality 95."""
    sources = [jpeg(0, 30), jpeg(1, 99)]
    memory = ReplayMemory("1MB", "jpeg", 95)
    memory.add({0: sources})
    assert memory.encoded(0) == sources[0]
    assert len(memory.encoded(1)) < len(sources[1])
    assert memory.kept_sources() == 1


def test_original_keeps_every_byte() -> None:
    """The file itself, whatever its format."""
    files = [jpeg(0), CODECS["png"].encode(pixels(1)), CODECS["webp"].encode(pixels(2), 80)]
    memory = ReplayMemory("1MB", "original")
    memory.add({0: files})
    assert streams(memory) == files


def test_pixels_can_be_added_as_they_are() -> None:
    """Arrays need no file; original makes PNG of them, without loss."""
    memory = ReplayMemory("1MB", "original")
    memory.add({0: [pixels(0)]})
    np.testing.assert_array_equal(memory[0][0].permute(1, 2, 0).numpy(), pixels(0))


def test_items_are_uint8_chw_tensors_and_labels() -> None:
    """As torch expects of a map-style data set."""
    memory = filled()
    image, label = memory[7]
    assert (image.dtype, image.shape, label) == (torch.uint8, (3, 24, 32), 1)
    assert len(list(memory)) == len(memory) == 18  # type: ignore[call-overload]
    assert torch.equal(memory[-1][0], memory[17][0])
    with pytest.raises(IndexError, match="outside a memory of 18"):
        memory[18]


def test_classes_may_differ_in_codec_and_quality(tmp_path: Path) -> None:
    """Each keeps what it was made with, its own shared tables too, also in the file."""
    memory = ReplayMemory("1MB", "jpeg", 80)
    images = [[pixels(10 * label + n) for n in range(4)] for label in range(3)]
    memory.add({0: images[0]})
    memory.quality = 20
    memory.add({1: images[1]})
    memory.codec, memory.quality = CODECS["webp"], 50
    memory.add({2: images[2]})
    made = [("jpeg", 80), ("jpeg", 20), ("webp", 50)]
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


def test_nothing_to_add_changes_nothing() -> None:
    """No class, no harm; and labels that no file could hold are refused."""
    memory = filled()
    before = streams(memory)
    memory.add({})
    assert streams(memory) == before
    with pytest.raises(UsageError, match=r"labels must be from 0 .*, got \[-1\]"):
        memory.add({-1: [jpeg(0)]})


def test_a_class_is_added_once() -> None:
    """Ranks would be meaningless otherwise."""
    memory = filled()
    with pytest.raises(UsageError, match=r"classes \[1\] are in the memory already"):
        memory.add({1: [jpeg(0)]})


def test_unreadable_images_raise_or_are_skipped() -> None:
    """By default the first one raises; with `skip` it is told and left out."""
    images = {0: [Photo("good.jpg", lambda: jpeg(0)), Photo("bad.jpg", lambda: jpeg(1)[:200])]}
    memory = ReplayMemory("1MB", "jpeg", 50)
    with pytest.raises(ImageError, match=r"bad\.jpg: the image is damaged"):
        memory.add(images)
    assert len(memory) == 0
    told: list[str] = []
    memory.add(images, skip=lambda error: told.append(str(error)))
    assert memory.sources(0) == ["good.jpg"]
    assert len(told) == 1


def test_a_class_of_bad_images_only_is_an_error() -> None:
    """Even where bad images are skipped."""
    memory = ReplayMemory("1MB", "jpeg", 50, class_names={0: "owl"})
    with pytest.raises(ImageError, match="class 'owl' has no readable image"):
        memory.add({0: [b"text"]}, skip=lambda error: None)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_threads_do_not_change_what_is_stored(threads: int, tmp_path: Path) -> None:
    """Bytes and order are the same, in RAM or spooled."""
    images = {label: [jpeg(100 * label + n) for n in range(20)] for label in range(3)}
    expected, memory = (
        ReplayMemory(12_000, "jpeg", 40),
        ReplayMemory(12_000, "jpeg", 40, spool=tmp_path),
    )
    expected.add(images, threads=3)
    memory.add(images, threads=threads)
    assert streams(memory) == streams(expected)


# Batches


def test_training_batches_belong_to_seed_and_epoch_not_to_threads() -> None:
    """Same draws with one thread and with four; other draws in another epoch."""
    memory = filled()

    def epoch(number: int, threads: int) -> torch.Tensor:
        return torch.cat(
            [x for x, _ in memory.batches(4, 16, seed=1, epoch=number, threads=threads)]
        )

    assert torch.equal(epoch(0, 1), epoch(0, 4))
    assert not torch.equal(epoch(0, 1), epoch(1, 1))


def test_batches_hold_every_image_once() -> None:
    """Shuffled, with the labels that belong to them, a short batch at the end."""
    memory = filled()
    batches = list(memory.batches(5, 16))
    assert [len(y) for _, y in batches] == [5, 5, 5, 3]
    assert sorted(torch.cat([y for _, y in batches]).tolist()) == memory.targets
    images, labels = next(memory.batches(18, 24, train=False))
    assert images.shape == (18, 3, 24, 24)
    assert labels.tolist() == memory.targets


def test_works_in_a_data_loader_with_workers(tmp_path: Path) -> None:
    """Forked and spawned workers read the same images, from RAM or from the file."""
    filled().save(tmp_path / "m")
    for context, memory in (("fork", filled()), ("spawn", ReplayMemory.load(tmp_path / "m"))):
        loader = DataLoader(memory, batch_size=6, num_workers=2, multiprocessing_context=context)
        images = torch.cat([x for x, _ in loader])
        assert torch.equal(images, torch.stack([memory[i][0] for i in range(18)]))


# Files


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    images=streams_by_class(),
    codec=st.sampled_from(FAST_CODECS),
    accounting=st.sampled_from(["packed", "file"]),
)
def test_load_gives_back_what_save_wrote(
    images: dict[int, list[bytes]], codec: str, accounting: str, tmp_path: Path
) -> None:
    """Every stream, label, rank, source and setting; and the same bytes when saved again."""
    quality = None if CODECS[codec].qualities is None else 40
    memory = ReplayMemory("1MB", codec, quality, accounting=accounting, class_names={0: "zero"})  # type: ignore[arg-type]
    memory.add(images)
    memory.notes = {"why": "test"}
    memory.save(tmp_path / "a.mrdc")
    loaded = ReplayMemory.load(tmp_path / "a.mrdc")
    assert streams(loaded) == streams(memory)
    for name in (
        "targets",
        "ranks",
        "labels",
        "nbytes",
        "budget",
        "quality",
        "accounting",
        "notes",
    ):
        assert getattr(loaded, name) == getattr(memory, name), name
    assert loaded.class_names[0] == "zero"
    assert all(loaded.sources(label) == memory.sources(label) for label in images)
    assert loaded.duplicates() == memory.duplicates()
    assert loaded.kept_sources() == memory.kept_sources()
    loaded.save(tmp_path / "b.mrdc")
    assert (tmp_path / "a.mrdc").read_bytes() == (tmp_path / "b.mrdc").read_bytes()


def test_a_loaded_memory_goes_on(tmp_path: Path) -> None:
    """It takes new classes and smaller budgets like any other."""
    filled(20_000).save(tmp_path / "a.mrdc")
    memory = ReplayMemory.load(tmp_path / "a.mrdc")
    memory.add({9: [jpeg(999)]})
    memory.rebudget(1_600)
    assert memory.labels == [0, 1, 2, 9]
    assert memory.nbytes <= 1_600
    assert streams(pickle.loads(pickle.dumps(memory))) == streams(memory)


def test_damaged_images_get_no_new_checksum(tmp_path: Path) -> None:
    """A memory that was opened is not saved with them."""
    path = tmp_path / "a.mrdc"
    filled(images=4).save(path)
    content = bytearray(path.read_bytes())
    offsets = MemoryFile(path).arrays["offsets"]  # the payload is the end of the file
    content[int(offsets[5] - offsets[-1]) - 3] ^= 1
    path.write_bytes(content)
    loaded = ReplayMemory.load(path)
    with pytest.raises(MemoryFileError, match=r"image 1/0: its bytes do not match its checksum"):
        loaded.save(tmp_path / "b.mrdc")
    assert not (tmp_path / "b.mrdc").exists()


def test_a_loaded_memory_pickles_without_its_payload(tmp_path: Path) -> None:
    """Workers map the same file; the payload is not copied."""
    memory = filled(images=40)
    memory.save(tmp_path / "a.mrdc")
    loaded = ReplayMemory.load(tmp_path / "a.mrdc")
    data = pickle.dumps(loaded)
    assert len(data) < memory.nbytes / 2
    assert memory.encoded(0)[700:] not in data
    assert streams(pickle.loads(data)) == streams(memory)


def test_a_pickle_whose_file_was_replaced_is_refused(tmp_path: Path) -> None:
    """Rather than reading other images than were meant."""
    filled().save(tmp_path / "a.mrdc")
    data = pickle.dumps(ReplayMemory.load(tmp_path / "a.mrdc"))
    filled(classes=2).save(tmp_path / "a.mrdc")
    with pytest.raises(MemoryFileError, match="replaced since"):
        pickle.loads(data)


def test_a_memory_in_ram_reaches_processes_without_copying_its_payload() -> None:
    """Through multiprocessing's pickle the payload travels as shared memory."""
    from multiprocessing.reduction import ForkingPickler

    memory = filled(images=60)
    assert memory.nbytes > 20_000
    assert len(ForkingPickler.dumps(memory)) < memory.nbytes / 2
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(_first, (memory,)) == memory.encoded(0)


def _first(memory: ReplayMemory) -> bytes:
    return memory.encoded(0)


def test_a_spooled_memory_refuses_to_be_pickled(tmp_path: Path) -> None:
    """Its bytes are in a file that has no name."""
    memory = ReplayMemory("1MB", "jpeg", 50, spool=tmp_path)
    memory.add({0: [jpeg(0)]})
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(TypeError, match="save it and load the file"):
        pickle.dumps(memory)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"codec": "jpg"}, "unknown codec 'jpg'"),
        ({"codec": "jpeg", "quality": 0}, "from 1 to 100, got 0"),
        ({"codec": "jpeg"}, "from 1 to 100, got None"),
        ({"codec": "png", "quality": 5}, "codec png has no quality"),
        ({"codec": "png", "accounting": "disk"}, "accounting must be"),
    ],
)
def test_wrong_settings_are_refused(arguments: dict[str, object], message: str) -> None:
    """When the memory is made, not when it is used."""
    with pytest.raises(UsageError, match=message):
        ReplayMemory("1MB", **arguments)  # type: ignore[arg-type]
