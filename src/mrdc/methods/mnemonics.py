"""Mnemonics (Liu et al., 2020): exemplars whose pixels are learned, in LUCIR's network.

From the second phase on the kernels are fixed and only multipliers and batch norms are
trained. After a phase the exemplars of its classes are changed to represent all images of the
phase: as prototypes (as in the published code), or as what the head would learn from
(`bilevel`: one step of the head, the network fixed).

Unlike the published code, pixels are learned for a few classes at a time, queries are
evaluation views seen once, images are stored as squares with the margin that crops need, and
pixels are rounded.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mrdc.codec.image import Pixels
from mrdc.data.crops import centre_crop
from mrdc.data.examples import Examples
from mrdc.data.loader import grouped
from mrdc.methods.base import Needs
from mrdc.methods.lesson import Lesson, Substitutes
from mrdc.methods.lucir import LUCIR
from mrdc.nn.heads import SplitCosine
from mrdc.nn.modes import without_gradients
from mrdc.nn.net import MEAN, STD, Net

TOGETHER = 128  # exemplars learned at a time
SEEN = 0.5  # grey levels that survive rounding


def cosines(features: Tensor, rows: Tensor) -> Tensor:
    """Cosines between features (n, d) and rows (c, d)."""
    return F.normalize(features, dim=1) @ F.normalize(rows, dim=1).T


def as_prototypes(rows: Tensor, features: Tensor, labels: Tensor) -> Tensor:
    """Rows (c, d), with those of the given labels replaced by their mean features."""
    member = F.one_hot(labels, len(rows)).to(features)
    counts = member.sum(0)
    means = member.T @ features / counts.clamp(min=1)[:, None]
    return torch.where(counts[:, None] > 0, means, rows)


def after_a_step(
    rows: Tensor, features: Tensor, labels: Tensor, scale: Tensor, lr: float
) -> Tensor:
    """Rows of a cosine head after one step of SGD on features (n, d); gradients pass through."""
    rows = rows.detach().requires_grad_(True)
    loss = F.cross_entropy(scale * cosines(features, rows), labels)
    (slope,) = torch.autograd.grad(loss, rows, create_graph=True)
    return rows - lr * slope


def to_pixels(values: Tensor) -> Tensor:
    """Normalised values as grey levels, clamped to 0 and 255."""
    mean, std = (values.new_tensor(v).view(3, 1, 1) for v in (MEAN, STD))
    return (values * std + mean).clamp(0, 255)


@dataclass(kw_only=True)
class Mnemonics(LUCIR):
    """LUCIR with scaled kernels and learned exemplars."""

    pixels: Literal["prototype", "bilevel", "none"] = "prototype"
    pixel_lr: float = 1e-5  # as published, on normalised pixels; halved after each pass
    pixel_epochs: int = 1
    pixel_decay: float = 5e-4
    head_lr: float = 0.1  # of the head's one step in `bilevel`

    def __post_init__(self) -> None:
        super().__post_init__()
        self.change: tuple[float, ...] = ()  # mean change in grey levels, before and after rounding

    @property
    def needs(self) -> Needs:
        return replace(super().needs, body="scaled")

    def start_phase(self, lesson: Lesson) -> None:
        if lesson.phase == 1:
            lesson.model = lesson.model.with_body("scaled")
        super().start_phase(lesson)

    def substitutes(self, lesson: Lesson) -> Substitutes | None:
        if self.pixels == "none":
            return None
        all_squares = Squares(lesson.fresh, round(lesson.size * 256 / 224))
        chosen = lesson.preview(all_squares)
        wanted = zip(chosen.labels, chosen.photos, strict=True)
        exemplars = lesson.fresh.pick(all_squares.places[y, photo.id] for y, photo in wanted)
        found: dict[tuple[int, str], Pixels] = {}
        changes = []
        for part, before, after in self._learned(lesson, exemplars):
            rounded = after.round()
            for label, photo, image in zip(part.labels, part.photos, rounded, strict=True):
                pixels = image.to(torch.uint8).permute(1, 2, 0).contiguous()
                found[label, photo.id] = pixels.cpu().numpy()
            kept = [float((image - before).abs().mean()) for image in (after, rounded)]
            changes.append((len(part), *kept))
        count, *levels = np.array(changes).T
        self.change = tuple(np.average(level, weights=count) for level in levels)
        return found

    def _learned(
        self, lesson: Lesson, exemplars: Examples
    ) -> Iterator[tuple[Examples, Tensor, Tensor]]:
        """Exemplars, a few classes at a time, with their grey levels before and after."""
        model, head = lesson.model, lesson.model.head
        assert isinstance(head, SplitCosine)
        device = model.mean.device
        queries = lesson.features(lesson.train).to(device)
        answers = torch.tensor(lesson.train.labels, device=device)
        rows = head.rows.detach()
        if self.pixels == "prototype":
            known = lesson.memory + exemplars
            labels = torch.tensor(known.labels, device=device)
            features = lesson.features(known).to(device)
            rows = as_prototypes(torch.zeros_like(rows), features, labels)
        side = round(lesson.size * 256 / 224)
        for part in in_classes(exemplars):
            before = squares(part, side, lesson.threads).to(device).float()
            after = self._optimised(lesson, before, part.labels, rows, queries, answers)
            yield part, before, after

    def _optimised(
        self,
        lesson: Lesson,
        images: Tensor,
        labels: tuple[int, ...],
        rows: Tensor,
        queries: Tensor,
        answers: Tensor,
    ) -> Tensor:
        """Optimise the grey levels of images to classify the queries, by SGD."""
        model, own = lesson.model, torch.tensor(labels, device=images.device)
        values = ((images - model.mean) / model.std).requires_grad_(True)
        optimiser = torch.optim.SGD(
            [values], lr=self.pixel_lr, momentum=0.9, weight_decay=self.pixel_decay
        )
        rng = np.random.default_rng((lesson.seed("pixels"), lesson.phase, *labels[:1]))
        with without_gradients(model.parameters()):
            for epoch in range(self.pixel_epochs):
                optimiser.param_groups[0]["lr"] = self.pixel_lr * 0.5**epoch
                for batch in torch.split(torch.from_numpy(rng.permutation(len(answers))), 128):
                    optimiser.zero_grad()
                    features = model.features(centre(to_pixels(values), lesson.size))
                    there = batch.to(images.device)
                    scores = self._answers(model, rows, features, own, queries[there])
                    F.cross_entropy(scores, answers[there]).backward()  # type: ignore[no-untyped-call]
                    optimiser.step()
        return to_pixels(values.detach())

    def _answers(
        self, model: Net, rows: Tensor, features: Tensor, labels: Tensor, queries: Tensor
    ) -> Tensor:
        if self.pixels == "prototype":
            return cosines(queries, as_prototypes(rows, features, labels))
        assert isinstance(model.head, SplitCosine)
        scale = model.head.scale.detach()
        return scale * cosines(queries, after_a_step(rows, features, labels, scale, self.head_lr))

    def report(self) -> dict[str, Any]:
        if not self.change:
            return {}
        learned, kept = self.change
        found: dict[str, Any] = {"grey_levels": learned, "grey_levels_rounded": kept}
        if learned < SEEN:
            found["warning"] = (
                f"exemplars changed by {learned:.3g} grey levels on average, of which rounding "
                f"leaves {kept:.3g}: raise pixel_lr (now {self.pixel_lr:g}) to see an effect"
            )
        return found


class Squares(Mapping[tuple[int, str], Pixels]):
    """Square crops of examples, by label and photo id, made on demand."""

    def __init__(self, examples: Examples, side: int):
        self.examples, self.side = examples, side
        pairs = zip(examples.labels, examples.photos, strict=True)
        self.places = {(label, photo.id): place for place, (label, photo) in enumerate(pairs)}

    def __getitem__(self, key: tuple[int, str]) -> Pixels:
        image = centre_crop(self.examples[self.places[key]][0], self.side, self.side)
        return np.ascontiguousarray(image.permute(1, 2, 0).numpy())

    def __iter__(self) -> Iterator[tuple[int, str]]:
        return iter(self.places)

    def __len__(self) -> int:
        return len(self.places)


def squares(examples: Examples, side: int, threads: int | None) -> Tensor:
    """Centre squares of the examples, scaled to side x side, as one batch."""
    (images,) = grouped(
        lambda place: centre_crop(examples[place][0], side, side), [range(len(examples))], threads
    )
    return images


def centre(images: Tensor, size: int) -> Tensor:
    """Centre crops (n, 3, size, size) of images (n, 3, side, side)."""
    start = (images.shape[2] - size) // 2
    return images[:, :, start : start + size, start : start + size]


def in_classes(examples: Examples) -> Iterator[Examples]:
    """Split examples into groups of whole classes, about `TOGETHER` in each."""
    places: dict[int, list[int]] = {}
    for place, label in enumerate(examples.labels):
        places.setdefault(label, []).append(place)
    part: list[int] = []
    for of_class in places.values():
        if part and len(part) + len(of_class) > TOGETHER:
            yield examples.pick(part)
            part = []
        part += of_class
    yield examples.pick(part)
