"""Features of images under any classifier: what its last linear layer sees."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

from mrdc.data.photo import Photo
from mrdc.nn.modes import evaluating


def embed_photos(
    model: nn.Module,
    photos: Sequence[Photo],
    view: Callable[[int, Image.Image], Tensor],
    run: Callable[[Tensor, slice], Tensor],
    batch_size: int = 64,
    outputs: bool = False,
) -> Tensor:
    """Features (n, d), or the model's outputs, in evaluation mode; float32 on the CPU.

    Args:
        model: a classifier, or a feature extractor, which has no linear layer.
        view: what the model sees of the i-th photo, (channels, height, width).
        run: calls the model on the views of some photos.
    """
    rows = []
    with evaluating(model), torch.no_grad(), last_input(model) as seen:
        for start in range(0, len(photos), batch_size):
            part = slice(start, min(start + batch_size, len(photos)))
            images = [Image.fromarray(photos[i].pixels()) for i in range(part.start, part.stop)]
            views = [view(i, image) for i, image in enumerate(images, start)]
            seen.clear()
            output = run(torch.stack(views), part)
            found = seen[-1] if seen and not outputs else output
            rows.append(found.float().flatten(1).cpu())
    return torch.cat(rows)


@contextmanager
def last_input(model: nn.Module) -> Iterator[list[Tensor]]:
    """Inputs of linear layers while the model runs, in order; the last one is the features."""
    seen: list[Tensor] = []

    def note(module: nn.Module, given: tuple[Any, ...]) -> None:
        seen.append(given[0])

    linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
    hooks = [module.register_forward_pre_hook(note) for module in linear]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()
