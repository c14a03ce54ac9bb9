"""Contents of a memory: images at each quality, bytes by class, features in the plane."""

import base64
import io
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image

from mrdc._utils.errors import MrdcError
from mrdc.codec import CODECS, Codec
from mrdc.codec.image import Pixels
from mrdc.data import DATASETS, open_splits
from mrdc.data.coco import is_coco, open_scenes
from mrdc.data.photo import Photo, to_pixels
from mrdc.data.shapes import shapes_splits
from mrdc.data.shards import is_pattern
from mrdc.experiments.settings import built_in
from mrdc.memory.file import MemoryFile
from mrdc.nn.embed import embed
from mrdc.nn.embedder import Embedder, load_embedder
from mrdc.report.figures import COLOURS, Figure, Section, Strip, drawn, short
from mrdc.report.plane import Planes
from mrdc.report.runs import RunRecord
from mrdc.report.tables import memory_file

SHOWN = 3  # images shown at each quality
SIDE = 160  # of the part of an image that is shown
TICKS = 40  # class names on an axis
GONE = (MrdcError, OSError, KeyError)  # data and networks may not exist any more


def contents(runs: Sequence[RunRecord]) -> list[Section]:
    """Show the memory of the first run that compresses, else of the first with a memory."""
    found = [(run, file) for run in runs if (file := memory_file(run)) is not None]
    found.sort(key=lambda pair: pair[1].meta["quality"] is None)
    if not found:
        return []
    shown = Contents(*found[0])
    return [shown.memory(), shown.plane()]


class Contents:
    """The memory of a run, and its originals and network if they still exist."""

    def __init__(self, run: RunRecord, file: MemoryFile):
        self.run, self.file = run, file
        self.by_class: dict[str, list[Photo]] = {}
        self.embedder: Embedder | None = None
        with suppress(*GONE):
            self.by_class = originals(run)
        self.originals = {photo.id: photo for of in self.by_class.values() for photo in of}
        with suppress(*GONE):
            self.embedder = None if run.detects else load_embedder(f"run:{run.path}")
        self.labels: NDArray[Any] = file.arrays["labels"]
        self.names = file.class_names  # in order of arrival
        self.pairs = [
            (CODECS.find(row["codec"]), int(row["quality"]))
            for row in run.last.candidates
            if row["quality"] is not None
        ]

    def memory(self) -> Section:
        """Bytes of each class, and some images at each quality."""
        section = Section("memory", "What the memory holds")
        section.parts += [f"The memory of {self.run.label()} on {self.run.data}.", self._bytes()]
        for label in list(self.names)[:: max(1, len(self.names) // SHOWN)][:SHOWN]:
            place = int(np.flatnonzero(self.labels == label)[0])
            with suppress(*GONE):
                photo = self.originals[self.file.names[place]]
                strip = at_qualities(photo, self.pairs, self.embedder)
                section.parts.append(Strip(f"{self.names[label]}: {photo.id}", strip))
        return section

    def _bytes(self) -> Figure:
        sizes = np.diff(self.file.arrays["offsets"])
        what = "phase" if self.run.detects else "class"
        figure = Figure(
            f"Bytes of each {what}, in order of arrival",
            f"Bars of bytes, one for each {what} of {len(self.names)}",
            [[what, "bytes", "images"]],
        )
        for label, name in self.names.items():
            mine = self.labels == label
            figure.data.append([name, int(sizes[mine].sum()), int(mine.sum())])
        names = [short(str(row[0])) for row in figure.data[1:]]
        shown = range(0, len(names), -(-len(names) // TICKS))
        kilobytes = [row[1] / 1000 for row in figure.data[1:]]
        with drawn(figure, size=(7.2, 2.9)) as axes:
            axes.bar(range(len(names)), kilobytes, color=COLOURS[0])
            turn = {"rotation": 90} if len(names) > 8 else {}
            axes.set_xticks(shown, [names[place] for place in shown], fontsize=8, **turn)
            axes.set(ylabel="kB")
            axes.grid(False, axis="x")
        return figure

    def plane(self) -> Section:
        """Features of compressed and stored images by t-SNE, for a few classes."""
        section = Section("t-sne", "Features before and after compression")
        if self.embedder is not None:
            with suppress(*GONE):
                planes = Planes(self.run, self.file, self.by_class, self.embedder)
                section.parts += planes.figures(self.pairs)
        return section


def at_qualities(
    photo: Photo, pairs: Sequence[tuple[Codec, int | None]], embedder: Embedder | None
) -> list[tuple[str, str]]:
    """A photo and its encodings, best first: image and caption each."""
    data = photo.load()
    pixels = to_pixels(data, photo.id)
    size = f", {len(data):,} bytes" if isinstance(data, bytes) else ""
    strip = [(as_address(pixels), f"original{size}")]
    for codec, quality in sorted(pairs, key=lambda pair: -(101 if pair[1] is None else pair[1])):
        stream = codec.encode(pixels, quality)
        made, like = codec.decode(stream), ""
        if embedder:
            photos = [Photo("before", lambda: pixels), Photo("after", partial(np.asarray, made))]
            rows, _ = embed(photos, embedder)
            like = f", feature cosine {F.cosine_similarity(rows[:1], rows[1:]).item():.3f}"
        name = codec.name if quality is None else f"{codec.name} {quality}"
        strip.append((as_address(made), f"{name}, {len(stream):,} bytes{like}"))
    return strip


def originals(run: RunRecord) -> dict[str, list[Photo]]:
    """The training photos of a run by class, if its data still exists."""
    data = str(run.settings["data"])
    if run.detects:
        scenes = shapes_splits() if built_in(data, "shapes") else open_scenes(Path(data))
        return {"": list(scenes.train.photos)}
    path = Path(data)
    if not (data in DATASETS or ":" in data or path.exists() or is_pattern(path)) or is_coco(path):
        return {}
    holdout, columns = float(run.settings.get("holdout", 0.2)), run.settings.get("columns")
    splits = open_splits(data, holdout=holdout, seed=0, columns=columns)
    return dict(zip(splits.train.classes, splits.train.photos, strict=True))


def as_address(pixels: Pixels) -> str:
    """The centre of an image as a PNG data address."""
    height, width = pixels.shape[:2]
    top, left = max(0, (height - SIDE) // 2), max(0, (width - SIDE) // 2)
    buffer = io.BytesIO()
    Image.fromarray(pixels[top : top + SIDE, left : left + SIDE]).save(buffer, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
