"""`--engine ray` without Ray, without a cluster, and with processes that are killed."""

import os
import signal
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path
from threading import Thread

import pytest
from torch import Tensor

from mrdc._utils.errors import DataError, ImageError, MissingError, RanksError, UsageError
from mrdc._utils.threads import engine, ordered, workers
from mrdc.codec.image import Pixels
from mrdc.data.photo import Photo
from mrdc.distributed import ray_engine
from mrdc.nn.embedder import Embedder
from mrdc.nn.feature_cache import FeatureCache
from mrdc.planning.pack import run_pack
from mrdc.planning.plan import run_plan
from mrdc.planning.settings import PackSettings
from tests.conftest import jpeg
from tests.distributed.rays import STEADY, both, made, needs_ray, one_by_one, quiet
from tests.distributed.rays import cluster as cluster
from tests.distributed.rays import small as small
from tests.processes import Cli
from tests.processes import cli as cli


def test_ray_is_missing(cli: Cli, photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    refused = cli.refused("plan", photos, "--budget", "9kB", "--engine", "ray")
    assert refused == "mrdc: --engine ray needs Ray, which is missing: pip install 'mrdc[ray]'\n"


@needs_ray
@quiet
@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("nonsense", "must be HOST:PORT of the cluster's head, or auto"),
        ("ray://here:10001", "must be HOST:PORT of the cluster's head, or auto"),
        ("127.0.0.1:1", r"no Ray cluster answers there \(Connection refused\)"),
        ("127.0.0.1:99999", "no Ray cluster answers there"),
        ("silent", r"no Ray cluster answers there \(timed out\)"),
        ("web", r"no Ray cluster answers there \(something else does\)"),
    ],
)
def test_addresses_without_a_cluster(
    address: str, message: str, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are refused within a bounded time, even if something else listens there."""
    monkeypatch.setattr(ray_engine, "PATIENCE", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        here = "127.0.0.1:{1}".format(*server.getsockname())
        if address == "web":
            Thread(target=_answer, args=(server,), daemon=True).start()
        where = here if address in ("silent", "web") else address
        with pytest.raises(UsageError, match=f"--address {where}: {message}"):
            run_plan(PackSettings(photos, "3/class", engine="ray", address=where))


def _answer(server: socket.socket) -> None:
    with server.accept()[0] as there:
        there.recv(99)
        there.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


@needs_ray
@quiet
@pytest.mark.slow
def test_a_worker_that_is_killed(photos: Path, tmp_path: Path, small: None, cluster: str) -> None:
    """It only costs time."""
    driver, flag = os.getpid(), tmp_path / "killed"

    def once(images: Tensor) -> Tensor:
        if os.getpid() != driver and not flag.exists():
            flag.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return one_by_one(images)

    threads, by_ray = both(photos, tmp_path)
    expected = made(threads)
    assert made(by_ray, Embedder(once, size=16, batch_size=5)) == expected
    assert flag.exists()


@needs_ray
@quiet
@pytest.mark.slow
def test_images_that_kill_every_worker(
    photos: Path, tmp_path: Path, small: None, cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They end the command with one message, after some attempts."""
    driver = os.getpid()
    monkeypatch.setattr(ray_engine, "RETRIES", 1)

    def always(images: Tensor) -> Tensor:
        if os.getpid() != driver:
            os.kill(os.getpid(), signal.SIGKILL)
        return one_by_one(images)

    with pytest.raises(RanksError, match=r"Ray has failed \(.+\): run the same command to resume"):
        run_pack(both(photos, tmp_path)[1], embedder=Embedder(always, size=16))
    assert not (tmp_path / "memory.mrdc").exists()


@needs_ray
@quiet
@pytest.mark.slow
def test_images_that_workers_do_not_have(small: None, cluster: str) -> None:
    """They are an error that names the machine, not images to skip."""
    driver = os.getpid()

    def load(number: int) -> bytes:
        if os.getpid() != driver:
            raise ImageError(f"{number}.jpg: cannot be read (No such file or directory)")
        return jpeg(number)

    def look(photo: Photo) -> Pixels | ImageError:
        try:
            return photo.pixels()
        except ImageError as error:
            return error

    photos = [Photo(f"{n}.jpg", partial(load, n)) for n in range(8)]
    name = socket.gethostname()
    with ray_engine.ray_engine(None, None), workers(1) as pool:
        for function in (look, Photo.pixels):
            with pytest.raises(DataError, match=f"on the Ray worker {name}, but not on this mach"):
                list(ordered(pool, function, photos))


DRIVER = """
import os, signal, sys
from pathlib import Path
from mrdc.distributed import ray_engine
from mrdc.nn.feature_cache import FeatureCache
from mrdc.planning.pack import run_pack
from tests.distributed.rays import STEADY, both

ray_engine.RayEngine.least, ray_engine.SMALLEST = 4, 3
put, puts = FeatureCache.put, 0

def mortal(self, digest, row):
    global puts
    put(self, digest, row)
    puts += 1
    if puts == 10:
        os.kill(os.getpid(), signal.SIGKILL)

FeatureCache.put = mortal
photos, folder, address = sys.argv[1:]
run_pack(both(Path(photos), Path(folder), cache=True, address=address)[1], embedder=STEADY)
"""


@needs_ray
@quiet
@pytest.mark.slow
def test_a_driver_that_is_killed(
    photos: Path, tmp_path: Path, small: None, cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No features are lost: the same command computes only the others."""
    expected = made(both(photos, tmp_path)[0])
    command = [sys.executable, "-c", DRIVER, str(photos), str(tmp_path), cluster]
    root = Path(__file__).parents[2]
    killed = subprocess.run(command, cwd=root, check=False)
    assert killed.returncode == -signal.SIGKILL
    known = FeatureCache(Path(os.environ["MRDC_CACHE"]), "steady")
    assert len(known.known()) == 10
    known.close()
    puts: list[bytes] = []
    put = FeatureCache.put

    def counting(self: FeatureCache, digest: bytes, row: Tensor) -> None:
        puts.append(digest)
        put(self, digest, row)

    monkeypatch.setattr(FeatureCache, "put", counting)
    packed = run_pack(both(photos, tmp_path, cache=True)[1], embedder=STEADY)
    assert packed.path.read_bytes() == expected[0]
    originals = {photo.digest() for photo in packed.seen.images.all_photos}
    assert len(originals & {*puts}) == len(originals) - 10


@needs_ray
def test_this_process_uses_no_engine_afterwards() -> None:
    assert engine() is None


def test_missing_is_an_import_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingError), ray_engine.ray_engine(None, None):
        pass
