"""Replay compressed images in a training loop of your own.

    python examples/training_loop.py

Ten synthetic classes arrive two at a time. After each phase the new images go into a
`ReplayMemory`, ranked by herding, and the next phase trains on new images and memory together,
through an ordinary DataLoader. Originals are compared with JPEG files of quality 50 and 10 in the
same number of bytes. At 10 a network can learn "blocky means old", unless new images are shown as
they will be stored (`as_stored`). Takes half a minute on a CPU.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, DataLoader, Dataset

import mrdc

BUDGET = "60kB"  # the saved file is never larger
EPOCHS = 4


class Images(Dataset[tuple[Tensor, int]]):
    """New images: any map-style dataset of (image, label) will do; `show` is a transform."""

    def __init__(
        self, photos: list[mrdc.Photo], labels: list[int], show: Callable[[Any], Any] | None = None
    ):
        self.photos, self.labels, self.show = photos, labels, show

    def __len__(self) -> int:
        return len(self.photos)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        pixels = self.photos[index].pixels()
        shown = torch.from_numpy(pixels if self.show is None else self.show(pixels))
        return to_float(shown.permute(2, 0, 1)), self.labels[index]


def to_float(image: Tensor) -> Tensor:
    """The transform of both datasets: uint8 (3, h, w) to floats around 0."""
    return image.float() / 128 - 1


class Network(nn.Module):
    """Three convolutions; `features` is what images are ranked by."""

    def __init__(self, classes: int):
        super().__init__()
        layers: list[nn.Module] = []
        for wide, narrow in ((16, 3), (32, 16), (64, 32)):
            layers += [nn.Conv2d(narrow, wide, 3, stride=2), nn.BatchNorm2d(wide), nn.ReLU()]
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(64, classes)

    def features(self, images: Tensor) -> Tensor:
        maps: Tensor = self.body(images)
        return maps.mean((2, 3))

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.head(self.features(images))
        return scores


def part(photos: Sequence[list[mrdc.Photo]], labels: range) -> Images:
    """The images of some classes."""
    pairs = [(photo, label) for label in labels for photo in photos[label]]
    return Images([photo for photo, _ in pairs], [label for _, label in pairs])


def learn(
    stream: mrdc.Stream, memory: mrdc.ReplayMemory | None, matched: bool = False, seed: int = 0
) -> list[float]:
    """Accuracy over the classes seen, in percent, after each phase."""
    torch.manual_seed(seed)
    network = Network(len(stream.classes))
    optimiser = torch.optim.AdamW(network.parameters(), lr=3e-3)
    accuracies = []
    for labels in stream.phases:
        new = part(stream.train.photos, labels)
        if memory is not None and matched:
            new.show = memory.as_stored  # one line, and new images look like replayed ones
        train(network, optimiser, new, memory)
        if memory is not None:
            memory.add({label: ranked(network, stream, label) for label in labels})
        accuracies.append(accuracy(network, part(stream.test.photos, range(labels.stop))))
    return accuracies


def train(
    network: Network,
    optimiser: torch.optim.Optimizer,
    new: Images,
    memory: mrdc.ReplayMemory | None,
) -> None:
    """Train on new images and memory together."""
    network.train()
    parts: list[Dataset[tuple[Tensor, int]]] = [new]
    if memory is not None and len(memory):
        parts.append(memory)
    for _ in range(EPOCHS):
        for images, labels in DataLoader(ConcatDataset(parts), batch_size=16, shuffle=True):
            loss = F.cross_entropy(network(images), labels)
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()


@torch.no_grad()
def ranked(network: Network, stream: mrdc.Stream, label: int) -> list[mrdc.Photo]:
    """The images of a class, best first: the memory keeps as many of them as fit."""
    images = part(stream.train.photos, range(label, label + 1))
    features = network.eval().features(torch.stack([images[i][0] for i in range(len(images))]))
    order = mrdc.SELECTORS["herding"](features, len(images), 0)
    return [images.photos[index] for index in order]


@torch.no_grad()
def accuracy(network: Network, data: Images) -> float:
    """Percent of images whose class gets the highest score."""
    network.eval()
    right = [
        (network(images).argmax(1) == labels).float()
        for images, labels in DataLoader(data, batch_size=100)
    ]
    return 100 * torch.cat(right).mean().item()


def main() -> None:
    torch.set_num_threads(1)  # faster for a network this small
    stream = mrdc.open_stream("textures", phases=5, first="equal")

    def jpeg(quality: int) -> mrdc.ReplayMemory:
        return mrdc.ReplayMemory(BUDGET, codec="jpeg", quality=quality, transform=to_float)

    memories = {
        "no memory": None,
        "originals": mrdc.ReplayMemory(BUDGET, codec="original", transform=to_float),
        "JPEG 50": jpeg(50),
        "JPEG 10": jpeg(10),
        "JPEG 10, matched": jpeg(10),
    }
    print(f"memory of {BUDGET}    images   bytes  accuracy after each phase, %")
    for name, memory in memories.items():
        found = learn(stream, memory, matched="matched" in name)
        scores = "  ".join(f"{score:5.1f}" for score in found)
        images, size = (len(memory), memory.nbytes) if memory is not None else (0, 0)
        print(f"{name:<16}  {images:6}  {size:6}  {scores}")


if __name__ == "__main__":
    main()
