"""Learn a stream of classes with a network of your own.

    python examples/own_network.py

Any module that takes normalised images (n, 3, size, size) and returns features (n, d), a map
(n, d, h, w) or several maps can be the network of a run; mrdc adds the classifier. Here it is
the feature extractor of torchvision's MobileNetV3, from scratch; with pretrained weights the run
would start from them. Takes a few seconds on a CPU.
"""

import tempfile
from functools import partial
from pathlib import Path

import torch
from torch import nn
from torchvision.models import mobilenet_v3_small

import mrdc
from coloured_squares import make_squares


def main() -> None:
    torch.set_num_threads(1)  # faster for images this small
    torch.manual_seed(0)
    norm = partial(nn.BatchNorm2d, momentum=0.2)  # for a run of few steps
    network = mobilenet_v3_small(weights=None, norm_layer=norm).features  # maps of 576 channels
    with tempfile.TemporaryDirectory() as folder:
        stream = mrdc.open_stream(make_squares(Path(folder)), phases=3, first="equal")
        result = mrdc.run_phases(
            mrdc.LwF(),
            stream,
            network=network,
            size=32,
            memory=mrdc.MemorySettings("2/class", quality="50", qualities=(50,)),
            train=mrdc.TrainSettings(epochs=12, lr=0.05, batch_size=16),
        )
    parameters = sum(p.numel() for p in network.parameters())
    scores = "  ".join(f"{score:5.1f}" for score in result.accuracy)
    print(f"MobileNetV3: {parameters:,} parameters, {result.memory.items} images held")
    print(f"accuracy by phase, %: {scores}")


if __name__ == "__main__":
    main()
