"""Features in the plane by t-SNE: compressed images and their originals (Fig. 3), and stored
images among all training images (App. D.1)."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from mrdc.codec import Codec
from mrdc.data.photo import Photo
from mrdc.memory.file import MemoryFile
from mrdc.nn.embed import embed
from mrdc.nn.embedder import Embedder
from mrdc.report.figures import COLOURS, MARKS, Figure, drawn, wrapped
from mrdc.report.runs import RunRecord

CLASSES = 5
STORED, KNOWN = 30, 100  # images of a class that are shown: stored ones, and all
FEWEST = 10  # stored images that are worth a figure
Points = NDArray[np.floating[Any]]


def latest_classes(run: RunRecord, labels: Sequence[int]) -> tuple[list[int], str]:
    """Random classes of the latest task (the last to arrive if it has few), and their name."""
    seen = [phase.classes or 0 for phase in run.phases]
    latest = [label for label in labels if label >= (seen[-2] if len(seen) > 1 else 0)]
    if len(latest) < CLASSES:
        last = list(labels)[-CLASSES:]
        return last, f"the last {len(last)} classes"
    drawn_now = np.random.default_rng(0).choice(latest, CLASSES, replace=False)
    return sorted(drawn_now.tolist()), f"{CLASSES} random classes of the latest task"


def extremes(pairs: Sequence[tuple[Codec, int]]) -> list[tuple[Codec, int]]:
    """The best, the middle and the worst quality: 90, 50 and 10 of the paper's."""
    order = sorted(pairs, key=lambda pair: -pair[1])
    places = sorted({0, len(order) // 2, len(order) - 1}) if order else []
    return [order[place] for place in places]


class Planes:
    """A few classes of a memory, with their originals and the network that embeds them."""

    def __init__(
        self,
        run: RunRecord,
        file: MemoryFile,
        photos: Mapping[str, Sequence[Photo]],
        embedder: Embedder,
    ):
        self.file, self.photos, self.embedder = file, photos, embedder
        chosen, self.what = latest_classes(run, list(file.class_names))
        self.names = {label: file.class_names[label] for label in chosen}
        labels = file.arrays["labels"]
        self.places = [np.flatnonzero(labels == label)[:STORED].tolist() for label in self.names]

    def figures(self, pairs: Sequence[tuple[Codec, int]]) -> list[Figure]:
        """Both figures; none if too few images are stored."""
        if sum(map(len, self.places)) < FEWEST:
            return []
        chosen = extremes(pairs)
        return [*([self.compressed(chosen)] if chosen else []), self.subset()]

    def compressed(self, pairs: Sequence[tuple[Codec, int]]) -> Figure:
        """Stored images at several qualities and their originals, in one plane."""
        known = {photo.id: photo for photos in self.photos.values() for photo in photos}
        originals = [[known[self.file.names[i]] for i in places] for places in self.places]
        rows = [self._embedded(originals)]
        for codec, quality in pairs:
            rows.append(self._embedded([[at(p, codec, quality) for p in of] for of in originals]))
        before, *after = in_plane(rows)
        figure = Figure(
            f"t-SNE of features, {self.what}: originals are light, the same images compressed are "
            "dark",
            f"Points of {len(self.names)} classes before and after compression",
            [["class", "image", "x", "y"]],
        )
        counts = list(map(len, originals))
        with drawn(figure, len(pairs), size=(9.6, 3.9)) as axes:
            panels = np.atleast_1d(axes)
            for one, points, (codec, quality) in zip(panels, after, pairs, strict=True):
                title = f"{codec.name} {quality}"
                self._draw(one, figure, (before, counts, "original"), (points, counts, title))
                one.set_title(title, fontsize=10)
            _legend(axes)
        return figure

    def subset(self) -> Figure:
        """Stored images among all training images of their classes."""
        known = [_some(self.photos[name]) for name in self.names.values()]
        streams = [
            [Photo(f"image {i}", partial(self.file.load, i)) for i in places]
            for places in self.places
        ]
        everything, stored = in_plane([self._embedded(known), self._embedded(streams)])
        figure = Figure(
            f"t-SNE of features, the same classes: training images (up to {KNOWN} of a class) are "
            "light, stored images are dark",
            f"Points of {len(self.names)} classes: all training images and stored images",
            [["class", "image", "x", "y"]],
        )
        light = everything, list(map(len, known)), "training image"
        with drawn(figure, size=(6.4, 4.4)) as axes:
            self._draw(axes, figure, light, (stored, list(map(len, streams)), "stored"))
            _legend(axes)
        return figure

    def _embedded(self, photos: Sequence[Sequence[Photo]]) -> Tensor:
        rows, _ = embed([photo for of in photos for photo in of], self.embedder)
        return F.normalize(rows, dim=1)

    def _draw(self, axes: Any, figure: Figure, *clouds: tuple[Points, list[int], str]) -> None:
        """Two clouds of points, the first light and the second dark; a colour for each class."""
        for (points, counts, kind), alpha, size in zip(clouds, (0.3, 1.0), (34, 12), strict=True):
            parts = np.split(points, np.cumsum(counts)[:-1])
            for n, (name, part) in enumerate(zip(self.names.values(), parts, strict=True)):
                style = {"marker": MARKS[n], "color": COLOURS[n], "s": size, "linewidths": 0}
                label = wrapped(name) if alpha == 1 else None
                axes.scatter(*part.T, alpha=alpha, label=label, **style)
                figure.data += [[name, kind, *map(float, point)] for point in part]
        axes.set(xticks=[], yticks=[])


def _legend(axes: Any) -> None:
    last = np.atleast_1d(axes)[-1]
    last.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))


def _some(photos: Sequence[Photo]) -> list[Photo]:
    """At most `KNOWN` photos, drawn at random."""
    if len(photos) <= KNOWN:
        return list(photos)
    drawn_now = np.random.default_rng(0).choice(len(photos), KNOWN, replace=False)
    return [photos[place] for place in sorted(drawn_now.tolist())]


def at(photo: Photo, codec: Codec, quality: int) -> Photo:
    """A photo as it looks after compression."""
    return Photo(photo.id, lambda: codec.encode(photo.pixels(), quality))


def in_plane(parts: Sequence[Tensor]) -> list[Points]:
    """t-SNE of rows, all parts together."""
    from sklearn.manifold import TSNE

    rows = torch.cat(list(parts)).numpy()
    perplexity = min(15.0, (len(rows) - 1) / 3)
    flat = TSNE(perplexity=perplexity, init="pca", random_state=0).fit_transform(rows)
    return np.split(flat, np.cumsum([len(part) for part in parts])[:-1])
