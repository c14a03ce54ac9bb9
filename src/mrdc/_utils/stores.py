"""Object stores: s3://, gs:// and memory:// URLs, read and written by fsspec.

fsspec and the package of a store are imported when a URL is first used. What is wrong with one
object is an OSError, as for a file; what is wrong with the store (credentials, connection) is a
StoreError, which nothing skips.
"""

import errno
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from mrdc._utils.errors import MissingError, MrdcError, OutputError, StoreError, UsageError
from mrdc._utils.threads import ordered

PACKAGES = {"s3": "s3fs", "gs": "gcsfs", "memory": "fsspec"}
INSTALL = {"s3": "'mrdc[s3]'", "gs": "'mrdc[gs]'", "memory": "fsspec"}
SCHEME = re.compile(r"[A-Za-z][\w+.-]*://")
REQUESTS = 32  # at a time
WINDOW = 32 * REQUESTS  # jobs in flight, most of them queued
STAMPS = ("ETag", "etag", "generation", "LastModified", "created")  # at least one of them is known


class Object(NamedTuple):
    """An object in a store; one with the same stamp has the same bytes."""

    size: int
    stamp: str


def is_url(text: str) -> bool:
    """Check for SCHEME://, which no local path begins with."""
    return SCHEME.match(text) is not None


def find(url: str) -> Object | None:
    """An object; None if there is none."""
    about = _info(url)
    if about.get("type") != "file":
        return None
    return Object(int(about["size"]), str([str(about.get(name)) for name in STAMPS]))


def is_folder(url: str) -> bool:
    """Check for objects below a URL."""
    return _info(url).get("type") == "directory"


def _info(url: str) -> dict[str, Any]:
    """Metadata of a URL in its store; empty if there is nothing."""
    try:
        with _errors(url) as store:
            return dict(store.info(store._strip_protocol(url)))
    except FileNotFoundError:
        return {}


def sizes(urls: Sequence[str]) -> dict[str, int]:
    """Bytes of the objects that exist, by URL; many requests at a time."""
    with ThreadPoolExecutor(REQUESTS) as pool:
        found = ordered(pool, find, urls, WINDOW)
        return {url: one.size for url, one in found if one is not None}


def listing(url: str) -> dict[str, int]:
    """Bytes of every object below a URL, by its name there; "" is the object at the URL."""
    try:
        with _errors(url) as store:
            root = store._strip_protocol(url).rstrip("/")
            found = store.find(root, detail=True)
    except FileNotFoundError:
        return {}
    names = ((name.removeprefix(root).removeprefix("/"), about) for name, about in found.items())
    return {name: int(about["size"]) for name, about in names if _is_plain(name)}


def _is_plain(name: str) -> bool:
    """False for names that are not plain paths: with a part that is empty, `.` or `..`."""
    return not name or not {"", ".", ".."} & {*name.split("/")}


def glob(pattern: str) -> list[str]:
    """URLs of the objects that a pattern matches, sorted."""
    with _errors(pattern) as store:
        found = store.glob(store._strip_protocol(pattern))
    scheme = pattern.partition("://")[0]
    return sorted(f"{scheme}://{name.lstrip('/')}" for name in found)


def read(url: str, start: int, stop: int) -> bytes:
    """Some bytes of an object, in one request."""
    data = _part(url, start, stop) if start < stop else b""
    if len(data) != stop - start:
        raise StoreError(f"{url}: has changed since it was opened; run the command again")
    return data


def read_whole(url: str, size: int) -> bytes:
    """All bytes of an object that has this size, in one request."""
    if not size and find(url) is None:
        raise FileNotFoundError(errno.ENOENT, "no such object", url)
    data = _part(url, 0, size + 1) if size else b""
    if len(data) != size:  # the byte too many shows that it has grown
        raise StoreError(f"{url}: has changed since it was listed; run the command again")
    return data


def _part(url: str, start: int, stop: int) -> bytes:
    with _errors(url) as store:
        return bytes(store.cat_file(store._strip_protocol(url), start=start, end=stop))


def check_bucket(url: str) -> None:
    """Refuse, before any work, a URL in a bucket that does not exist or cannot be reached."""
    scheme, _, rest = url.partition("://")
    bucket, _, name = rest.partition("/")
    if not bucket or not name:
        raise OutputError(f"{url}: names no object; write it as {scheme}://bucket/name")
    try:
        with _errors(url) as store:
            if scheme != "memory":  # which has no buckets
                with suppress(PermissionError):  # to look at it; writing may be allowed
                    store.info(bucket)
    except FileNotFoundError:
        raise OutputError(f"{url}: there is no bucket {bucket}") from None


def put(file: Path, url: str) -> None:
    """Write a file to a URL; the object appears when all of it is there."""
    try:
        with _errors(url) as store:
            name = store._strip_protocol(url)
            if url.startswith("memory:"):  # put_file would show a part of the object
                store.pipe_file(name, file.read_bytes())
            else:
                store.put_file(str(file), name)
    except FileNotFoundError:
        raise OutputError(f"{url}: cannot be written: there is no such bucket") from None


def put_files(folder: Path, names: Sequence[str], url: str) -> None:
    """Write files of a folder below a URL, the last of them when all others are there."""
    *others, last = names

    def send(name: str) -> None:
        put(folder / name, f"{url}/{name}")

    with ThreadPoolExecutor(REQUESTS) as pool:
        for _ in ordered(pool, send, others, WINDOW):
            pass
    send(last)


def remove(urls: Sequence[str]) -> None:
    """Remove objects, if they exist."""
    for url in urls:
        with suppress(FileNotFoundError), _errors(url) as store:
            store.rm_file(store._strip_protocol(url))


@contextmanager
def staged(url: str, send: Callable[[Path], None]) -> Iterator[Path]:
    """A local path for a file or folder that `send` then writes to a URL.

    Raises:
        OutputError: the store fails; the local copy stays, and the message names it.
    """
    folder, kept = Path(tempfile.mkdtemp(prefix="mrdc-")), False
    local = folder / url.rstrip("/").rpartition("/")[2]
    try:
        yield local
        try:
            send(local)
        except MrdcError as error:
            kept = True
            raise OutputError(f"{error}; it is kept as {local}") from error
    finally:
        if not kept:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _errors(url: str) -> Iterator[Any]:
    """The store of a URL; its errors become a FileNotFoundError or a StoreError."""
    try:
        yield _store(url.partition("://")[0].lower(), os.getpid())
    except MrdcError:
        raise
    except FileNotFoundError:
        raise FileNotFoundError(errno.ENOENT, "no such object", url) from None
    except Exception as error:  # every store has its own
        raise StoreError(f"{url}: {_reason(error)}") from error


@lru_cache(maxsize=8)
def _store(scheme: str, process: int) -> Any:
    """The file system of a scheme, one for all threads of a process, without cached listings."""
    if scheme not in PACKAGES:
        known = ", ".join(f"{name}://" for name in PACKAGES)
        raise UsageError(f"unknown scheme {scheme}://; give {known} or a local path")
    logging.getLogger(PACKAGES[scheme]).addHandler(logging.NullHandler())  # _errors reports them
    try:
        import_module(PACKAGES[scheme])
        fsspec = import_module("fsspec")
        options: dict[str, Any] = {"use_listings_cache": False, "skip_instance_cache": True}
        if scheme == "s3":
            given = fsspec.config.conf.get("s3", {}).get("config_kwargs", {})
            retries = {"mode": "standard", "max_attempts": 4}
            options["config_kwargs"] = {"retries": retries, **given}
        store = fsspec.filesystem(scheme, **options)
        if scheme == "s3":
            store.retries = 2  # rounds of these attempts, each of which waits up to 15 s
        return store
    except ImportError as error:
        package = (error.name or PACKAGES[scheme]).partition(".")[0]
        raise MissingError(
            f"{scheme}:// needs {package}, which is missing: pip install {INSTALL[scheme]}"
        ) from None


def _reason(error: Exception) -> str:
    """Why a store fails, in one line."""
    line = " ".join(str(error).split()) or type(error).__name__
    if "credential" in f"{type(error).__name__} {line}".lower():
        return f"no valid credentials ({line})"
    if isinstance(error, PermissionError):
        return f"access denied ({line}); check the credentials and what they allow"
    return f"the store cannot be used ({type(error).__name__}: {line})"
