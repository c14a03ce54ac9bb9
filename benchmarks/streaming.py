"""Images/s by where a feed keeps its images, compared with a DataLoader with workers.

For `feed`, views are only made and sent to the device; for `train`, a method with a teacher also
takes a step on every batch. The feeds take turns, epoch by epoch. `ratio` is to the DataLoader.

    python benchmarks/streaming.py photos/train --label photos --compile
"""

import argparse
import io
import time
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from common import SEED, emit, machine
from mrdc._utils.ranks import cores
from mrdc.data.examples import Examples, from_images
from mrdc.data.splits import open_images
from mrdc.methods.options import make_method
from mrdc.nn.compile import compiled
from mrdc.nn.settings import TrainSettings
from mrdc.training.architecture import make_architecture
from mrdc.training.batches import Feed
from mrdc.training.feed import SHARE, free_memory, open_feed
from mrdc.training.fit import Step
from mrdc.training.pictures import Files
from mrdc.training.settings import LearnSettings
from mrdc.training.stream_feed import StreamFeed

SIZE = 224
CLASSES = (100, 20)  # known to the teacher, and new
Take = Callable[[Tensor, Tensor], object]


class Opened(Dataset[tuple[Tensor, int]]):
    """The same images, opened as usual; uint8, so that less data is moved than usual."""

    def __init__(self, examples: Examples):
        self.examples = examples
        self.view = transforms.Compose(
            [
                transforms.RandomResizedCrop(SIZE),
                transforms.RandomHorizontalFlip(),
                transforms.PILToTensor(),
            ]
        )

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        data = self.examples.photos[index].load()
        assert isinstance(data, bytes)
        image = Image.open(io.BytesIO(data)).convert("RGB")
        return self.view(image), self.examples.labels[index]


class LoaderFeed:
    """A DataLoader as a feed."""

    def __init__(self, examples: Examples, batch: int, device: torch.device, workers: int):
        self.device, self.count = device, len(examples)
        self.loader = DataLoader(
            Opened(examples),
            batch,
            shuffle=True,
            num_workers=workers,
            persistent_workers=workers > 0,
            pin_memory=device.type == "cuda",
        )

    def __len__(self) -> int:
        return self.count

    def epoch(self, batch_size: int, seed: int, epoch: int) -> Iterator[tuple[Tensor, ...]]:
        for images, labels in self.loader:
            yield tuple(part.to(self.device, non_blocking=True) for part in (images, labels))


def feeds(args: argparse.Namespace, device: torch.device) -> dict[str, Callable[[], Feed]]:
    """How to open each feed."""
    images = open_images(args.data)
    examples = from_images(images)
    if args.images:
        examples = examples.pick(range(0, len(examples), max(1, len(examples) // args.images)))
    labels = tuple(label % sum(CLASSES) for label in examples.labels)
    examples = Examples(examples.photos, labels)
    here = partial(open_feed, examples, SIZE, device)
    workers = args.workers or cores()
    found: dict[str, Callable[[], Feed]] = {
        "loader": partial(LoaderFeed, examples, args.batch, device, workers),
        "ram": partial(here, "ram", threads=args.workers),
        "stream": partial(here, "stream", args.workers, args.compile),
    }
    if device.type == "cuda":
        found["stream, no nvJPEG"] = partial(without_decoder, examples, device, args)
        found["gpu"] = partial(here, "gpu", args.workers, args.compile)
    return {name: found[name] for name in found if not args.feeds or name in args.feeds}


def without_decoder(
    examples: Examples, device: torch.device, args: argparse.Namespace
) -> StreamFeed:
    """A stream that decodes all images in processes, without nvJPEG."""
    files = Files(examples.photos, 2 * SIZE, SHARE * free_memory(torch.device("cpu")), args.workers)
    return StreamFeed(files, examples.labels, SIZE, device, args.workers, args.compile)


def trainer(args: argparse.Namespace, device: torch.device) -> Take:
    """A step of the method with a teacher, as a run takes it."""
    method = make_method(args.method)
    net = make_architecture(LearnSettings(stem="7x7"), method).build().to(device)
    net.head.grow(CLASSES[0])
    net = net.to(device).to(memory_format=torch.channels_last)
    old = net.frozen()
    net.head.grow(CLASSES[1])
    net.to(device).train()
    if args.compile:
        for one in (net, old):
            one.compiled = frozenset([args.batch]), compiled(one)
    trained = [p for p in net.parameters() if p.requires_grad]
    loss = partial(method.loss, net, old)
    cuda = device.type == "cuda"
    bf16 = cuda and not args.fp32
    return Step(loss, trained, TrainSettings(batch_size=args.batch, lr=0.01), None, bf16, cuda)


def rate(feed: Feed, take: Take, batch: int, epoch: int, device: torch.device) -> float:
    """Images/s of an epoch."""
    start = time.perf_counter()
    for images, labels, *_ in feed.epoch(batch, SEED, epoch):
        take(images, labels)
    if device.type == "cuda":
        torch.cuda.synchronize()
    return len(feed) / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", help="a folder of images by class, or anything that plan reads")
    parser.add_argument("--label", default="photos", help="name of the images in the results")
    parser.add_argument("--method", default="lucir")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--images", type=int, help="use about this many; default: all")
    parser.add_argument("--epochs", type=int, default=3, help="to measure, after one to warm up")
    parser.add_argument("--workers", type=int, help="processes; default: one per core")
    parser.add_argument("--feeds", nargs="+", help="such as loader stream gpu; default: all")
    parser.add_argument("--fp32", action="store_true", help="instead of bf16 on a GPU")
    parser.add_argument("--compile", action="store_true", help="compile on a GPU, as long runs do")
    parser.add_argument("--no-train", action="store_true", help="measure only the feeds")
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cudnn.benchmark = True
    opened: dict[str, Feed] = {}
    seconds: dict[str, float] = {}
    for name, make in feeds(args, device).items():
        start = time.perf_counter()
        opened[name] = make()
        seconds[name] = time.perf_counter() - start
    kinds: dict[str, Callable[[], Take]] = {"feed": lambda: lambda images, labels: None}
    if not args.no_train:
        kinds["train"] = partial(trainer, args, device)
    for kind, make_taker in kinds.items():
        takers = {name: make_taker() for name in opened}  # one each: batches differ in type
        rates: dict[str, list[float]] = {name: [] for name in opened}
        for epoch in range(args.epochs + 1):
            for name, feed in opened.items():
                rates[name].append(rate(feed, takers[name], args.batch, epoch, device))
        for name, found in rates.items():
            fields: dict[str, object] = {
                "what": kind,
                "feed": name,
                "images_per_second": median(found[1:]),
                "first_epoch": found[0],
                "open_seconds": seconds[name],
                "images": len(opened[name]),
                "batch": args.batch,
                "workers": args.workers or cores(),
                "label": args.label,
            }
            if isinstance(feed := opened[name], StreamFeed):
                fields |= {"by_nvjpeg": int(feed.fast.sum()), "measured": feed.rates}
            if "loader" in rates:
                pairs = zip(found[1:], rates["loader"][1:], strict=True)
                fields["ratio"] = median(a / b for a, b in pairs)
            if kind == "train":
                fields |= {"method": args.method, "compile": args.compile, "fp32": args.fp32}
            emit("streaming", **fields, **machine())


if __name__ == "__main__":
    main()
