"""Replay in a training loop over a data set of your own.

    python examples/replay.py

Ten synthetic classes arrive two at a time. `Replay` ranks the new images by the features of the
network in training, chooses a JPEG quality once, and stores what fits into 60 kB; while the next
classes are learned, every batch gets as many old images. Takes a few seconds on a CPU.
"""

from itertools import chain

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import mrdc

EPOCHS = 4


class Photos(Dataset[tuple[Tensor, int]]):
    """Stands in for your own data: a map-style data set of (image, label)."""

    def __init__(self, images: list[Tensor], labels: list[int]):
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return to_float(self.images[index]), self.labels[index]


def to_float(image: Tensor) -> Tensor:
    """Your transform: uint8 (3, h, w) to floats around 0."""
    return image.float() / 128 - 1


def learn(network: nn.Sequential, tasks: list[Photos], replay: mrdc.Replay | None) -> None:
    """The ten lines: train on each task, with old images in every batch."""
    optimiser = torch.optim.AdamW(network.parameters(), lr=3e-3)
    for task in tasks:
        loader = DataLoader(task, batch_size=16, shuffle=True)
        for images, labels in chain(*[loader] * EPOCHS):
            if replay:
                old_images, old_labels = replay.sample(len(images))
                images, labels = torch.cat([images, old_images]), torch.cat([labels, old_labels])
            loss = F.cross_entropy(network(images), labels)
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        if replay is not None:
            by_label: dict[int, list[Tensor]] = {}
            for image, label in zip(task.images, task.labels, strict=True):
                by_label.setdefault(label, []).append(image)
            replay.learn(by_label)


def make_network(classes: int) -> nn.Sequential:
    """Three convolutions that make features, and a classifier."""
    layers: list[nn.Module] = []
    for wide, narrow in ((16, 3), (32, 16), (64, 32)):
        layers += [nn.Conv2d(narrow, wide, 3, stride=2), nn.BatchNorm2d(wide), nn.ReLU()]
    pool = [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(nn.Sequential(*layers, *pool), nn.Linear(64, classes))


def part(photos: tuple[list[mrdc.Photo], ...], labels: range) -> Photos:
    """The images of some classes as tensors."""
    pairs = [(photo, label) for label in labels for photo in photos[label]]
    images = [torch.from_numpy(photo.pixels()).permute(2, 0, 1) for photo, _ in pairs]
    return Photos(images, [label for _, label in pairs])


@torch.no_grad()
def accuracy(network: nn.Module, data: Photos) -> float:
    """Percent of images whose class gets the highest score."""
    images, labels = next(iter(DataLoader(data, len(data))))
    right = network.eval()(images).argmax(1) == labels
    return 100 * float(right.float().mean())


def main() -> None:
    torch.set_num_threads(1)  # faster for a network this small
    stream = mrdc.open_stream("textures", phases=5, first="equal")
    tasks = [part(stream.train.photos, labels) for labels in stream.phases]
    for name in ("no replay", "replay"):
        torch.manual_seed(0)
        network, replay = make_network(10), None
        if name == "replay":
            replay = mrdc.Replay(
                "60kB", embed=network[0], view=to_float, transform=to_float, classes=10
            )
        learn(network, tasks, replay)
        score = accuracy(network, part(stream.test.photos, range(10)))
        print(f"{name:<9}  accuracy {score:4.1f} %  {replay.memory if replay else ''}")


if __name__ == "__main__":
    main()
