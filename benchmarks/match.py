"""What does quality-matched replay cost: the time of epochs with P = 0.5 over P = 0?

Measured for each place where images are kept, for the feed alone and for training LUCIR with a
teacher: ResNet-18 on a GPU, the narrow network on a CPU.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from common import SEED, compare, emit, machine, options, race, sources
from mrdc.data.examples import Examples
from mrdc.data.photo import Photo
from mrdc.memory.replay import ReplayMemory
from mrdc.methods.options import make_method
from mrdc.nn.settings import TrainSettings
from mrdc.training.architecture import make_architecture
from mrdc.training.batches import Feed
from mrdc.training.feed import Resident, open_feed
from mrdc.training.fit import fit
from mrdc.training.match import copies_of
from mrdc.training.settings import LearnSettings

REPEATS, QUALITY, SIZE = 7, 25, 224
CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")
IMAGES, BATCH, NETWORK = (4096, 128, "resnet18") if CUDA else (256, 32, "resnet18-narrow")
PLACES: tuple[Resident, ...] = ("gpu", "ram", "stream") if CUDA else ("ram", "stream")


def feeds(files: list[bytes], resident: Resident) -> dict[str, Feed]:
    """Feeds without and with matching; half of the images are new, half are in a memory."""
    photos = [Photo(str(n), partial(bytes, file)) for n, file in enumerate(files)]
    half = len(photos) // 2
    memory = ReplayMemory("1GB", "jpeg", QUALITY)
    memory.add({0: photos[half:]})
    examples = Examples(tuple(photos[:half]), (1,) * half) + memory.examples()
    copies = copies_of(examples, np.arange(half), memory, 0.5)
    return {
        "plain": open_feed(examples, SIZE, DEVICE, resident),
        "matched": open_feed(examples, SIZE, DEVICE, resident, copies=copies),
    }


def alone(feed: Feed) -> None:
    """An epoch of views, without training."""
    for _ in feed.epoch(BATCH, SEED, 0):
        pass
    wait()


def training() -> Callable[[Feed], None]:
    """Train LUCIR in its second phase, for one epoch or, on a GPU, three."""
    method = make_method("lucir")
    net = make_architecture(LearnSettings(stem="7x7", network=NETWORK), method).build().to(DEVICE)
    net.head.grow(1)
    old = net.frozen()
    net.head.grow(1)
    net = net.to(DEVICE).to(memory_format=torch.channels_last)
    settings = TrainSettings(epochs=1, batch_size=BATCH, lr=1e-3)
    settings = replace(settings, epochs=3) if CUDA else settings  # the first records a graph

    def epoch(feed: Feed) -> None:
        fit(net, partial(method.loss, net, old), feed, settings, seed=SEED, bf16=CUDA)
        wait()

    return epoch


def wait() -> None:
    if CUDA:
        torch.cuda.synchronize()


def main() -> None:
    args = options(__doc__).parse_args()
    files = sources(args.photos, IMAGES)
    for resident in PLACES:
        made = feeds(files, resident)
        for what, epoch in (("feed", alone), ("step", training())):
            runs = {name: partial(epoch, feed) for name, feed in made.items()}
            for run in runs.values():
                run()
            found = compare(race(REPEATS, **runs), "matched", "plain")
            shape = {"batch": BATCH, "images": IMAGES, "size": SIZE, "quality": QUALITY}
            place = {"resident": resident, "what": what, "network": NETWORK}
            emit("match", label=args.label, **place, **shape, **found, **machine())


if __name__ == "__main__":
    main()
