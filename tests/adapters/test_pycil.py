"""The mixin for PyCIL, over stand-ins for its data manager and learner, and over a clone of it."""

import gc
import os
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from mrdc._utils.errors import UsageError
from mrdc.adapters.features import embed_photos
from mrdc.adapters.pycil import use_mrdc
from mrdc.data.photo import Photo
from tests.adapters.clones import importing_from
from tests.conftest import pixels

CLONE = os.environ.get("MRDC_PYCIL")  # a clone of PyCIL, if there is one
CLASSES, IMAGES = 4, 12


def to_tensor(image: Image.Image) -> Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255


def made(label: int, count: int) -> Any:
    return np.stack([pixels(100 * label + number, 32, 32) for number in range(count)])


class Shown:
    """PyCIL's `DummyDataset`: index, image, label."""

    def __init__(self, images: Any, labels: Any, use_path: bool):
        self.images, self.labels, self.use_path, self.trsf = images, labels, use_path, to_tensor

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[int, Tensor, int]:
        image = self.images[index]
        opened = Image.open(image).convert("RGB") if self.use_path else Image.fromarray(image)
        return index, self.trsf(opened), int(self.labels[index])


class Manager:
    """PyCIL's `DataManager`, as far as the mixin uses it."""

    def __init__(self, folder: Path | None):
        self.use_path = folder is not None
        self.data = {label: made(label, IMAGES) for label in range(CLASSES)}
        if folder is not None:
            for label, images in self.data.items():
                paths = [folder / f"{label}-{number}.jpg" for number in range(IMAGES)]
                for path, image in zip(paths, images, strict=True):
                    Image.fromarray(image).save(path, quality=95)
                self.data[label] = np.array(list(map(str, paths)))

    def get_dataset(
        self, labels: Any, source: str, mode: str, appendent: Any = None, ret_data: bool = False
    ) -> Any:
        assert source == "train"
        data = [self.data[int(label)] for label in labels]
        targets = [np.full(IMAGES, label) for label in labels]
        if appendent is not None:
            data.append(appendent[0])
            targets.append(appendent[1])
        all_data, all_targets = np.concatenate(data), np.concatenate(targets)
        shown = Shown(all_data, all_targets, self.use_path)
        return (all_data, all_targets, shown) if ret_data else shown


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3 * 32 * 32, 8)

    def extract_vector(self, images: Tensor) -> Tensor:
        found: Tensor = self.layer(images.flatten(1))
        return found


class BaseLearner:
    """PyCIL's `BaseLearner`, as far as the mixin uses it."""

    feature_dim, _device = 8, "cpu"

    def __init__(self) -> None:
        self._network = Network()
        self._known_classes, self._total_classes = 0, 0
        self._data_memory: Any = None
        self._targets_memory: Any = None

    def incremental_train(self, data_manager: Any) -> None:
        self._total_classes += 2
        new = np.arange(self._known_classes, self._total_classes)
        memory = (self._data_memory, self._targets_memory) if self._known_classes else None
        data = data_manager.get_dataset(new, source="train", mode="train", appendent=memory)
        self.seen = [data[index][1] for index in range(len(data))]
        self.build_rehearsal_memory(data_manager, 1)
        self._known_classes = self._total_classes

    def build_rehearsal_memory(self, data_manager: Any, per_class: int) -> None:
        raise AssertionError("the mixin replaces this")

    def _extract_vectors(self, loader: Any) -> tuple[Any, Any]:
        parts = [(self._network.extract_vector(x).detach().numpy(), y) for _, x, y in loader]
        return np.concatenate([v for v, _ in parts]), np.concatenate([y for _, y in parts])


class Learner(BaseLearner):
    pass


@pytest.mark.parametrize("paths", [False, True])
def test_exemplars_within_bytes(paths: bool, tmp_path: Path, seeded: None) -> None:
    """Images, labels and class means after each task; paths lead to the stored files.

    The files are removed with the learner, others in the folder stay.
    """
    (tmp_path / "in").mkdir()
    manager = Manager(tmp_path / "in" if paths else None)
    model: Any = Learner()
    store = use_mrdc(model, "10kB", folder=tmp_path / "out", quality=50)
    (tmp_path / "out" / "notes.txt").write_text("not ours")
    for total in (2, 4):
        model._total_classes = total
        model.build_rehearsal_memory(manager, per_class=1)
        model._known_classes = total
        assert sorted(set(model._targets_memory)) == list(range(total))
        assert len(model._data_memory) == len(model._targets_memory) == len(store.memory)
        assert np.allclose(np.linalg.norm(model._class_means, axis=1), 1)
    assert 4 <= len(store.memory) < CLASSES * IMAGES
    if paths:
        files = sorted((tmp_path / "out").glob("mrdc-*/*"))
        assert [str(path) for path in files] == model._data_memory.tolist()
        assert files[0].read_bytes() == store.memory.encoded(0)
    else:
        assert model._data_memory.shape[1:] == (32, 32, 3)
    del model
    gc.collect()
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("paths", [False, True])
@pytest.mark.parametrize("matched", [False, True])
def test_new_images_can_be_shown_as_they_will_be_stored(
    paths: bool, matched: bool, tmp_path: Path, seeded: None
) -> None:
    """From the second task on; stored images are not encoded a second time."""
    manager = Manager(tmp_path if paths else None)
    model: Any = Learner()
    store = use_mrdc(model, "10kB", folder=tmp_path / "out", quality=10, matched=matched)
    old, new = (manager.get_dataset(labels, "train", "train") for labels in ([0, 1], [2, 3]))
    model.incremental_train(manager)
    assert all(torch.equal(image, old[n][1]) for n, image in enumerate(model.seen))
    stored = [to_tensor(Image.fromarray(p.pixels())) for p in store.memory.examples().photos]
    if matched:
        new.trsf = lambda image: to_tensor(store.memory.as_stored(image))
    expected = [*(new[n][1] for n in range(len(new))), *stored]
    model.incremental_train(manager)
    assert all(torch.equal(*pair) for pair in zip(model.seen, expected, strict=True))


def test_a_quality_is_chosen_once(seeded: None) -> None:
    """R_q chooses it from the first classes."""
    model: Any = Learner()
    store = use_mrdc(model, "30kB", classes=CLASSES)
    manager = Manager(None)
    found = []
    for total in (2, 4):
        model._total_classes = total
        model.build_rehearsal_memory(manager, 1)
        model._known_classes = total
        found.append((store.memory.codec.name, store.memory.quality))
    assert found[0] == found[1]


class Own(BaseLearner):
    def _construct_exemplar(self, data_manager: Any, m: int) -> None: ...


@pytest.mark.parametrize("model", [Own(), SimpleNamespace()])
def test_learners_that_go_their_own_way_are_refused(model: Any) -> None:
    """They would bypass the memory."""
    with pytest.raises(UsageError, match="builds its memory in its own way"):
        use_mrdc(model, "1MB")


@pytest.mark.skipif(CLONE is None, reason="MRDC_PYCIL names no clone")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["icarl", "replay", "wa", "der", "podnet"])
def test_learners_of_pycil(name: str, monkeypatch: pytest.MonkeyPatch, seeded: None) -> None:
    """Two tasks of small images, an epoch each."""
    with importing_from(CLONE):
        managers: Any = import_module("utils.data_manager")
        data = SimpleNamespace(
            download_data=lambda: None,
            use_path=False,
            train_trsf=[],
            test_trsf=[],
            common_trsf=[to_tensor],
            class_order=list(range(CLASSES)),
            train_data=np.concatenate([made(label, 20) for label in range(CLASSES)]),
            train_targets=np.repeat(np.arange(CLASSES), 20),
            test_data=np.concatenate([made(label, 4) for label in range(CLASSES)]),
            test_targets=np.repeat(np.arange(CLASSES), 4),
        )
        monkeypatch.setattr(managers, "_get_idata", lambda name: data)
        module: Any = import_module(f"models.{name}")
        for setting in ("init_epoch", "epochs", "ft_epochs", "num_workers"):
            if hasattr(module, setting):
                monkeypatch.setattr(module, setting, 0 if setting == "num_workers" else 1)
        kinds = {"icarl": "iCaRL", "replay": "Replay", "wa": "WA", "der": "DER", "podnet": "PODNet"}
        network = "cosine_resnet32" if name == "podnet" else "resnet32"
        model = getattr(module, kinds[name])(
            {
                "memory_size": 16,
                "device": ["cpu"],
                "convnet_type": network,
                "pretrained": False,
                "init_cls": 2,
                "increment": 2,
            }
        )
        model.topk = 2
        store = use_mrdc(model, "30kB", quality=50, matched=True)
        manager = managers.DataManager("small", False, 0, 2, 2)
        for _ in range(2):
            model.incremental_train(manager)
            model.after_task()
        assert len(model._targets_memory) == len(store.memory) > 16


def test_embedding_leaves_the_modes_of_a_network_alone() -> None:
    """A learner may have frozen the batch norms of a network that it trains."""
    model = nn.Sequential(nn.BatchNorm1d(48), nn.Linear(48, 2)).train()
    model[0].eval()
    photos = [Photo("one", lambda: pixels(0, 4, 4))]
    embed_photos(model, photos, lambda _, image: to_tensor(image).flatten(), lambda x, _: model(x))
    assert model.training and not model[0].training
