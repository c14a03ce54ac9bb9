"""Encoded images with an index, row by row, wherever they are."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import Any

from numpy.typing import NDArray

from mrdc._utils.errors import MemoryFileError
from mrdc.codec.headers import join
from mrdc.codec.image import Pixels
from mrdc.codec.jpeg_progressive import has_scans
from mrdc.codec.scaled import restored, stored_scale
from mrdc.memory.encode import Encoded, Encoding, Stored, image_digest
from mrdc.memory.names import Names

COLUMNS = ("value_sizes", "kept", "tables", "encodings")  # arrays of the index that rows have


class Rows(ABC):
    """Images in one place: in a memory file, in a part of one, or not saved yet."""

    @property
    @abstractmethod
    def table_list(self) -> Sequence[bytes]:
        """The headers that the column `tables` refers to."""

    @property
    @abstractmethod
    def encoding_list(self) -> Sequence[Encoding]:
        """The encodings that the column `encodings` refers to."""

    @property
    @abstractmethod
    def names(self) -> Names:
        """Ids of the sources."""

    @property
    @abstractmethod
    def sizes(self) -> NDArray[Any]:
        """Stored bytes of each image, values included."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def column(self, name: str) -> NDArray[Any]:
        """One of `COLUMNS`, a number per image."""

    @abstractmethod
    def stored(self, row: int) -> bytes:
        """Stored bytes of an image, followed by its values."""

    @abstractmethod
    def expected(self, row: int) -> bytes | None:
        """SHA-256 that a file has for an image and its values; None if it is not in a file."""

    def pieces(self, row: int) -> tuple[bytes, bytes, bytes]:
        """Tables, stored body and values of an image."""
        stored, table = self.stored(row), int(self.column("tables")[row])
        end = len(stored) - int(self.column("value_sizes")[row])
        return self.table_list[table] if table >= 0 else b"", stored[:end], stored[end:]

    def values(self, row: int) -> bytes:
        """The values beside an image, as stored."""
        return self.pieces(row)[2]

    def stream(self, row: int) -> bytes:
        """An image as a whole file, with its tables."""
        tables, body, _ = self.pieces(row)
        return join(tables, body)

    def encoding(self, row: int) -> Encoding:
        """How an image was encoded."""
        return self.encoding_list[int(self.column("encodings")[row])]

    def scale(self, row: int) -> float:
        """The scale an image was shrunk by; 1 if it was not."""
        return stored_scale(self.encoding(row).codec, bool(self.column("kept")[row]))

    def has_scans(self, row: int) -> bool:
        """True if scans of an image may be cut."""
        return not self.column("kept")[row] and has_scans(self.encoding(row).codec)

    def load(self, row: int) -> bytes | Pixels:
        """An image as training sees it: a whole file, or pixels if it was shrunk."""
        return restored(self.stream(row), self.scale(row))

    def intact(self, row: int) -> bool:
        """Check an image and its values against the SHA-256 in the file."""
        return self.expected(row) in (None, self._digest(row))

    def digest(self, row: int) -> bytes:
        """SHA-256 of an image and its values, checked if it is in a file."""
        found = self._digest(row)
        if self.expected(row) not in (None, found):
            raise MemoryFileError(f"image {self.names[row]}: its bytes do not match its checksum")
        return found

    def _digest(self, row: int) -> bytes:
        tables, body, values = self.pieces(row)
        return image_digest(join(tables, body), values)

    def item(self, row: int, name: str) -> Stored:
        """An image for another memory, not read yet."""
        table, kept = int(self.column("tables")[row]), bool(self.column("kept")[row])
        tables = self.table_list[table] if table >= 0 else b""
        values = bool(self.column("value_sizes")[row])
        return Stored(
            name, tables, kept, self.encoding(row), values, partial(self.encoded, row, name)
        )

    def encoded(self, row: int, name: str) -> Encoded:
        """An image, and how it was made."""
        tables, body, values = self.pieces(row)
        digest = self.digest(row)
        if values:
            digest = image_digest(self.stream(row))
        kept = bool(self.column("kept")[row])
        return Encoded(name, body, tables, kept, digest, self.encoding(row), values)
