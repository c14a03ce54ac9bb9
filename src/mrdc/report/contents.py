"""What a memory looks like: samples at every quality, bytes by class, features in the plane."""

import base64
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from mrdc._utils.errors import MrdcError
from mrdc.codec import CODECS, Codec
from mrdc.codec.image import Pixels, decode
from mrdc.data import DATASETS, open_splits
from mrdc.data.coco import is_coco, open_scenes
from mrdc.data.photo import Photo
from mrdc.data.shapes import shapes_splits
from mrdc.experiments.common import built_in
from mrdc.memory.file import MemoryFile
from mrdc.nn.embed import Embedder, embed, load_embedder
from mrdc.planning.settings import QUALITIES
from mrdc.report.figures import COLOURS, MARKS, Figure, drawn, in_legend, whole_numbers
from mrdc.report.parts import Section, Strip
from mrdc.report.runs import Run
from mrdc.report.tables import memory_file

T = TypeVar("T")
SHOWN = 3  # images that are shown at every quality
SIDE = 160  # of the part that is shown
CLASSES = 5  # in the plane


def contents(runs: Sequence[Run]) -> list[Section]:
    """Of the first run that compresses, else of the first that keeps anything."""
    kept = [(run, file) for run in runs if (file := memory_file(run)) is not None]
    kept.sort(key=lambda pair: pair[1].meta["quality"] is None)
    if not kept:
        return []
    run, file = kept[0]
    found = Contents(run, file)
    parts = (found.memory(), _quietly(found.plane, None))
    return [part for part in parts if part is not None and part.parts]


@dataclass
class Contents:
    """The memory of a run, and what is left of where it came from."""

    run: Run
    file: MemoryFile

    def __post_init__(self) -> None:
        nothing: dict[str, Photo] = {}
        self.originals = _quietly(lambda: originals(self.run), nothing)
        self.embedder: Embedder | None = None
        if not self.run.detects:
            self.embedder = _quietly(lambda: load_embedder(f"run:{self.run.path}"), None)

    def memory(self) -> Section:
        """Bytes of each class, and some images at every quality."""
        section = Section("memory", "What the memory holds")
        section.parts += [f"The memory of {self.run.label()} on {self.run.data}.", self._bytes()]
        labels = self.file.arrays["labels"]
        firsts = [int(np.flatnonzero(labels == label)[0]) for label in dict.fromkeys(labels)]
        spread = firsts[:: max(1, len(firsts) // SHOWN)][:SHOWN]
        names = {entry["label"]: entry["name"] for entry in self.file.meta["classes"]}
        for place in spread:
            photo = self.originals.get(self.file.sources[place])
            if photo is None:
                continue
            nothing: list[tuple[str, str]] = []
            strip = _quietly(partial(self._qualities, photo), nothing)
            heading = f"{names[int(labels[place])]}: {photo.id}"
            section.parts += [Strip(heading, strip)] if strip else []
        return section

    def _bytes(self) -> Figure:
        labels, sizes = self.file.arrays["labels"], np.diff(self.file.arrays["offsets"])
        names = {entry["label"]: entry["name"] for entry in self.file.meta["classes"]}
        totals = {names[int(y)]: int(sizes[labels == y].sum()) for y in dict.fromkeys(labels)}
        counts = {names[int(y)]: int((labels == y).sum()) for y in dict.fromkeys(labels)}
        figure = Figure(
            f"bytes-{self.run.data}", "Bytes of each class, in the order of arrival",
            f"Bars of bytes for {len(totals)} classes",
            data=[["class", "bytes", "images"], *([n, totals[n], counts[n]] for n in totals)],
        )  # fmt: skip
        with drawn(figure, size=(7.2, 2.4)) as axes:
            axes.bar(range(len(totals)), [v / 1000 for v in totals.values()], color=COLOURS[0])
            axes.set(xlabel="class" if not self.run.detects else "phase", ylabel="kB")
            whole_numbers(axes.xaxis)
        return figure

    def _qualities(self, photo: Photo) -> list[tuple[str, str]]:
        codec = CODECS.get(self.run.memory.get("codec", "jpeg"), CODECS["jpeg"])
        qualities = self.run.memory.get("candidates", QUALITIES)
        pairs: list[tuple[Codec, int | None]] = [(codec, q) for q in qualities if codec.qualities]
        return at_qualities(photo, pairs, self.embedder)

    def plane(self) -> Section | None:
        """Features of originals and of what is stored, by t-SNE, for a few classes."""
        labels = self.file.arrays["labels"]
        wanted = list(dict.fromkeys(int(y) for y in labels))[:CLASSES]
        places = [i for y in wanted for i in np.flatnonzero(labels == y)[:30].tolist()]
        photos = [self.originals.get(self.file.sources[i]) for i in places]
        if self.embedder is None or len(places) < 10 or any(p is None for p in photos):
            return None
        stored = [Photo(f"image {i}", _stream(self.file, i)) for i in places]
        before, _ = embed([p for p in photos if p is not None], self.embedder)
        after, _ = embed(stored, self.embedder)
        return Section("t-sne", "Features before and after compression",
                       [self._plane(before, after, labels[places])])  # fmt: skip

    def _plane(self, before: Tensor, after: Tensor, labels: NDArray[Any]) -> Figure:
        from sklearn.manifold import TSNE

        rows = np.concatenate([F.normalize(part, dim=1).numpy() for part in (before, after)])
        perplexity = min(15.0, (len(rows) - 1) / 3)
        flat = TSNE(perplexity=perplexity, init="pca", random_state=0).fit_transform(rows)
        names = {entry["label"]: entry["name"] for entry in self.file.meta["classes"]}
        figure = Figure(
            f"t-sne-{self.run.data}",
            "t-SNE of features: filled marks are originals, hollow ones what is stored",
            f"Points of {len(set(labels.tolist()))} classes before and after compression",
            data=[["class", "stored", "x", "y"]],
        )  # fmt: skip
        with drawn(figure, size=(6.4, 4.2)) as axes:
            for number, label in enumerate(dict.fromkeys(labels.tolist())):
                mine = np.flatnonzero(labels == label)
                for stored in (False, True):
                    points = flat[mine + (len(labels) if stored else 0)]
                    colour = COLOURS[number % len(COLOURS)]
                    axes.scatter(*points.T, marker=MARKS[number % len(MARKS)], s=28, linewidths=1,
                                 facecolors="none" if stored else colour, edgecolors=colour,
                                 label=None if stored else in_legend(names[label]))  # fmt: skip
                    figure.data += [[names[label], stored, *map(float, p)] for p in points]
            axes.set(xticks=[], yticks=[])
            axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8.5)
        return figure


def at_qualities(
    photo: Photo, pairs: Sequence[tuple[Codec, int | None]], embedder: Embedder | None
) -> list[tuple[str, str]]:
    """A photo and what codecs and qualities make of it: image and caption each, best first."""
    data = photo.load()
    pixels = decode(data, photo.id) if isinstance(data, bytes) else data
    bytes_ = f", {len(data):,} bytes" if isinstance(data, bytes) else ""
    strip = [(as_address(pixels), f"original{bytes_}")]
    for codec, quality in sorted(pairs, key=lambda pair: -(pair[1] or 101)):
        stream = codec.encode(pixels, quality)
        made = codec.decode(stream)
        like = "" if embedder is None else f", features {alike(pixels, made, embedder):.3f} alike"
        name = codec.name if quality is None else f"{codec.name} {quality}"
        strip.append((as_address(made), f"{name}, {len(stream):,} bytes{like}"))
    return strip


def alike(before: Pixels, after: Pixels, embedder: Embedder) -> float:
    """Cosine of the features of two images."""
    photos = [Photo("before", lambda: before), Photo("after", lambda: after)]
    rows, _ = embed(photos, embedder)
    return F.cosine_similarity(rows[:1], rows[1:]).item()


def originals(run: Run) -> dict[str, Photo]:
    """The training photos that a run saw, by name, if its data is still there."""
    data = str(run.settings["data"])
    if run.detects:
        scenes = shapes_splits() if built_in(data, "shapes") else open_scenes(Path(data))
        return {photo.id: photo for photo in scenes.train.photos}
    if not (data in DATASETS or ":" in data or Path(data).exists()) or is_coco(Path(data)):
        return {}
    splits = open_splits(data, holdout=float(run.settings.get("holdout", 0.2)), seed=0)
    return {photo.id: photo for photo in splits.train.all_photos}


def as_address(pixels: Pixels) -> str:
    """The middle of an image as a PNG inside the page."""
    height, width = pixels.shape[:2]
    top, left = max(0, (height - SIDE) // 2), max(0, (width - SIDE) // 2)
    buffer = io.BytesIO()
    Image.fromarray(pixels[top : top + SIDE, left : left + SIDE]).save(buffer, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def _stream(file: MemoryFile, place: int) -> Callable[[], bytes]:
    return lambda: file.stream(place)


def _quietly(make: Callable[[], T], otherwise: T) -> T:
    """What can be made; data and networks may have gone since."""
    try:
        return make()
    except (MrdcError, OSError, KeyError):
        return otherwise
