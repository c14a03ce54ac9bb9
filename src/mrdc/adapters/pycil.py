"""PyCIL: exemplars within a byte budget instead of a number of images.

    model = factory.get_model(args["model_name"], args)
    use_mrdc(model, "40MB")

PyCIL's learners keep exemplars in `_data_memory`, as paths or as pixels. Paths lead to stored files
in a folder; pixels are decoded from the memory after each task, so a learner that trains on pixels
holds them in RAM while it trains, as it does with the new images. With `matched=True` new images
are shown as they will be stored.
"""

import shutil
import tempfile
import weakref
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from mrdc._utils.errors import UsageError
from mrdc.adapters.features import embed_photos
from mrdc.adapters.store import Store
from mrdc.data.photo import Photo, file_photo
from mrdc.memory.export import extension
from mrdc.memory.replay import ReplayMemory

BYPASS = ("_construct_exemplar", "build_rehearsal_memory")  # methods that some learners override


def use_mrdc(model: Any, budget: int | str, folder: Path | None = None, **options: Any) -> Store:
    """Let a learner keep its exemplars in a memory; `options` as for `mrdc.Replay`.

    Args:
        folder: where to make a folder of stored files, for data sets of paths; by default where
            temporary files go. It is removed with the learner.

    Raises:
        UsageError: the learner builds its memory in another way.
    """
    own = [name for name in BYPASS for kind in type(model).__mro__[:-2] if name in vars(kind)]
    if own or not hasattr(model, BYPASS[1]) or type(model).__name__ == "COIL":
        raise UsageError(f"{type(model).__name__} builds its memory in its own way")
    store = Store(budget, **options)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    place = Path(tempfile.mkdtemp(prefix="mrdc-", dir=folder))
    weakref.finalize(model, shutil.rmtree, place, ignore_errors=True)
    model.build_rehearsal_memory = partial(_build, model, store, place)
    if store.settings.matched:
        learn = model.incremental_train
        model.incremental_train = lambda manager: learn(Matched(manager, store.memory))
    return store


class Matched:
    """A data manager whose new images are shown in training as the memory will store them."""

    def __init__(self, manager: Any, memory: ReplayMemory):
        self.manager, self.memory = manager, memory

    def __getattr__(self, name: str) -> Any:
        return getattr(self.manager, name)

    def get_dataset(
        self, indices: Any, source: str, mode: str, appendent: Any = None, **options: Any
    ) -> Any:
        data = self.manager.get_dataset(indices, source, mode, appendent=appendent, **options)
        if source != "train" or mode != "train" or options.get("ret_data"):
            return data
        return Shown(data, len(data) - (len(appendent[0]) if appendent else 0), self.memory)


class Shown(Dataset[Any]):
    """A data set of PyCIL, whose first `new` images look as the memory will store them."""

    def __init__(self, data: Any, new: int, memory: ReplayMemory):
        self.data, self.new, self.memory = data, new, memory

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Any:
        if index >= self.new:
            return self.data[index]
        image = self.data.images[index]
        opened = Image.open(image).convert("RGB") if self.data.use_path else Image.fromarray(image)
        return index, self.data.trsf(self.memory.as_stored(opened)), self.data.labels[index]


def _build(model: Any, store: Store, folder: Path, data_manager: Any, per_class: int) -> None:
    """Store exemplars of the new classes, and give the learner all of them with class means."""
    known, total = model._known_classes, model._total_classes
    photos = {label: _photos(data_manager, label) for label in range(known, total)}
    store.learn_with(partial(_embed, model, data_manager), photos)
    memory = store.memory
    examples = memory.examples()
    if data_manager.use_path:
        data = np.array(_files(folder, [memory.encoded(i) for i in range(len(memory))]))
    else:
        data = np.stack([photo.pixels() for photo in examples.photos])
    model._data_memory, model._targets_memory = data, memory.targets
    model._class_means = _means(model, data_manager, data, model._targets_memory)


def _photos(data_manager: Any, label: int) -> list[Photo]:
    """Training images of a class."""
    one = np.arange(label, label + 1)
    data, *_ = data_manager.get_dataset(one, source="train", mode="test", ret_data=True)
    if data_manager.use_path:
        return [file_photo(str(path), f"{label}/{number}") for number, path in enumerate(data)]
    return [Photo(f"{label}/{n}", partial(np.asarray, image)) for n, image in enumerate(data)]


def _embed(model: Any, data_manager: Any, photos: Sequence[Photo]) -> Tensor:
    """Features under the learner's network, of images as its tests show them."""
    network = _network(model)
    empty = (np.zeros((0,)), np.zeros((0,), int))
    shown = data_manager.get_dataset([], source="train", mode="test", appendent=empty).trsf

    def view(index: int, image: Image.Image) -> Tensor:
        return shown(image)

    def run(images: Tensor, part: slice) -> Tensor:
        return network.extract_vector(images.to(model._device))

    return embed_photos(network, photos, view, run, outputs=True)


def _network(model: Any) -> Any:
    network = model._network
    return network.module if isinstance(network, nn.DataParallel) else network


def _files(folder: Path, streams: Sequence[bytes]) -> list[str]:
    """Paths of files with these contents, and no others in the folder."""
    for old in folder.glob("*"):
        old.unlink()
    paths = [folder / f"{n:06d}.{extension(stream)}" for n, stream in enumerate(streams)]
    for path, stream in zip(paths, streams, strict=True):
        path.write_bytes(stream)
    return list(map(str, paths))


def _means(model: Any, data_manager: Any, data: Any, targets: Any) -> Any:
    """Unit mean features of the stored images of each class."""
    means = np.zeros((model._total_classes, model.feature_dim))
    for label in np.unique(targets):
        part = (data[targets == label], targets[targets == label])
        shown = data_manager.get_dataset([], source="train", mode="test", appendent=part)
        vectors, _ = model._extract_vectors(DataLoader(shown, batch_size=64))
        mean = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).mean(axis=0)
        means[label] = mean / np.linalg.norm(mean)
    return means
