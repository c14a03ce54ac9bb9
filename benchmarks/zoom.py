"""Accuracy of a run's last network by how much of each test image it sees.

Squashed images show more in the usual crop (side 256, 77 %) than native ones do.
"""

import argparse
import json
import math
from pathlib import Path

import torch

from common import emit, machine
from mrdc.data import make_stream, open_splits
from mrdc.data.crops import centre_crop
from mrdc.data.examples import from_images
from mrdc.data.loader import grouped
from mrdc.nn.checkpoint import load_network
from mrdc.nn.embed import exact


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="of a run whose head answers, such as LUCIR's")
    parser.add_argument("--data", required=True)
    parser.add_argument("--sides", type=int, nargs="+", default=[256, 296, 320])
    parser.add_argument("--label", required=True)
    given = parser.parse_args()
    settings = json.loads((given.folder / "config.json").read_text())["settings"]
    stream = make_stream(
        open_splits(given.data),
        settings["phases"],
        settings["first"],
        settings["order"],
        settings["superclasses"],
    )
    network, size = load_network(given.folder)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    network = network.to(device, memory_format=torch.channels_last).eval()  # type: ignore[call-overload]
    test = from_images(stream.test.pick(range(network.classes)))
    labels = torch.tensor(test.labels)
    usual: torch.Tensor | None = None
    for side in given.sides:

        def view(place: int, side: int = side) -> torch.Tensor:
            return centre_crop(test[place][0], size, side)

        jobs = [range(len(test))[start : start + 128] for start in range(0, len(test), 128)]
        views = grouped(view, jobs, None)
        with torch.inference_mode(), exact():
            answers = torch.cat([network(v.to(device)).scores.argmax(1).cpu() for v in views])
        right = (answers == labels).double()
        usual = right if usual is None else usual
        more = right - usual
        emit(
            "zoom",
            label=given.label,
            run=given.folder.name,
            method=settings["method"],
            classes=network.classes,
            images=len(test),
            side=side,
            seen=100 * (size / side) ** 2,
            accuracy=100 * float(right.mean()),
            more=100 * float(more.mean()),
            error=100 * float(more.std()) / math.sqrt(len(test)),
            **machine(),
        )


if __name__ == "__main__":
    main()
