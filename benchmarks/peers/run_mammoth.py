"""Training speed of Mammoth in images/s, without and with a teacher (iCaRL).

Needs a clone of Mammoth. Its `resnet18` has a 3x3 stem; `resnet18_spr` is the usual one. It keeps
decoded images of one size in RAM, so it decodes no file while it trains; each sample is a training
view and a plain copy.
"""

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torch import Tensor
from torch.utils.data import Dataset
from torchvision import transforms

from timing import (
    MEAN,
    PHASES,
    SIZE,
    STD,
    VIEW,
    Clock,
    DoneError,
    Setup,
    Timed,
    clone,
    options,
    require_resnet18,
    setup_of,
    version_of,
)

SIDE = 256  # pixels, of the decoded squares
Pixels = NDArray[np.uint8]


def decoded(file: tuple[str, int]) -> Pixels:
    """The centre of an image, as a square."""
    with Image.open(file[0]) as image:
        return np.asarray(ImageOps.fit(image.convert("RGB"), (SIDE, SIDE)))


def in_ram(setup: Setup, split: str) -> tuple[Pixels, NDArray[np.int64]]:
    """All images of a split, and their labels; an image listed twice is decoded once."""
    files = setup.files(split)
    distinct = sorted(set(files))
    with ThreadPoolExecutor(max(setup.workers, 1)) as pool:
        pixels = np.stack(list(pool.map(decoded, distinct)))
    place = {file: index for index, file in enumerate(distinct)}
    return pixels[[place[file] for file in files]], np.array([label for _, label in files])


class Decoded(Dataset[tuple[Any, ...]]):
    """Decoded images in the format that Mammoth expects."""

    def __init__(self, data: Pixels, targets: NDArray[np.int64], train: bool):
        self.data, self.targets, self.train = data, targets, train
        self.not_aug_transform = transforms.ToTensor()

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        image, label = Image.fromarray(self.data[index]), self.targets[index]
        if not self.train:
            return VIEW(image), label
        view: Tensor = VIEW(image)
        return view, label, self.not_aug_transform(image)


def register(setup: Setup) -> None:
    """Register our folder as a Mammoth data set named photos."""
    base = import_module("datasets.utils.continual_dataset")
    arrays = {split: in_ram(setup, split) for split in ("train", "test")}

    class Photos(base.ContinualDataset):  # type: ignore[misc, name-defined]
        NAME, SETTING, AVAIL_SCHEDS = "photos", "class-il", ["multisteplr"]
        N_TASKS, N_CLASSES_PER_TASK = PHASES, setup.classes
        N_CLASSES = PHASES * setup.classes
        SIZE = (SIZE, SIZE)

        def get_data_loaders(self) -> Any:
            sets = [Decoded(*arrays[split], train=split == "train") for split in arrays]
            return base.store_masked_loaders(*sets, self)

        def get_transform(self) -> Any:
            return transforms.Compose([transforms.ToPILImage(), VIEW])

        def get_normalization_transform(self) -> Any:
            return transforms.Normalize(MEAN, STD)

        def get_denormalization_transform(self) -> Any:
            return None

        def get_loss(self) -> Any:
            return F.cross_entropy

        def get_backbone(self) -> str:
            return "resnet18_spr"

        def get_epochs(self) -> int:
            return setup.epochs + 1

        def get_batch_size(self) -> int:
            return setup.batch

        @staticmethod
        def evaluate(*_: Any, **__: Any) -> Any:
            return [0.0], [0.0]  # tests are not measured

        def log(self, *_: Any, **__: Any) -> Any:
            return [0.0], [0.0]

    import_module("datasets").register_dataset("photos")(Photos)


def watched(training: Any, clock: Clock) -> None:
    """Put a clock around the loader of each epoch."""
    epoch = training.train_single_epoch

    def timed(model: Any, train_loader: Any, *rest: Any, **more: Any) -> Any:
        return epoch(model, Timed(train_loader, clock), *rest, **more)

    training.train_single_epoch = timed


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--mammoth", type=Path, required=True, help="a clone of Mammoth")
    given = parser.parse_args()
    setup, folder = setup_of(given), clone(given.mammoth, "models/icarl.py")
    training = import_module("utils.training")
    register(setup)
    version = version_of(folder, given.version)
    clock = Clock(
        setup, library="Mammoth", version=version, method="icarl", path="decoded in RAM, fp32"
    )
    watched(training, clock)
    settings = {"backbone": "resnet18_spr", "buffer_size": setup.held, "batch_size": setup.batch}
    training_settings = {"n_epochs": setup.epochs + 1, "lr": 0.1, "num_workers": setup.workers}
    load = partial(import_module("utils.notebooks").load_runner, "icarl", "photos")
    model, dataset = load({**settings, **training_settings, "seed": 0, "non_verbose": 1})
    require_resnet18(model.net)
    with suppress(DoneError):
        training.train(model, dataset)


if __name__ == "__main__":
    main()
