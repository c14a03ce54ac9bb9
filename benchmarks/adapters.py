"""Which of Avalanche's buffer-based strategies can replay from an mrdc memory?

Needs the `avalanche` extra; `./scripts/test --adapters` creates an environment with it.
"""

import argparse
import signal
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from avalanche.benchmarks import nc_benchmark
from avalanche.models import FeCAMClassifier, NCMClassifier, SCRModel, TrainEvalModel
from avalanche.training import plugins as av_plugins
from avalanche.training import supervised as av
from avalanche.training.plugins.update_fecam import MemoryFeCAMUpdate
from avalanche.training.plugins.update_ncm import MemoryNCMUpdate
from avalanche.training.supervised.lamaml_v2 import LaMAML
from torch import Tensor, nn
from torchvision import transforms
from torchvision.datasets import ImageFolder

from common import SEED, as_jpeg, emit, machine, made_up
from mrdc.adapters.avalanche import byte_replay, use_mrdc

SIDE, CLASSES, BATCH = 32, 6, 8
Strategy = Callable[..., Any]


class Net(nn.Module):
    """A small convolutional network."""

    def __init__(self, classes: int = CLASSES, side: int = SIDE, width: int = 16):
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for step in range(4):
            wide = width * 2**step
            layers += [nn.Conv2d(channels, wide, 3, 2, 1), nn.BatchNorm2d(wide), nn.ReLU()]
            channels = wide
        self.features = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.classifier = nn.Linear(channels, classes)
        self.size = channels

    def forward(self, images: Tensor, task_labels: Tensor | None = None) -> Tensor:
        out: Tensor = self.classifier(self.features(images))
        return out


def parts(model: nn.Module, **more: Any) -> dict[str, Any]:
    """Arguments common to all strategies."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    sizes = {"train_mb_size": BATCH, "eval_mb_size": 32, "train_epochs": 1}
    loss = {"criterion": nn.CrossEntropyLoss()}
    return {"model": model, "optimizer": optimizer, "evaluator": None, **sizes, **loss, **more}


def without_loss(given: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if name != "criterion"}


def naive_with(plugin: Callable[[], Any]) -> Strategy:
    return lambda: av.Naive(**parts(Net(), plugins=[plugin()]))


def prototypes(classifier: Callable[[], nn.Module], plugin: Callable[[], Any]) -> Strategy:
    """A network tested with class means, which are updated from a buffer."""

    def make() -> Any:
        net = Net()
        model = TrainEvalModel(net.features, net.classifier, classifier())
        return av.Naive(**parts(model, plugins=[plugin()]))

    return make


def icarl() -> Any:
    net = Net()
    given = {k: v for k, v in parts(net).items() if k not in ("model", "criterion")}
    return av.ICaRL(
        feature_extractor=net.features,
        classifier=net.classifier,
        memory_size=60,
        buffer_transform=None,
        fixed_memory=True,
        **given,
    )


def er_aml() -> Any:
    net = Net()
    return av.ER_AML(**parts(net), feature_extractor=net.features, batch_size_mem=4)


def scr() -> Any:
    net = Net()
    head = nn.Sequential(nn.Linear(net.size, 32), nn.ReLU(), nn.Linear(32, 16))
    model = SCRModel(net.features, head)
    return av.SCR(**without_loss(parts(model)), batch_size_mem=8, mem_size=60)


# by name: how our memory is plugged in, and the unmodified strategy
STRATEGIES: dict[str, tuple[str, Strategy]] = {
    "Naive + ReplayPlugin": ("plugins=[byte_replay(...)]", naive_with(av_plugins.ReplayPlugin)),
    "Replay": ("use_mrdc", lambda: av.Replay(**parts(Net()))),
    "LwF + ReplayPlugin": (
        "plugins=[byte_replay(...)]",
        lambda: av.LwF(
            **parts(Net()), alpha=1.0, temperature=2.0, plugins=[av_plugins.ReplayPlugin()]
        ),
    ),
    "EWC + ReplayPlugin": (
        "plugins=[byte_replay(...)]",
        lambda: av.EWC(**parts(Net()), ewc_lambda=1.0, plugins=[av_plugins.ReplayPlugin()]),
    ),
    "GDumb": ("use_mrdc", lambda: av.GDumb(**parts(Net()))),
    "ICaRL": ("use_mrdc", icarl),
    "MIR": ("use_mrdc", lambda: av.MIR(**parts(Net()), mem_size=60, subsample=20)),
    "ER_ACE": ("use_mrdc", lambda: av.ER_ACE(**without_loss(parts(Net())), batch_size_mem=8)),
    "ER_AML": ("use_mrdc", er_aml),
    "SCR": ("use_mrdc", scr),
    "MER": ("use_mrdc", lambda: av.MER(**parts(Net()), batch_size_mem=4, n_inner_steps=1)),
    "RAR": (
        "use_mrdc",
        naive_with(lambda: av_plugins.RARPlugin(8, name_ext_layer="features")),
    ),
    "CoPE": (
        "use_mrdc",
        lambda: av.CoPE(**parts(Net()), n_classes=CLASSES, p_size=CLASSES),
    ),
    "MemoryNCMUpdate": ("use_mrdc", prototypes(NCMClassifier, MemoryNCMUpdate)),
    "MemoryFeCAMUpdate": ("use_mrdc", prototypes(FeCAMClassifier, MemoryFeCAMUpdate)),
    "LaMAML": ("use_mrdc", lambda: LaMAML(**parts(Net()))),
    "BiC": ("use_mrdc", lambda: av.BiC(**parts(Net()), stage_2_epochs=1)),
    "DER": ("use_mrdc", lambda: av.DER(**parts(Net()), batch_size_mem=8)),
    "FeatureReplay": (
        "use_mrdc",
        lambda: av.FeatureReplay(**without_loss(parts(Net())), last_layer_name="classifier"),
    ),
    "GSS_greedy": ("use_mrdc", lambda: av.GSS_greedy(**parts(Net()), input_size=[3, SIDE, SIDE])),
    "GEM": ("use_mrdc", lambda: av.GEM(**parts(Net()), patterns_per_exp=20)),
    "AGEM": ("use_mrdc", lambda: av.AGEM(**parts(Net()), patterns_per_exp=20)),
}


def make_photos(root: Path, classes: int = CLASSES, train: int = 12, test: int = 2) -> Path:
    """Write folders of small synthetic JPEG files."""
    for label in range(classes):
        images = made_up(train + test, SIDE, seed=label)
        for number, pixels in enumerate(images):
            folder = root / ("train" if number < train else "test") / f"class{label}"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{number:03d}.jpg").write_bytes(as_jpeg(pixels))
    return root


def make_benchmark(root: Path, experiences: int, side: int, classes: int | None = None) -> Any:
    """Class-incremental experiences over folders; files are decoded on access."""
    augment = [transforms.RandomResizedCrop(side, (0.5, 1)), transforms.RandomHorizontalFlip()]
    plain = [transforms.Resize(side), transforms.CenterCrop(side)]
    tensor = [transforms.ToTensor(), transforms.Normalize([0.5] * 3, [0.25] * 3)]
    train, test = (ImageFolder(root / split) for split in ("train", "test"))
    return nc_benchmark(
        train,
        test,
        n_experiences=experiences,
        task_labels=False,
        seed=SEED,
        train_transform=transforms.Compose(augment + tensor),
        eval_transform=transforms.Compose(plain + tensor),
    )


@contextmanager
def at_most(seconds: int) -> Iterator[None]:
    """Stop a strategy that does not finish."""

    def stop(*_: Any) -> None:
        raise TimeoutError(f"did not end within {seconds} s")

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)


def attempt(make: Strategy, benchmark: Any) -> tuple[Any, str]:
    """The strategy after all experiences, and what went wrong, if anything."""
    strategy = None
    try:
        with at_most(120):
            torch.manual_seed(SEED)
            strategy = make()
            for experience in benchmark.train_stream:
                strategy.train(experience)
            strategy.eval(benchmark.test_stream)
    except Exception as error:
        return strategy, f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    return strategy, ""


def with_ours(how: str, make: Strategy, budget: str) -> tuple[Strategy, list[Any]]:
    """The same strategy with our memory, and a list to which it adds its storage policy."""
    policies: list[Any] = []

    def changed() -> Any:
        strategy = make()
        if how == "use_mrdc":
            policies.append(use_mrdc(strategy, budget, quality=50))
            return strategy
        (place,) = [n for n, p in enumerate(strategy.plugins) if type(p) is av_plugins.ReplayPlugin]
        strategy.plugins[place] = byte_replay(budget, quality=50)
        policies.append(strategy.plugins[place].storage_policy)
        return strategy

    return changed, policies


def strategies(only: str | None) -> None:
    """Run every strategy with its own buffer and with our memory."""
    budget = "14kB"
    with tempfile.TemporaryDirectory() as folder:
        benchmark = make_benchmark(make_photos(Path(folder)), 3, SIDE)
        for name, (how, make) in STRATEGIES.items():
            if only not in (None, name):
                continue
            stock = attempt(make, benchmark)[1]
            changed, policies = with_ours(how, make, budget)
            ours = attempt(changed, benchmark)[1]
            held = policies[0].memory if policies and not ours else None
            emit(
                "adapters",
                question="strategies",
                strategy=name,
                how=how,
                stock=stock,
                ours=ours,
                images=len(held) if held else 0,
                bytes=held.nbytes if held else 0,
                budget=budget,
                avalanche=version("avalanche-lib"),
                **machine(),
            )


def main() -> None:
    warnings.filterwarnings("ignore")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="name of one strategy; default: all")
    strategies(parser.parse_args().only)


if __name__ == "__main__":
    main()
