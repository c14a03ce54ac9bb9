"""Avalanche's own strategies with our memories; `./scripts/test --adapters` installs it."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from mrdc._utils.errors import UsageError
from tests.conftest import make_photos

pytestmark = [
    pytest.mark.skipif(find_spec("avalanche") is None, reason="needs avalanche-lib"),
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.usefixtures("seeded"),
]
CLASSES, SIDE = 4, 16


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.ReLU(), nn.Flatten())
        self.classifier = nn.Linear(4 * 64, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.classifier(self.features(images))
        return scores


@pytest.fixture
def root(tmp_path: Path) -> Path:
    make_photos(tmp_path / "train", CLASSES, 6)
    make_photos(tmp_path / "test", CLASSES, 2)
    return tmp_path


def benchmark(
    root: Path, task_labels: bool = False, inside: bool = False, watch: list[Any] | None = None
) -> Any:
    """Two experiences of two classes; the transform belongs to the benchmark, or is `inside`.

    `watch` collects the pixels of training images before they are transformed.
    """
    from avalanche.benchmarks import nc_benchmark
    from torchvision import transforms
    from torchvision.datasets import ImageFolder

    view = transforms.Compose([transforms.Resize((SIDE, SIDE)), transforms.ToTensor()])

    def train(image: Image.Image) -> Any:
        if watch is not None:
            watch.append(np.asarray(image))
        return view(image)

    folders = [ImageFolder(root / part, view if inside else None) for part in ("train", "test")]
    return nc_benchmark(
        *folders,
        n_experiences=2,
        task_labels=task_labels,
        shuffle=False,
        train_transform=None if inside else train,
        eval_transform=None if inside else view,
    )


def parts(**more: Any) -> dict[str, Any]:
    net = Net()
    usual = {"criterion": nn.CrossEntropyLoss(), "train_mb_size": 4, "eval_mb_size": 8}
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    return {"model": net, "optimizer": optimizer, "evaluator": None, **usual, **more}


def learn(strategy: Any, made: Any) -> None:
    for experience in made.train_stream:
        strategy.train(experience)
    strategy.eval(made.test_stream)


def test_one_line_of_replay(root: Path) -> None:
    """The budget holds; items are as the benchmark's, with its transform; bytes are the files'."""
    from avalanche.training.supervised import Naive

    from mrdc.adapters.avalanche import byte_replay

    made = benchmark(root)
    plugin = byte_replay("6kB", quality=50, select="herding")
    learn(Naive(**parts(plugins=[plugin])), made)
    policy: Any = plugin.storage_policy
    memory, buffer = policy.memory, policy.buffer
    assert memory.labels == [0, 1, 2, 3]
    assert CLASSES <= len(memory) == len(buffer) < CLASSES * 6
    assert memory.nbytes <= memory.budget_bytes == 6000
    image, target, task = buffer[0]
    assert (image.shape, target, task) == ((3, SIDE, SIDE), 0, 0)
    files = [path.read_bytes() for path in sorted((root / "train" / "class0").iterdir())]
    kept = byte_replay("1MB", quality="original").storage_policy
    learn(Naive(**parts(plugins=[byte_replay_of(kept)])), made)
    assert {kept.memory.encoded(index) for index in range(6)} == set(files)


def byte_replay_of(policy: Any) -> Any:
    from avalanche.training.plugins import ReplayPlugin

    return ReplayPlugin(policy.max_size, storage_policy=policy)


def test_a_quality_is_chosen_by_the_strategys_own_network(root: Path) -> None:
    """It is chosen once, in the first experience."""
    from avalanche.training.supervised import Naive

    from mrdc.adapters.avalanche import byte_replay

    plugin = byte_replay("12kB", classes=CLASSES)
    learn(Naive(**parts(plugins=[plugin])), benchmark(root))
    store = plugin.storage_policy.store
    assert store.found.chosen is not None
    assert (store.memory.codec.name, store.memory.quality) == (
        store.found.chosen.codec,
        store.found.chosen.quality,
    )


@pytest.mark.parametrize("matched", [False, True])
@pytest.mark.parametrize("name", ["Naive", "ICaRL", "DER"])
def test_new_images_can_be_shown_as_they_will_be_stored(
    root: Path, name: str, matched: bool
) -> None:
    """From the second experience on, with the plugin and in strategies with their own buffers."""
    seen: list[Any] = []
    made = benchmark(root, watch=seen)
    strategy, policy = strategy_of(name, quality=10, matched=matched)
    before, new = (pixels_of(root / "train" / folder) for folder in ("class0", "class2"))
    strategy.train(made.train_stream[0])
    assert contains(seen, before)
    seen.clear()
    copies = [policy.memory.as_stored(image) for image in new]
    strategy.train(made.train_stream[1])
    assert (contains(seen, copies), contains(seen, new)) == (matched, not matched)
    assert policy.memory.labels == [0, 1, 2, 3]
    assert np.array_equal(policy.buffer_groups[2].buffer[0][0].shape, (3, SIDE, SIDE))
    strategy.eval(made.test_stream)
    assert policy.store.settings.limits == ((0.5, 1.5) if matched else (0.95, 1.03))


def strategy_of(name: str, **options: Any) -> tuple[Any, Any]:
    """A strategy and the policy that holds its memory."""
    from avalanche.training.supervised import DER, ICaRL, Naive

    from mrdc.adapters.avalanche import byte_replay, use_mrdc

    if name == "Naive":
        plugin = byte_replay("20kB", **options)
        return Naive(**parts(plugins=[plugin])), plugin.storage_policy
    if name == "DER":
        der = DER(**parts(), batch_size_mem=4)
        return der, use_mrdc(der, "20kB", **options)
    net = Net()
    given = {k: v for k, v in parts().items() if k not in ("model", "criterion")}
    given["optimizer"] = torch.optim.SGD(net.parameters(), lr=0.01)
    extra = {"memory_size": 9, "buffer_transform": None, "fixed_memory": True}
    icarl = ICaRL(net.features, net.classifier, **given, **extra)
    return icarl, use_mrdc(icarl, "20kB", **options)


def pixels_of(folder: Path) -> list[Any]:
    return [np.asarray(Image.open(path).convert("RGB")) for path in sorted(folder.iterdir())]


def contains(seen: list[Any], images: list[Any]) -> bool:
    """True if all of the images are there; all or none must be."""
    found = {any(np.array_equal(image, one) for one in seen) for image in images}
    assert len(found) == 1
    return found == {True}


def test_icarl_der_and_task_labels(root: Path) -> None:
    """Strategies with their own kind of storage, and a stream with task labels."""
    from avalanche.training.supervised import Replay

    from mrdc.adapters.avalanche import use_mrdc

    icarl, policy = strategy_of("ICaRL", quality=50)
    learn(icarl, benchmark(root))
    assert len(policy.memory) == 24
    der, held = strategy_of("DER", quality=50)
    learn(der, benchmark(root))
    image, _, _, logits = held.buffer[3]
    assert image.shape == (3, SIDE, SIDE) and logits.shape == (CLASSES,)
    assert np.array_equal(held.memory.values(3)["logits"], logits.numpy())
    replay = Replay(**parts())
    tasks = use_mrdc(replay, "20kB", quality=50)
    learn(replay, benchmark(root, task_labels=True))
    assert {tasks.buffer[index][2] for index in range(len(tasks.buffer))} == {0, 1}


def test_classes_that_come_again(root: Path) -> None:
    """Online streams: the same class in many small experiences."""
    from avalanche.benchmarks.scenarios.online import split_online_stream
    from avalanche.training.supervised import Naive

    from mrdc.adapters.avalanche import byte_replay

    plugin = byte_replay("8kB", quality=50)
    strategy = Naive(**parts(plugins=[plugin]))
    for experience in split_online_stream(benchmark(root).train_stream, experience_size=4):
        strategy.train(experience)
    memory = plugin.storage_policy.memory
    assert [memory.seen(label) for label in memory.labels] == [6, 6, 6, 6]
    assert memory.nbytes <= 8000


def test_refusals(root: Path) -> None:
    """A transform inside the data set, and strategies that store something else."""
    from avalanche.training.supervised import AGEM, FeatureReplay, Naive

    from mrdc.adapters.avalanche import byte_replay, use_mrdc

    strategy = Naive(**parts(plugins=[byte_replay("20kB", quality=50)]))
    with pytest.raises(UsageError, match="of ImageFolder is a Tensor, not a PIL image: leave the"):
        learn(strategy, benchmark(root, inside=True))
    with pytest.raises(UsageError, match="AGEM has no storage policy to replace"):
        use_mrdc(AGEM(**parts(), patterns_per_exp=4), "20kB")
    with pytest.raises(UsageError, match="FeatureReplay stores features, not images"):
        use_mrdc(FeatureReplay(**parts(), last_layer_name="classifier"), "20kB")
