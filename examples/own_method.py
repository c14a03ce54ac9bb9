"""Write your own method, and run it from Python and from the command line.

    python examples/own_method.py
    PYTHONPATH=examples mrdc run textures-mine-mrdc --plugin own_method --train.epochs 2

The method keeps features close to those of the old network (feature distillation), with a weight
that `--set weight=2` changes. Registered as "mine", it has the recipes `mine`, which replays
originals, and `mine-mrdc`, which replays compressed images, and the presets `textures-mine` and
`textures-mine-mrdc` on built-in images. The script compares it with finetuning, which replays
nothing. Takes a few seconds on a CPU.
"""

import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

import mrdc
from coloured_squares import make_squares


@dataclass(kw_only=True)
class Mine(mrdc.Method):
    """Cross-entropy over all classes, with features kept close to the old network's."""

    weight: float = 1.0

    def preservation(
        self, model: mrdc.Net, old: mrdc.Net, out: mrdc.Output, x: Tensor, y: Tensor
    ) -> Tensor:
        return self.weight * (out.features - old.features(x)).square().mean()


mrdc.METHODS["mine"] = Mine


def main() -> None:
    torch.set_num_threads(1)  # faster for images this small
    with tempfile.TemporaryDirectory() as folder:
        stream = mrdc.open_stream(make_squares(Path(folder)), phases=3, first="equal")
        for method in (mrdc.Finetune(), Mine(weight=1.0)):
            result = mrdc.run_phases(
                method,
                stream,
                network="resnet18-narrow",
                size=32,
                stem="7x7",
                memory=mrdc.MemorySettings("2/class", quality="50", qualities=(50,)),
                train=mrdc.TrainSettings(epochs=6, lr=0.05, batch_size=16),
            )
            scores = "  ".join(f"{score:5.1f}" for score in result.accuracy)
            held = result.memory.items
            print(f"{result.method:<8}  {held:2} images held  accuracy by phase, %: {scores}")


if __name__ == "__main__":
    main()
