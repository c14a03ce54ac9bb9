"""Compile networks, and keep the code for other processes and later runs."""

import hashlib
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from mrdc._utils.files import cache_folder, try_lock
from mrdc.nn.folded import folded_maps, is_folded
from mrdc.nn.net import Maps, Net

NETWORKS = 256  # compiled networks per process, each mode counting
FOLDER = "TORCHINDUCTOR_CACHE_DIR"


def compiled(net: Net, stages: bool = True) -> Maps:
    """Compile the backbone, for `net.compiled`.

    All networks of a process count towards one limit, beyond which nothing is compiled.

    Args:
        stages: whether to return the maps of all stages or only the last. Torch adds gradients of
            zeros to maps that are returned but not used, which takes 3 % of a step.
    """
    keep_code()
    limit = torch._dynamo.config.recompile_limit
    torch._dynamo.config.recompile_limit = max(limit, NETWORKS)
    if is_folded(net):
        return torch.compile(lambda images: folded_maps(net, images), dynamic=False)
    if not stages:
        return torch.compile(lambda images: net._maps(images)[-1:], dynamic=False)
    return torch.compile(net._maps, dynamic=False)


def keep_code() -> None:
    """Let torch keep compiled code in our folder, unless the user has chosen another."""
    folder, chosen = code_folder(), os.environ.get(FOLDER)
    default = os.path.join(tempfile.gettempdir(), "torchinductor_")  # torch sets it when imported
    if folder is not None and (chosen is None or chosen.startswith(default)):
        os.environ[FOLDER] = str(folder)


def code_folder() -> Path | None:
    """Where compiled code is kept: in $MRDC_CACHE or the user's cache folder, by version of torch.

    Torch itself tells GPUs and settings apart. None if the folder cannot be used.
    """
    try:
        folder = cache_folder() / "compiled" / f"torch-{torch.__version__}"
        folder.mkdir(parents=True, exist_ok=True)
        return folder if os.access(folder, os.W_OK) else None
    except (OSError, RuntimeError) as error:  # RuntimeError: no home folder
        print(f"mrdc: compiled code is not kept ({error})", file=sys.stderr)
        return None


@contextmanager
def compiling(nets: Iterable[Net], size: int) -> Iterator[None]:
    """Let one process compile these networks for a batch size, while others wait to reuse it."""
    folder = code_folder()
    if folder is None:
        yield
        return
    code = f"{size} {[repr(net.backbone) for net in nets]}".encode()
    with (folder / f"{hashlib.sha256(code).hexdigest()[:16]}.lock").open("wb") as file:
        try_lock(file, wait=True)
        yield
