"""Where a result comes from: versions, hardware and commit."""

import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from mrdc import __version__
from mrdc._utils.ranks import machine_cores, ranks

GIT = ("git", "-C", str(Path(__file__).resolve().parent))


def machine() -> dict[str, Any]:
    """Commit, hardware and versions, as fields of a result."""
    return {
        "mrdc": __version__,
        "commit": os.environ.get("MRDC_COMMIT") or commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        **{package.lower(): version(package) for package in ("numpy", "Pillow")},
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "cores": machine_cores(),
        "ranks": ranks(),
    }


def commit() -> str | None:
    """The commit of this checkout, if it is one; `-dirty` if files were changed."""
    if _git("ls-files", "--error-unmatch", Path(__file__).name) is None:
        return None  # installed, perhaps inside the checkout of something else
    return _git("describe", "--always", "--dirty", "--exclude=*")


def _git(*arguments: str) -> str | None:
    """What git prints; None if it cannot answer."""
    try:
        done = subprocess.run([*GIT, *arguments], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None
