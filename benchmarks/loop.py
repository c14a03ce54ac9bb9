"""What does matching gain in a training loop of one's own, that of examples/training_loop.py?

Plain training on new images and memory together, on the built-in `textures`, for each quality and
seed: new images as they are, and as they will be stored.
"""

import importlib.util

import torch

import mrdc
from common import HERE, emit, machine, options

QUALITIES, SEEDS = (50, 25, 10), range(5)


def main() -> None:
    options(__doc__).parse_args()
    torch.set_num_threads(1)
    spec = importlib.util.spec_from_file_location(
        "training_loop", HERE.parent / "examples" / "training_loop.py"
    )
    assert spec is not None and spec.loader is not None
    loop = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loop)
    stream = mrdc.open_stream("textures", phases=5, first="equal")
    for quality in QUALITIES:
        for seed in SEEDS:
            scores = []
            for matched in (False, True):
                memory = mrdc.ReplayMemory(loop.BUDGET, "jpeg", quality, transform=loop.to_float)
                scores.append(loop.learn(stream, memory, matched, seed))
            plain, shown = scores
            found = {"plain": plain, "matched": shown, "images": len(memory)}
            emit("loop", quality=quality, **found, **(machine() | {"seed": seed}))


if __name__ == "__main__":
    main()
