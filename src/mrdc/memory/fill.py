"""Fill classes with encoded images until the bytes are used up.

Images are encoded in parallel, each at most once, and taken in rank order;
the outcome does not depend on the number of threads.
"""

import hashlib
import math
import os
import tempfile
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from pathlib import Path

from mrdc._utils.errors import ImageError
from mrdc._utils.files import output_errors
from mrdc._utils.threads import ordered
from mrdc.codec import Codec
from mrdc.codec.image import decode
from mrdc.codec.jpeg import split
from mrdc.data.photo import Photo
from mrdc.memory.budget import level

Skip = Callable[[ImageError], None]
Entry = Callable[[str], int]  # bytes of the index that an image takes, by its source


@dataclass(frozen=True)
class Item:
    """One encoded image, as it will be stored."""

    source: str
    body: bytes
    shared: bool  # stored without the tables of its codec and quality
    kept: bool  # the source bytes, because encoding did not make them smaller
    digest: bytes

    def cost(self, entry: Entry | None) -> int:
        """Bytes charged: the body and, where the whole file counts, the index entry."""
        return len(self.body) + (entry(self.source) if entry else 0)


def encode(photo: Photo, codec: Codec, quality: int | None, tables: bytes) -> Item:
    """Encode a photo, or keep its bytes where that is no larger.

    Args:
        tables: header bytes not to store with each image; empty to store whole files.

    Raises:
        ImageError: the photo cannot be read, or not be written by the codec.
    """
    data = photo.load()
    source = data if isinstance(data, bytes) else None
    pixels = decode(data, photo.id) if isinstance(data, bytes) else data
    if codec.name == "original" and source is not None:
        return _item(photo.id, source, b"", kept=True)
    try:
        stream = codec.encode(pixels, quality)
    except ImageError as error:
        raise ImageError(f"{photo.id}: {error}") from None
    if source is not None and len(source) <= len(stream):
        return _item(photo.id, source, b"", kept=True)
    return _item(photo.id, stream, tables)


def _item(source: str, stream: bytes, tables: bytes, kept: bool = False) -> Item:
    header, body = split(stream) if tables else (b"", stream)
    shared = bool(tables) and header == tables
    digest = hashlib.sha256(stream).digest()
    return Item(source, body if shared else stream, shared, kept, digest)


class Spool:
    """Bytes in an unnamed temporary file, gone when the process is."""

    def __init__(self, folder: Path):
        self.folder = folder
        with output_errors(folder):
            self._file = tempfile.TemporaryFile(dir=folder, buffering=0)
        weakref.finalize(self, self._file.close)
        self._end = 0

    def append(self, body: bytes) -> int:
        """Store a run of bytes; where it starts."""
        rest = memoryview(body)
        with output_errors(self.folder):
            while rest:
                rest = rest[self._file.write(rest) :]
        self._end += len(body)
        return self._end - len(body)

    def __getitem__(self, part: slice) -> bytes:
        return os.pread(self._file.fileno(), part.stop - part.start, part.start)

    def __reduce__(self) -> str:
        raise TypeError("a spooled memory cannot be pickled: save it and load the file")


@dataclass
class Growing:
    """A class while it is filled: what it holds, and what waits for room."""

    photos: deque[Photo]  # not asked for yet
    spool: Spool | None
    entry: Entry | None
    items: list[Item] = field(default_factory=list)  # without their bodies if spooled
    starts: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    waiting: deque[Item] = field(default_factory=deque)
    digests: set[bytes] = field(default_factory=set)
    nbytes: int = 0
    first: int = 0  # what its first image costs, once that is known
    spent: int = 0  # what `nbytes` costs, with index entries where they count
    duplicates: int = 0

    @property
    def done(self) -> bool:
        """Whether the class holds all it can ever hold."""
        return not self.photos and not self.waiting

    def ask(self, share: int, mean: float) -> list[Photo]:
        """The next photos, about as many as still fit; none while one waits."""
        if self.waiting:
            return []
        if self.sizes:
            mean = self.spent / len(self.sizes)
        count = max(1, int((share - self.spent) / mean)) if mean else 1
        count = min(count, 8 + 2 * len(self.sizes))  # in case the first ones were unusually small
        return [self.photos.popleft() for _ in range(min(count, len(self.photos)))]

    @property
    def next_cost(self) -> int:
        """Bytes that the first image in the queue will cost."""
        return self.waiting[0].cost(self.entry)

    def offer(self, item: Item) -> None:
        """Queue an image behind those that wait; exact duplicates are counted, not kept."""
        if item.digest in self.digests:
            self.duplicates += 1
        else:
            self.digests.add(item.digest)
            self.waiting.append(item)
            self.first = self.first or item.cost(self.entry)

    def settle(self, share: int) -> None:
        """Take what waits, in order, while it fits."""
        while self.waiting and self.spent + self.next_cost <= share:
            self.spent += self.next_cost
            item = self.waiting.popleft()
            self.sizes.append(len(item.body))
            if self.spool is None:
                self.starts.append(self.nbytes)
            else:
                self.starts.append(self.spool.append(item.body))
                item = Item(item.source, b"", item.shared, item.kept, b"")
            self.items.append(item)
            self.nbytes += self.sizes[-1]


def fill(
    photos: Mapping[int, Iterable[Photo]],
    total: int,
    held: Sequence[tuple[int, int]],
    encode: Callable[[Photo], Item],
    pool: Executor,
    *,
    entry: Entry | None = None,
    spool: Spool | None = None,
    skip: Skip | None = None,
    progress: Callable[[int], None] = lambda count: None,
) -> dict[int, Growing]:
    """Share `total` bytes between these classes and others that hold `held`.

    Works in waves: the first image of each class comes first, and if there is no
    room for all of these, none is taken. Then each class is asked for about as
    many images as still fit its share; when a class runs out, the others' share
    grows and they are asked again. Bytes left over at the end buy one more image
    here and there.

    Args:
        photos: by label, in rank order.
        held: bytes of each other class, and of its first image.
        entry: bytes of index entries, where they count.
        skip: told of each unreadable photo, which is then left out; without
            it the first one raises.
    """
    classes = {label: Growing(deque(ranked), spool, entry) for label, ranked in photos.items()}
    share = -1
    while True:
        before = share
        firsts = [*(first for _, first in held), *(grown.first for grown in classes.values())]
        needs = [grown.spent if grown.done else math.inf for grown in classes.values()]
        known = all(grown.first or grown.done for grown in classes.values())
        if known and sum(firsts) > total:
            return classes
        share = level(total, [*(need for need, _ in held), *needs], firsts) if known else 0
        for grown in classes.values() if known else ():
            grown.settle(max(share, grown.first))
        items = sum(len(grown.sizes) for grown in classes.values())
        mean = sum(grown.spent for grown in classes.values()) / max(items, 1)
        wave = [(grown, photo) for grown in classes.values() for photo in grown.ask(share, mean)]
        if not wave and share == before:
            break
        for (grown, _), item in ordered(pool, lambda job: _attempt(encode, job[1]), wave):
            if isinstance(item, Item):
                grown.offer(item)
                grown.settle(share)
            elif skip is None:
                raise item
            else:
                skip(item)
            progress(1)
    spare = total - sum(min(need, max(first, share)) for need, first in held)
    spare -= sum(grown.spent for grown in classes.values())
    for grown in sorted(classes.values(), key=lambda grown: grown.spent):
        if grown.waiting and grown.next_cost <= spare:
            spare -= grown.next_cost
            grown.settle(grown.spent + grown.next_cost)
    return classes


def _attempt(encode: Callable[[Photo], Item], photo: Photo) -> Item | ImageError:
    try:
        return encode(photo)
    except ImageError as error:
        return error
