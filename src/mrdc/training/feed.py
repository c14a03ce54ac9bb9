"""Open a feed: training views of examples that stay encoded, in RAM, or on the GPU.

Every feed first scales images that are more than twice as long as a view down to that, so that
all of them show the same pictures.
"""

from typing import Literal

import numpy as np
import torch

from mrdc._utils.ram import free_ram
from mrdc._utils.ranks import local_ranks
from mrdc.data.examples import Companions, Examples
from mrdc.distributed.group import world
from mrdc.training.batches import ReportingFeed
from mrdc.training.gpu_feed import GpuFeed
from mrdc.training.host_feed import HostFeed
from mrdc.training.match import Copies, with_copies
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
    copies: Copies | None = None,
) -> ReportingFeed:
    """A feed that keeps images, and their copies after them, where they are asked for.

    "auto": on the GPU if they fit; else as files if nvJPEG decodes them faster than this machine's
    cores, which is measured; else decoded in RAM if they fit; else as files.
    """
    places: list[Resident] = [resident]
    everything = with_copies(examples, copies)
    if resident == "auto":
        places = world().lead(lambda: places_with_room(everything, size, device))
    room, labels = SHARE * free_memory(CPU), examples.labels
    if "gpu" in places:
        return GpuFeed(examples, size, device, threads, compiled, companions, copies, room=room)
    files = Files(everything.photos, 2 * size, room, threads)
    cuda = device.type == "cuda"
    if cuda and "stream" in places:
        feed = StreamFeed(
            files, labels, size, device, threads, compiled, companions, copies, nvjpeg(device)
        )
        feed.measure()
        if feed.fast.any() or "ram" not in places:
            return feed
    images = Decoded(files, threads) if "ram" in places else files
    if cuda:
        return StreamFeed(images, labels, size, device, threads, compiled, companions, copies)
    return HostFeed(images, labels, size, device, threads, companions, copies)


def places_with_room(examples: Examples, size: int, device: torch.device) -> list[Resident]:
    """Where the images fit, estimated from a sample."""
    places = np.linspace(0, len(examples) - 1, min(len(examples), 32)).astype(int)
    sides = [examples[int(place)][0].shape[1:] for place in places]
    if device.type == "cuda":
        height, width = (min(max(side[i] for side in sides), 2 * size) for i in (0, 1))
        if 3 * height * width * len(examples) < SHARE * free_memory(device):
            return ["gpu"]
    mean = sum(3 * height * width for height, width in sides) / len(sides)
    fits = mean * len(examples) < SHARE * free_memory(CPU)
    if not fits:
        return ["stream"]
    return ["stream", "ram"] if device.type == "cuda" else ["ram"]


def free_memory(device: torch.device) -> int:
    """Free bytes on a device; of RAM, the share of this rank."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return free_ram() // local_ranks()
