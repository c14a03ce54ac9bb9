"""Training speed of PyCIL in images/s, without and with a teacher (iCaRL).

Needs a clone of PyCIL. Its ResNet-18 has a 7x7 stem only if all phases have equally many classes.
"""

from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch

from timing import (
    PHASES,
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


def use_photos(data: Any, setup: Setup) -> None:
    """Make PyCIL's ImageNet-100 read our folder; its users edit the path in the code."""

    def found(self: Any) -> None:
        for split in ("train", "test"):
            paths, labels = zip(*setup.files(split), strict=True)
            setattr(self, f"{split}_data", np.array(paths))
            setattr(self, f"{split}_targets", np.array(labels))

    data.iImageNet100.download_data = found


def keep_first(learner: Any, count: int, manager: Any, per_class: int) -> None:
    """Keep the first images of each class: PyCIL's selection is slow and not measured."""
    data, labels = [], []
    for label in range(learner._known_classes, learner._total_classes):
        paths, _, _ = manager.get_dataset([label], source="train", mode="test", ret_data=True)
        data.append(paths[:count])
        labels.append(np.full(len(data[-1]), label))
    learner._data_memory, learner._targets_memory = np.concatenate(data), np.concatenate(labels)


def watched(learner: Any, name: str, clock: Clock) -> None:
    """Put a clock around the loader of a training stage."""
    stage = getattr(learner, name)
    setattr(learner, name, lambda loader, *rest: stage(Timed(loader, clock), *rest))


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--pycil", type=Path, required=True, help="a clone of PyCIL")
    given = parser.parse_args()
    setup, folder = setup_of(given), clone(given.pycil, "models/icarl.py")
    icarl: Any = import_module("models.icarl")
    icarl.batch_size, icarl.num_workers = setup.batch, setup.workers
    icarl.init_epoch = icarl.epochs = setup.epochs + 1
    use_photos(import_module("utils.data"), setup)
    import_module("trainer")._set_random()  # as its own runs do: deterministic kernels
    facts = {"init_cls": setup.classes, "increment": setup.classes, "memory_size": setup.held}
    settings = {"model_name": "icarl", "convnet_type": "resnet18", "dataset": "imagenet100"}
    device = {"device": [torch.device(setup.device)]}
    manager = import_module("utils.data_manager").DataManager(
        "imagenet100", True, 0, setup.classes, setup.classes
    )
    learner = import_module("utils.factory").get_model("icarl", {**settings, **facts, **device})
    require_resnet18(learner._network)
    learner.build_rehearsal_memory = partial(keep_first, learner, setup.kept * setup.repeat)
    version = version_of(folder, given.version)
    clock = Clock(setup, library="PyCIL", version=version, method="icarl", path="files, fp32")
    watched(learner, "_init_train", clock)
    watched(learner, "_update_representation", clock)
    try:
        for _ in range(PHASES):
            learner.incremental_train(manager)
            learner.after_task()
    except DoneError:
        pass


if __name__ == "__main__":
    main()
