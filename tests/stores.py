"""A bucket in fsspec's memory file system, and uploads to it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from mrdc._utils import stores


@pytest.fixture
def bucket() -> Iterator[str]:
    """An empty bucket, as a URL."""
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]
    yield "memory://bucket"
    MemoryFileSystem.store.clear()


def upload(source: Path, url: str) -> str:
    """Copy a file or a folder to a URL."""
    if source.is_file():
        stores.put(source, url)
    else:
        files = sorted(path for path in source.rglob("*") if path.is_file())
        stores.put_files(source, [file.relative_to(source).as_posix() for file in files], url)
    return url


def objects() -> list[str]:
    """Names of all objects."""
    return sorted(MemoryFileSystem.store)


def break_store(monkeypatch: pytest.MonkeyPatch, method: str, after: int = 0) -> None:
    """Lose the connection: a method fails after its first `after` calls."""
    working, calls = getattr(MemoryFileSystem, method), 0

    def fail(*given: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > after:
            raise ConnectionResetError(104, "Connection reset by peer")
        return working(*given, **options)

    monkeypatch.setattr(MemoryFileSystem, method, fail)
