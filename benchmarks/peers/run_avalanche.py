"""Training speed of Avalanche in images/s, without and with a teacher (LwF with replay).

Needs avalanche-lib. With replay, half of each batch is new and half is replayed, so an epoch of the
second phase has twice as many images as there are new ones.
"""

import warnings
from importlib.metadata import version
from typing import Any

import torch
from avalanche.benchmarks import nc_benchmark
from avalanche.training.plugins import EvaluationPlugin, ReplayPlugin, SupervisedPlugin
from avalanche.training.supervised import LwF
from PIL import Image
from torch import nn
from torch.utils.data import Dataset
from torchvision import models

from timing import VIEW, Clock, DoneError, Setup, Timed, options, require_resnet18, seeded, setup_of


class Photos(Dataset[tuple[Image.Image, int]]):
    """Image files and labels, like torchvision's ImageFolder."""

    def __init__(self, files: list[tuple[str, int]]):
        self.files = files
        self.targets = [label for _, label in files]

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        path, label = self.files[index]
        return Image.open(path).convert("RGB"), label


class Watch(SupervisedPlugin):  # type: ignore[misc]
    """Puts a clock around the loader."""

    def __init__(self, clock: Clock):
        super().__init__()
        self.clock = clock

    def before_training_epoch(self, strategy: Any, *_: Any, **__: Any) -> None:
        if not isinstance(strategy.dataloader, Timed):
            strategy.dataloader = Timed(strategy.dataloader, self.clock)


def strategy_of(setup: Setup, clock: Clock) -> Any:
    """LwF with a buffer of originals."""
    net = models.resnet18(num_classes=2 * setup.classes)
    require_resnet18(net)
    half = setup.batch // 2
    replay = ReplayPlugin(mem_size=setup.held, batch_size=half, batch_size_mem=half)
    return LwF(
        model=net,
        optimizer=torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4),
        criterion=nn.CrossEntropyLoss(),
        alpha=1.0,
        temperature=2.0,
        train_mb_size=setup.batch,
        train_epochs=setup.epochs + 1,
        device=torch.device(setup.device),
        evaluator=EvaluationPlugin(),
        plugins=[replay, Watch(clock)],
    )


def main() -> None:
    warnings.filterwarnings("ignore")
    given = options(__doc__).parse_args()
    setup = setup_of(given)
    seeded()
    library = {"library": "Avalanche", "version": given.version or version("avalanche-lib")}
    clock = Clock(setup, **library, method="lwf with replay", path="files, fp32")
    stream = nc_benchmark(
        Photos(setup.files()),
        Photos(setup.files("test")),
        n_experiences=2,
        task_labels=False,
        seed=0,
        train_transform=VIEW,
        eval_transform=VIEW,
    ).train_stream
    strategy = strategy_of(setup, clock)
    try:
        for experience in stream:
            strategy.train(experience, num_workers=setup.workers)
    except DoneError:
        pass


if __name__ == "__main__":
    main()
