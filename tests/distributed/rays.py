"""Shared by the tests of Ray."""

import os
import signal
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mrdc.distributed import ray_engine
from mrdc.nn.embedder import Embedder
from mrdc.planning.pack import run_pack
from mrdc.planning.plan import run_plan
from mrdc.planning.settings import PackSettings
from tests.conftest import project

needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")
quiet = pytest.mark.filterwarnings("default")  # Ray's own warnings


def one_by_one(images: Tensor) -> Tensor:
    """Features that do not depend on the batch."""
    return torch.cat([project(image[None]) for image in images])


STEADY = Embedder(one_by_one, size=16, key="steady", batch_size=5)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send even a few images to workers, in small pieces."""
    monkeypatch.setattr(ray_engine.RayEngine, "least", 4)
    monkeypatch.setattr(ray_engine, "SMALLEST", 3)


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The address of a Ray cluster with two workers, to which this process is connected."""
    import ray

    before = signal.getsignal(signal.SIGTERM)
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    there = ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    signal.signal(signal.SIGTERM, before)
    yield there.address_info["gcs_address"]
    ray.shutdown()


def made(settings: PackSettings, embedder: Embedder = STEADY) -> tuple[Any, ...]:
    """The bytes of a memory file, the skipped images, and the plan."""
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
