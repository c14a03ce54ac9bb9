"""How much do Avalanche's buffers and ours hold in the same bytes, and how fast are they read?

python benchmarks/buffers.py bytes --photos CUB       images held and accuracy in the same bytes
python benchmarks/buffers.py matched --photos CIFAR   accuracy with and without matching
python benchmarks/buffers.py throughput               images/s from a buffer
"""

import tempfile
import time
import warnings
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from avalanche.models import SlimResNet18
from avalanche.training import plugins as av_plugins
from avalanche.training import supervised as av
from avalanche.training.storage_policy import ReservoirSamplingBuffer
from torch import Tensor, nn
from torch.utils.data import DataLoader

from adapters import make_benchmark, parts
from common import emit, machine, options, race, sources
from mrdc.adapters.avalanche import ByteBuffer, byte_replay, use_mrdc
from mrdc.data.crops import centre_crop
from mrdc.nn.lite0 import lite0


def accuracy(model: nn.Module, tests: list[tuple[Tensor, Tensor]]) -> float:
    """Percent correct over the test images of the experiences so far."""
    model.eval()
    with torch.no_grad():
        right = [(model(images).argmax(1) == labels).float() for images, labels in tests]
    return 100 * float(torch.cat(right).mean())


def loaded(experience: Any) -> tuple[Tensor, Tensor]:
    """Test images of an experience as tensors."""
    data = experience.dataset.eval()
    items = [data[index] for index in range(len(data))]
    return torch.stack([item[0] for item in items]), torch.tensor([item[1] for item in items])


class Features(nn.Module):
    """Pretrained EfficientNet-Lite0, frozen; only a head on top of it learns."""

    def __init__(self) -> None:
        super().__init__()
        self.network = lite0().requires_grad_(False)

    def forward(self, images: Tensor) -> Tensor:
        self.network.eval()
        with torch.no_grad():
            return F.normalize(self.network.features(images))


class Frozen(nn.Module):
    """Fixed features and a linear head."""

    def __init__(self, classes: int):
        super().__init__()
        self.features = Features()
        self.classifier = nn.Linear(1280, classes)

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.classifier(self.features(images))
        return scores


def learner(method: str, classes: int, epochs: int, images: int | None, budget: str) -> Any:
    """Naive with replay, or iCaRL, with a buffer of `images` images, or with our memory if None."""
    net = Frozen(classes)
    given = parts(net) | {"train_mb_size": 16, "train_epochs": epochs}
    given["optimizer"] = torch.optim.SGD(net.classifier.parameters(), lr=1.0, momentum=0.9)
    if method == "Naive":
        plugin = byte_replay(budget, classes=classes)
        if images is not None:
            plugin = av_plugins.ReplayPlugin(images)
        return av.Naive(**given, plugins=[plugin]), plugin.storage_policy
    given = {k: v for k, v in given.items() if k not in ("model", "criterion")}
    memory = {"memory_size": images or 1, "buffer_transform": None, "fixed_memory": True}
    strategy = av.ICaRL(net.features, net.classifier, **given, **memory)
    return strategy, use_mrdc(strategy, budget, classes=classes) if images is None else None


def same_bytes(photos: Path, label: str, epochs: int, seeds: int) -> None:
    """Accuracy with Avalanche's own buffers and with ours, and images held in the same bytes."""
    side, budget, experiences = 96, "2MB", 4
    files = list((photos / "train").glob("*/*"))
    file_bytes = sum(path.stat().st_size for path in files) / len(files)
    counts = {
        "float32 tensors": int(2e6 // (4 * 3 * side * side)),
        "files": int(2e6 // file_bytes),
        "mrdc": None,
    }
    benchmark = make_benchmark(photos, experiences, side)
    tests = [loaded(experience) for experience in benchmark.test_stream]
    classes = benchmark.n_classes
    for seed in range(seeds):
        for method in ("Naive", "ICaRL"):
            for arm, images in counts.items():
                torch.manual_seed(seed)
                strategy, policy = learner(method, classes, epochs, images, budget)
                scores, start = [], time.perf_counter()
                for number, experience in enumerate(benchmark.train_stream, start=1):
                    strategy.train(experience)
                    scores.append(accuracy(strategy.model, tests[:number]))
                held = policy.memory if images is None else None
                emit(
                    "adapters",
                    question="bytes",
                    label=label,
                    method=method,
                    arm=arm,
                    budget=budget,
                    images=images if held is None else len(held),
                    quality=None if held is None else held.quality,
                    accuracy=[round(score, 2) for score in scores],
                    mean_accuracy=sum(scores) / len(scores),
                    epochs=epochs,
                    side=side,
                    classes=classes,
                    run_seed=seed,
                    seconds=time.perf_counter() - start,
                    **machine(),
                )


# Matching


def matched(photos: Path, label: str, epochs: int, seeds: int) -> None:
    """Accuracy of Naive with replay of quality 10, new images as they are and as stored."""
    side, budget = 32, "100kB"
    benchmark = make_benchmark(photos, 5, side)
    tests = [loaded(experience) for experience in benchmark.test_stream]
    for seed in range(seeds):
        scores: dict[str, list[float]] = {}
        for arm, shown in (("plain", False), ("matched", True)):
            torch.manual_seed(seed)
            net = SlimResNet18(benchmark.n_classes)
            plugin = byte_replay(budget, quality=10, matched=shown)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
            given = parts(net) | {"optimizer": optimizer, "train_mb_size": 32}
            strategy = av.Naive(**given | {"train_epochs": epochs}, plugins=[plugin])
            found = scores[arm] = []
            for number, experience in enumerate(benchmark.train_stream, start=1):
                strategy.train(experience)
                found.append(round(accuracy(net, tests[:number]), 2))
        emit(
            "adapters",
            question="matched",
            label=label,
            images=len(plugin.storage_policy.memory),
            **scores,
            quality=10,
            budget=budget,
            epochs=epochs,
            side=side,
            run_seed=seed,
            **machine(),
        )


# Throughput


def drain(batches: Iterable[Any]) -> None:
    for _ in batches:
        pass


def throughput(photos: Path | None, label: str) -> None:
    """Images/s of a training epoch from each buffer, on one thread."""
    side, images = 224, 256
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "train" / "a"
        root.mkdir(parents=True)
        for number, data in enumerate(sources(photos, images)):
            (root / f"{number:04d}.jpg").write_bytes(data)
        (Path(folder) / "test").symlink_to(Path(folder) / "train")
        experience = make_benchmark(Path(folder), 1, side).train_stream[0]
        stock = ReservoirSamplingBuffer(images)
        stock.post_adapt(None, experience)
        policy = ByteBuffer("1GB", quality=50, select="random_choice")
        policy.post_adapt(None, experience)
        memory = policy.memory
        memory.transform = partial(centre_crop, size=side)
        tensors = torch.stack([stock.buffer[index][0] for index in range(images)])
        order = torch.randperm(images)
        runs: dict[str, Callable[[], object]] = {
            "avalanche": lambda: drain(DataLoader(stock.buffer, 32, shuffle=True)),
            "buffer": lambda: drain(DataLoader(policy.buffer, 32, shuffle=True)),
            "batches": lambda: drain(memory.batches(32, side, threads=1)),
            "sample": lambda: drain(memory.sample(32) for _ in range(images // 32)),
            "tensors": lambda: drain(tensors[order[n : n + 32]] for n in range(0, images, 32)),
        }
        times = race(5, **runs)
    rates = {f"{name}_rate": images / min(found) for name, found in times.items()}
    size = {"images": images, "side": side, "float_bytes": tensors.nbytes}
    emit(
        "adapters",
        question="throughput",
        label=label,
        **rates,
        **size,
        bytes=memory.nbytes,
        **machine(),
    )


def main() -> None:
    warnings.filterwarnings("ignore")
    parser = options(__doc__)
    parser.add_argument("question", choices=["bytes", "matched", "throughput"])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=2)
    args = parser.parse_args()
    if args.question == "throughput":
        throughput(args.photos, args.label)
    elif args.photos is None:
        parser.error(f"{args.question} needs --photos FOLDER, with train/ and test/ of classes")
    else:
        measure = same_bytes if args.question == "bytes" else matched
        measure(args.photos, args.label, args.epochs, args.seeds)


if __name__ == "__main__":
    main()
