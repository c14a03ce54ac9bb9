"""The replay memory as a data set: items, loaders, batches and worker processes."""

import pickle
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader
from torchvision.transforms import v2

from mrdc._utils.errors import MemoryFileError
from mrdc.memory.replay import ReplayMemory
from tests.conftest import jpeg
from tests.memory.memories import filled, streams


def epoch(memory: ReplayMemory, number: int | None = None, threads: int = 1) -> Tensor:
    """All images of an epoch of training batches."""
    parts = memory.batches(4, 16, seed=1, epoch=number, threads=threads)
    return torch.cat([images for images, _ in parts])


def test_items_are_uint8_chw_tensors_and_labels() -> None:
    """A map-style data set."""
    memory = filled()
    image, label = memory[7]
    assert (image.dtype, image.shape, label) == (torch.uint8, (3, 24, 32), 1)
    assert len(list(memory)) == len(memory) == 18  # type: ignore[call-overload]
    assert torch.equal(memory[-1][0], memory[17][0])
    with pytest.raises(IndexError, match="outside a memory of 18"):
        memory[18]


@pytest.mark.parametrize("context", [None, "fork", "spawn"])
def test_transforms_make_images_of_one_size(context: str | None, tmp_path: Path) -> None:
    """In any loader, with or without workers."""
    memory = ReplayMemory("1MB")
    memory.add({0: [jpeg(n, 95, 20 + n, 30 - n) for n in range(8)]})
    memory.save(tmp_path / "a")
    memory = ReplayMemory.load(tmp_path / "a", transform=v2.RandomResizedCrop((16, 12)))
    workers = int(context is not None)
    loader = DataLoader(memory, 4, num_workers=workers, multiprocessing_context=context)
    assert [tuple(images.shape) for images, _ in loader] == [(4, 3, 16, 12)] * 2


def test_examples_hold_encoded_images_and_do_not_change() -> None:
    """In the memory's order, under their own names; transforms only apply to items."""
    memory, plain = filled(), filled()
    memory.transform = lambda image: image.float().mean()
    assert memory[0][0].ndim == 0
    assert torch.equal(epoch(plain, 0), epoch(memory, 0))
    examples, before = memory.examples(), streams(memory)
    assert torch.equal(examples[0][0], plain[0][0])
    memory.rebudget("3kB")
    assert len(memory) < 18
    assert [photo.load() for photo in examples.photos] == before
    names = [f"{label}/{n}" for label in range(3) for n in range(6)]
    assert [photo.id for photo in examples.photos] == names
    assert list(examples.labels) == plain.targets.tolist()


def test_training_batches_depend_on_seed_and_epoch_not_on_threads() -> None:
    """Each call for training batches, used or not, is an epoch; other calls are not."""
    memory, reference = filled(), filled()
    assert torch.equal(epoch(memory, threads=4), epoch(reference, 0))
    assert not torch.equal(epoch(reference, 0), epoch(reference, 1))
    list(memory.batches(4, 16, train=False))
    epoch(memory, 7)
    assert torch.equal(epoch(memory), epoch(reference, 1))
    memory.batches(4, 16)
    assert torch.equal(epoch(memory), epoch(reference, 3))


def test_batches_hold_every_image_once() -> None:
    """Shuffled, with their labels; the last batch may be short."""
    memory = filled()
    batches = list(memory.batches(5, 16))
    assert [len(y) for _, y in batches] == [5, 5, 5, 3]
    assert sorted(torch.cat([y for _, y in batches]).tolist()) == memory.targets.tolist()
    images, labels = next(memory.batches(18, 24, train=False))
    assert images.shape == (18, 3, 24, 24)
    assert labels.tolist() == memory.targets.tolist()


def in_ram(path: Path) -> ReplayMemory:
    """Sent by multiprocessing as shared memory, not in the pickle."""
    memory = ReplayMemory("1MB", "original")
    memory.add({label: [jpeg(100 * label + n) for n in range(30)] for label in range(3)})
    assert memory.nbytes > 20_000
    assert len(ForkingPickler.dumps(memory)) < memory.nbytes / 2
    return memory


def mapped(path: Path) -> ReplayMemory:
    """Workers map the same file."""
    filled(images=40).save(path)
    memory = ReplayMemory.load(path)
    assert len(pickle.dumps(memory)) < memory.nbytes / 2
    assert memory.encoded(0)[700:] not in pickle.dumps(memory)
    return memory


def saved_over(path: Path) -> ReplayMemory:
    """Loaded, changed, and saved to the file it came from."""
    memory = mapped(path)
    memory.add({9: [jpeg(999)]})
    memory.save(path)
    return memory


def saved_over_link(path: Path) -> ReplayMemory:
    """Loaded through a link to the file that is then replaced."""
    mapped(path)
    path.with_name("link").symlink_to(path)
    memory = ReplayMemory.load(path.with_name("link"))
    memory.rebudget("9kB")
    memory.save(path)
    return memory


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_workers_read_the_same_images(context: str, tmp_path: Path) -> None:
    """From RAM or from the file, in one worker, whose start takes long."""
    makers = (in_ram, mapped, saved_over, saved_over_link)
    memories = [make(tmp_path / make.__name__) for make in makers]
    data: ConcatDataset[tuple[Tensor, int]] = ConcatDataset(memories)
    loader = DataLoader(data, batch_size=6, num_workers=1, multiprocessing_context=context)
    read = torch.cat([images for images, _ in loader])
    for make, memory in zip(makers, memories, strict=True):
        expected = torch.stack([image for image, _ in memory])  # type: ignore[attr-defined]
        assert torch.equal(read[: len(memory)], expected), make.__name__
        read = read[len(memory) :]
    assert len(read) == 0


def test_saving_elsewhere_leaves_the_mapping(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A memory does not depend on copies of it, nor on the working folder."""
    monkeypatch.chdir(tmp_path)
    memory = mapped(Path("a.mrdc"))
    memory.save("b.mrdc")
    Path("b.mrdc").unlink()
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path / "sub")
    assert streams(pickle.loads(pickle.dumps(memory))) == streams(memory)


def test_memories_that_cannot_be_pickled_say_why(tmp_path: Path) -> None:
    """The file was replaced, or the bytes are in an unnamed file."""
    data = pickle.dumps(mapped(tmp_path / "a.mrdc"))
    filled(classes=2).save(tmp_path / "a.mrdc")
    with pytest.raises(MemoryFileError, match="replaced since"):
        pickle.loads(data)
    spooled = ReplayMemory("1MB", "jpeg", 50, spool=tmp_path)
    spooled.add({0: [jpeg(0)]})
    assert list(tmp_path.iterdir()) == [tmp_path / "a.mrdc"]
    with pytest.raises(TypeError, match="save it and load the file"):
        pickle.dumps(spooled)
