"""Object stores on a real S3 server (moto), started here; needs s3fs and moto[server]."""

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from mrdc._utils import stores
from mrdc._utils.errors import MemoryFileError, OutputError, StoreError
from mrdc._utils.store_path import as_path
from mrdc.data import open_images
from mrdc.memory import remote
from mrdc.memory.audit import audit
from mrdc.memory.replay import ReplayMemory
from tests.cli.conftest import FAST
from tests.conftest import jpeg, make_photos
from tests.data.test_urls import contents
from tests.memory.memories import filled, streams
from tests.processes import Cli
from tests.processes import cli as cli
from tests.stores import upload

s3fs = pytest.importorskip("s3fs")
pytest.importorskip("moto.server")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
FLAGS = ["--budget", "4/class", *FAST]


class Server:
    """An S3 server that can be killed."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        command = [sys.executable, "-m", "moto.server", "-p", str(self.port)]
        quiet = subprocess.DEVNULL
        self.process = subprocess.Popen(command, stdout=quiet, stderr=quiet)
        for _ in range(300):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.1)
        raise AssertionError("the server does not start")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    made = Server()
    settings = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{made.port}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    stores._store.cache_clear()
    s3fs.S3FileSystem(skip_instance_cache=True).mkdir("bucket")
    yield made
    made.kill()
    stores._store.cache_clear()


def kill_at(server: Server, monkeypatch: pytest.MonkeyPatch, method: str, call: int) -> None:
    """Kill the server at a call of a function of `stores`."""
    working, calls = getattr(stores, method), 0

    def dying(*given: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            server.kill()
        return working(*given, **options)

    monkeypatch.setattr(stores, method, dying)


def test_commands(server: Server, photos: Path, tmp_path: Path, cli: Cli) -> None:
    """A memory made from bucket to bucket equals one made from files."""
    (photos / "class0" / "a b#?%20+.jpg").write_bytes(jpeg(77))
    source = upload(photos, "s3://bucket/photos")
    for marker in ("photos/", "photos/class0/"):  # as the console makes folders
        s3 = s3fs.S3FileSystem(skip_instance_cache=True)
        s3.call_s3("put_object", Bucket="bucket", Key=marker, Body=b"")
    make_photos(tmp_path / "more", classes=4, images=1)
    upload(tmp_path / "more", "s3://bucket/photos2")
    assert contents(open_images(source)) == contents(open_images(photos))
    cli.json("pack", photos, *FLAGS, "-o", tmp_path / "a.mrdc")
    cli.json("pack", source, *FLAGS, "-o", "s3://bucket/a.mrdc")
    data = (tmp_path / "a.mrdc").read_bytes()
    assert as_path("s3://bucket/a.mrdc").read_bytes() == data
    assert audit("s3://bucket/a.mrdc") == audit(tmp_path / "a.mrdc")
    assert cli.json("info", "s3://bucket/a.mrdc")["items"] > 0
    assert "exists; pass --force" in cli.refused("pack", source, *FLAGS, "-o", "s3://bucket/a.mrdc")
    cli.json("export", "s3://bucket/a.mrdc", "-o", "s3://bucket/out.tar")
    cli.json("export", "s3://bucket/a.mrdc", "-o", "s3://bucket/out")
    assert "out: exists already" in cli.refused(
        "export", "s3://bucket/a.mrdc", "-o", "s3://bucket/out"
    )
    tar, folder = (open_images(f"s3://bucket/{name}") for name in ("out.tar", "out"))
    assert [p.load() for p in tar.all_photos] == [p.load() for p in folder.all_photos]
    shards = open_images("s3://bucket/ou*.tar")
    assert len(shards) == len(tar)


def test_what_is_refused(server: Server, photos: Path, cli: Cli) -> None:
    """A missing bucket or source, before any work."""
    assert "s3://none/a: no such folder or file" in cli.refused("plan", "s3://none/a", *FLAGS)
    assert "s3://bucket/a: no such folder or file" in cli.refused("plan", "s3://bucket/a", *FLAGS)
    assert "no such memory file" in cli.refused("info", "s3://none/a.mrdc")
    line = cli.refused("pack", photos, *FLAGS, "-o", "s3://none/a.mrdc")
    assert "s3://none/a.mrdc: there is no bucket none" in line
    with pytest.raises(OutputError, match="there is no such bucket; it is kept as"):
        filled().save("s3://none/a.mrdc")


def test_no_credentials(server: Server, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line says so."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "none")
    stores._store.cache_clear()
    line = cli.refused("info", "s3://bucket/a.mrdc")
    assert "s3://bucket/a.mrdc: no valid credentials (Unable to locate credentials)" in line


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_loaders(server: Server, context: str) -> None:
    """Workers read the store, whether or not this process has read it."""
    memory = filled()
    memory.save("s3://bucket/a.mrdc")
    opened = ReplayMemory.load("s3://bucket/a.mrdc")
    loader = DataLoader(opened, 4, num_workers=2, multiprocessing_context=context)
    images = torch.stack([memory[index][0] for index in range(len(memory))])
    for _ in range(2):
        assert torch.equal(torch.cat([batch for batch, _ in loader]), images)


def test_a_large_file_comes_in_parts(server: Server, tmp_path: Path) -> None:
    """It is larger than s3fs sends at once."""
    with (tmp_path / "x").open("wb") as file:
        file.truncate(120_000_000)
        file.seek(77_777_777)
        file.write(b"here")
    stores.put(tmp_path / "x", "s3://bucket/x")
    found = stores.find("s3://bucket/x")
    assert found is not None and found.size == 120_000_000
    assert stores.read("s3://bucket/x", 77_777_776, 77_777_782) == b"\0here\0"


def test_a_memory_that_is_replaced(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The change shows in its ETag or modification time."""
    monkeypatch.setattr(remote, "BLOCK", 1000)
    filled().save("s3://bucket/a.mrdc")
    memory = ReplayMemory.load("s3://bucket/a.mrdc")
    filled(images=7).save("s3://bucket/a.mrdc")
    with pytest.raises(MemoryFileError, match="replaced since it was opened"):
        streams(memory)


def test_the_server_dies_while_images_are_read(
    server: Server, photos: Path, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No image counts as bad; nothing is written."""
    source = upload(photos, "s3://bucket/photos")
    kill_at(server, monkeypatch, "read_whole", 9)
    line = cli.refused("pack", source, *FLAGS, "--skip-bad", "-o", tmp_path / "a.mrdc")
    assert "the store cannot be used (EndpointConnectionError" in line
    assert not (tmp_path / "a.mrdc").exists()


def test_the_server_dies_while_a_memory_is_read(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An audit reports no problem with the file."""
    monkeypatch.setattr(remote, "BLOCK", 1000)
    filled().save("s3://bucket/a.mrdc")
    kill_at(server, monkeypatch, "read", 6)
    with pytest.raises(StoreError, match="the store cannot be used"):
        audit("s3://bucket/a.mrdc")


def test_the_server_dies_before_a_memory_is_written(
    server: Server, photos: Path, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The work is kept locally."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    kill_at(server, monkeypatch, "put", 1)
    line = cli.refused("pack", photos, *FLAGS, "-o", "s3://bucket/a.mrdc").rstrip()
    kept = Path(line.rpartition("; it is kept as ")[2])
    assert kept.parent.parent == tmp_path and not audit(kept).problems
