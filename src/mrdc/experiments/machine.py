"""Where a result comes from: commit, hardware and versions."""

import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from mrdc import __version__


def machine() -> dict[str, Any]:
    """Commit, hardware and versions, as fields of a result."""
    return {
        "mrdc": __version__,
        "commit": os.environ.get("MRDC_COMMIT") or _commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        **{package.lower(): version(package) for package in ("numpy", "Pillow")},
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "cores": len(os.sched_getaffinity(0)),
    }


def _commit() -> str | None:
    """The commit of this checkout, if it is one; `-dirty` if files were changed."""
    here = Path(__file__).resolve().parent
    command = ["git", "-C", str(here), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip() or None
