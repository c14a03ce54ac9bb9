"""`--engine ray` with two workers on this machine gives the same results as threads."""

import subprocess
import sys
import tarfile
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import make_photos
from tests.distributed.rays import both, made, needs_ray, quiet
from tests.distributed.rays import cluster as cluster
from tests.distributed.rays import small as small
from tests.processes import cli as cli


@needs_ray
@quiet
@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2])
def test_a_ray_of_our_own(count: int, photos: Path, tmp_path: Path, small: None) -> None:
    """It has `--threads` workers and ends with the command."""
    import ray

    threads, by_ray = both(photos, tmp_path, threads=count)
    assert made(by_ray) == made(threads)
    assert not ray.is_initialized()


@needs_ray
@quiet
@pytest.mark.slow
def test_lite0_by_the_command(tmp_path: Path) -> None:
    """The real network, enough images to be sent to workers, from another folder."""
    make_photos(tmp_path / "photos", classes=4, images=65)
    flags = ["--budget", "20/class", "--quality", "50", "--no-cache", "--json"]
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
    """The results are equal byte for byte; bad files are listed."""
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
    """Given by a path relative to this process's folder."""
    monkeypatch.chdir(tmp_path)
    source = form(photos, tmp_path).relative_to(tmp_path)
    threads, by_ray = both(source, tmp_path)
    assert made(by_ray) == made(threads)
