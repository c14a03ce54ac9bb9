"""Open a feed: training views of examples that stay encoded, in RAM, or on the GPU.

Every feed first scales images that are more than twice as long as a view down to that, so that
all of them show the same pictures.
"""

from pathlib import Path
from typing import Literal

import numpy as np
import torch

from mrdc._utils.ranks import local_ranks
from mrdc.data.examples import Companions, Examples
from mrdc.training.batches import Feed
from mrdc.training.gpu_feed import GpuFeed
from mrdc.training.host_feed import HostFeed
from mrdc.training.pictures import Decoded, Files
from mrdc.training.stream_feed import StreamFeed, nvjpeg

Resident = Literal["auto", "gpu", "ram", "stream"]
SHARE = 0.4  # of free memory that images may take
CPU = torch.device("cpu")


def open_feed(
    examples: Examples,
    size: int,
    device: torch.device,
    resident: Resident = "auto",
    threads: int | None = None,
    compiled: bool = False,
    companions: Companions | None = None,
) -> Feed:
    """A feed that keeps the images in the fastest place with room for them."""
    where = _where(examples, size, device) if resident == "auto" else resident
    room = SHARE * free_memory(CPU)
    if where == "gpu":
        return GpuFeed(examples, size, device, threads, compiled, companions, room=room)
    files = Files(examples.photos, 2 * size, room, threads)
    images = Decoded(files, threads) if where == "ram" else files
    if device.type != "cuda":
        return HostFeed(images, examples.labels, size, device, threads, companions)
    decoder = nvjpeg(device) if where == "stream" else None
    return StreamFeed(images, examples.labels, size, device, threads, compiled, companions, decoder)


def _where(examples: Examples, size: int, device: torch.device) -> Resident:
    """The fastest place with room, estimated from a sample."""
    places = np.linspace(0, len(examples) - 1, min(len(examples), 32)).astype(int)
    sides = [examples[int(place)][0].shape[1:] for place in places]
    if device.type == "cuda":
        height, width = (min(max(side[i] for side in sides), 2 * size) for i in (0, 1))
        if 3 * height * width * len(examples) < SHARE * free_memory(device):
            return "gpu"
    mean = sum(3 * height * width for height, width in sides) / len(sides)
    room = SHARE * free_memory(CPU)
    return "ram" if mean * len(examples) < room else "stream"


def free_memory(device: torch.device) -> int:
    """Free bytes on a device, shared with other ranks; a guess if the system does not say."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvail"))
        return free // local_ranks()
    except (OSError, StopIteration):
        return 4 << 30
