"""`--engine ray` on a Ray of two workers on this machine; where Ray is installed."""

import os
import signal
import socket
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch
from torch import Tensor

from mrdc._utils.errors import DataError, ImageError, MissingError, RanksError, UsageError
from mrdc._utils.threads import engine, ordered, workers
from mrdc.codec.image import Pixels
from mrdc.data.photo import Photo
from mrdc.distributed import ray_engine
from mrdc.nn.embed import Embedder
from mrdc.nn.feature_cache import FeatureCache
from mrdc.planning.pack import run_pack
from mrdc.planning.plan import run_plan
from mrdc.planning.settings import PackSettings
from tests.conftest import jpeg, make_photos, project
from tests.processes import Cli
from tests.processes import cli as cli

needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")
quiet = pytest.mark.filterwarnings("default")  # Ray's own warnings


def one_by_one(images: Tensor) -> Tensor:
    """Features that do not depend on the batch."""
    return torch.cat([project(image[None]) for image in images])


STEADY = Embedder(one_by_one, size=16, key="steady", batch_size=5)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few images are enough to be sent, in small pieces."""
    monkeypatch.setattr(ray_engine.RayEngine, "least", 4)
    monkeypatch.setattr(ray_engine, "SMALLEST", 3)


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The address of a Ray with two workers, which this process is connected to."""
    import ray

    before = signal.getsignal(signal.SIGTERM)
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    there = ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    signal.signal(signal.SIGTERM, before)
    yield there.address_info["gcs_address"]
    ray.shutdown()


def made(settings: PackSettings, embedder: Embedder = STEADY) -> tuple[Any, ...]:
    """The bytes of a memory file, what was skipped, and the plan."""
    packed = run_pack(settings, embedder=embedder)
    found = run_plan(settings, embedder=embedder).to_json()
    del found["seconds"]
    content = settings.output.read_bytes()
    settings.output.unlink()
    return content, packed.seen.skipped, found


def both(source: Path, folder: Path, **options: Any) -> tuple[PackSettings, PackSettings]:
    """Settings for threads and for Ray."""
    given: dict[str, Any] = {"qualities": (75, 10), "skip_bad": True, "cache": False} | options
    output = folder / "memory.mrdc"
    one = PackSettings(source, "3/class", output=output, **given)
    return one, PackSettings(source, "3/class", output=output, engine="ray", **given)


# Refusals


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
    """Are refused within a bounded time, also if something else listens there."""
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


# The result is that of threads


@needs_ray
@quiet
@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2])
def test_a_ray_of_our_own(count: int, photos: Path, tmp_path: Path, small: None) -> None:
    """`--threads` is the number of its workers; it ends with the command."""
    import ray

    threads, by_ray = both(photos, tmp_path, threads=count)
    assert made(by_ray) == made(threads)
    assert not ray.is_initialized()


@needs_ray
@quiet
@pytest.mark.slow
def test_lite0_by_the_command(tmp_path: Path) -> None:
    """The real network, more images than are worth sending, from another folder."""
    make_photos(tmp_path / "photos", classes=4, images=65)
    flags = ["--budget", "20/class", "--quality", "50", "10", "--no-cache", "--json"]
    for name, more in (("a", []), ("b", ["--engine", "ray", "--threads", "2"])):
        command = [sys.executable, "-m", "mrdc", "pack", "photos", "-o", name, *flags, *more]
        subprocess.run(command, cwd=tmp_path, check=True, stdout=subprocess.DEVNULL)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@needs_ray
@quiet
@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"qualities": (50,), "select": "random_choice"},
        {"pairing": "independent", "scale": (1.0, 0.5)},
        {"max_side": 20, "codec": ("jpeg", "webp")},
    ],
)
def test_as_by_threads(
    options: dict[str, Any], photos: Path, tmp_path: Path, small: None, cluster: str
) -> None:
    """Byte for byte; bad files are listed."""
    (photos / "class1" / "99.jpg").write_bytes(b"text")
    threads, by_ray = both(photos, tmp_path, **options)
    expected = made(threads)
    assert [line.partition(":")[0] for line in expected[1]] == ["class1/99.jpg"]
    assert made(by_ray) == expected


def _tar(photos: Path, folder: Path) -> Path:
    with tarfile.open(folder / "photos.tar", "w") as tar:
        for number, file in enumerate(sorted(photos.rglob("*.jpg"))):
            parts = {"jpg": file.read_bytes(), "cls": file.parent.name.encode()}
            for ending, data in parts.items():
                info = tarfile.TarInfo(f"{number:03d}.{ending}")
                info.size = len(data)
                tar.addfile(info, BytesIO(data))
    return folder / "photos.tar"


def _csv(photos: Path, folder: Path) -> Path:
    files = sorted(photos.rglob("*.jpg"))
    lines = [f"{file.relative_to(folder)},{file.parent.name}" for file in files]
    (folder / "photos.csv").write_text("\n".join(lines))
    return folder / "photos.csv"


def _parquet(photos: Path, folder: Path) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    files = sorted(photos.rglob("*.jpg"))
    images, labels = [f.read_bytes() for f in files], [f.parent.name for f in files]
    table = pa.table({"image": images, "label": labels})
    pq.write_table(table, folder / "photos.parquet", row_group_size=5)
    return folder / "photos.parquet"


@needs_ray
@quiet
@pytest.mark.slow
@pytest.mark.parametrize("form", [_tar, _csv, _parquet])
def test_other_sources(
    form: Any,
    photos: Path,
    tmp_path: Path,
    small: None,
    cluster: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Under a path relative to the folder of this process."""
    monkeypatch.chdir(tmp_path)
    source = form(photos, tmp_path).relative_to(tmp_path)
    threads, by_ray = both(source, tmp_path)
    assert made(by_ray) == made(threads)


# Failures


@needs_ray
@quiet
@pytest.mark.slow
def test_a_worker_that_is_killed(photos: Path, tmp_path: Path, small: None, cluster: str) -> None:
    """Costs time only."""
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
    """End the command with one message, after some attempts."""
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
    """Are an error that names the machine, rather than images to skip."""
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
from tests.distributed.test_ray import STEADY, both

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
    """Loses no features: the same command computes the others only."""
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
