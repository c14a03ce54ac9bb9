"""Embed images: `lite0`, `torchvision:NAME`, `run:FOLDER`, or any callable."""

import hashlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mrdc._utils.errors import ImageError, UsageError
from mrdc._utils.threads import ordered, workers
from mrdc.codec.image import Pixels
from mrdc.data.crops import centre, stack
from mrdc.data.photo import Photo, digest, to_pixels
from mrdc.memory.fill import Skip
from mrdc.nn.checkpoint import load_network
from mrdc.nn.feature_cache import FeatureCache
from mrdc.nn.net import normalised

Network = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Embedder:
    """A network that turns uint8 images (n, 3, size, size) into features (n, d).

    Attributes:
        key: identifies network and weights in the feature cache; None for no cache.
        whole: embed each image as it is, one by one, rather than its centre crop.
    """

    network: Network
    size: int = 224
    key: str | None = None
    batch_size: int = 64
    whole: bool = False


def as_embedder(embed: str | Callable[[Tensor], Any] | Embedder) -> Embedder | None:
    """An embedder from a callable; None for a name, which `load_embedder` takes.

    The callable maps uint8 images (n, 3, 224, 224) to features (n, d) or maps (n, d, h, w),
    which are averaged over their sides; arrays and tensors are both fine.
    """
    if isinstance(embed, str):
        return None
    if isinstance(embed, Embedder):
        return embed

    def network(images: Tensor) -> Tensor:
        return as_features(embed(images), len(images))

    return Embedder(network)


def as_features(found: Any, count: int) -> Tensor:
    """The output of a user's network as features (count, d); maps are averaged.

    Raises:
        UsageError: something else.
    """
    rows, shape = torch.empty(0), type(found).__name__
    with suppress(TypeError, ValueError, RuntimeError):  # what torch raises for other types
        rows = torch.as_tensor(found)
        shape = f"the shape {tuple(rows.shape)}"
    if rows.ndim == 4:
        rows = rows.float().mean((2, 3))
    if rows.ndim != 2 or len(rows) != count:
        raise UsageError(
            f"embed must return features (n, d) or maps (n, d, h, w) of {count} images, got {shape}"
        )
    return rows


def load_embedder(name: str, weights: Path | None = None, device: str = "auto") -> Embedder:
    """An embedder by name: `lite0`, `torchvision:NAME` with a weights file, or `run:FOLDER`.

    Raises:
        UsageError: an unknown name, or a weights file that is missing, unreadable or for
            another network.
    """
    where = pick_device(device)
    if weights is not None and not name.startswith("torchvision:"):
        raise UsageError(f"--weights needs --embed torchvision:NAME; {name} has its own weights")
    if name == "lite0":
        return _lite0(where)
    if name.startswith("torchvision:"):
        return _torchvision(name.removeprefix("torchvision:"), weights, where)
    if name.startswith("run:"):
        return _run(Path(name.removeprefix("run:")).expanduser(), where)
    raise UsageError(
        f"unknown embed {name!r}: choose lite0, torchvision:NAME with --weights, or run:FOLDER"
    )


def _lite0(device: torch.device) -> Embedder:
    from mrdc.nn.lite0 import fuse, lite0

    network = fuse(lite0())

    def features(images: Tensor) -> Tensor:
        return network.features((images - 127) / 128)

    return network_embedder(network, features, device=device, key="lite0-57934424")


def _torchvision(name: str, weights: Path | None, device: torch.device) -> Embedder:
    from torchvision.models import get_model, list_models

    if name not in list_models():
        raise UsageError(f"torchvision has no model {name!r}; resnet18 is one")
    if weights is None:
        raise UsageError(f"embed 'torchvision:{name}' needs --weights FILE (a state dict)")
    state, sha256 = load_state(weights)
    network = get_model(name, weights=None)
    try:
        network.load_state_dict(state)
    except RuntimeError as error:
        first = str(error).split("\n")[1].strip()
        raise UsageError(f"{weights}: not weights of torchvision's {name} ({first})") from None
    head = [path for path, module in network.named_modules() if isinstance(module, nn.Linear)][-1]
    network.set_submodule(head, nn.Identity())
    key = f"torchvision-{name}-{sha256[:16]}"
    return network_embedder(
        network, lambda images: network(normalised(images)), device=device, key=key
    )


def _run(folder: Path, device: torch.device) -> Embedder:
    """The network of a run folder, with the features that the run selects by."""
    network, size = load_network(folder)
    sha256 = hashlib.sha256()
    for name, value in network.state_dict().items():
        sha256.update(name.encode() + value.contiguous().numpy().tobytes())
    key = f"run-{sha256.hexdigest()[:16]}-{size}"
    return network_embedder(network, network.features, size=size, device=device, key=key)


def load_state(path: Path) -> tuple[dict[str, Tensor], str]:
    """A state dict, from safetensors or torch's format without pickled code, and its SHA-256."""
    try:
        sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path), sha256
        state: dict[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise UsageError(f"--weights {path}: cannot be read ({error.strerror})") from None
    except Exception:  # both loaders raise many kinds, and say little
        raise UsageError(
            f"--weights {path}: not a state dict, saved by torch or as .safetensors (of a whole "
            "pickled network save its state_dict())"
        ) from None
    if not isinstance(state, dict) or not all(isinstance(v, Tensor) for v in state.values()):
        raise UsageError(f"--weights {path}: not a state dict (no tensors by name)")
    return state, sha256


def network_embedder(
    network: nn.Module,
    features: Network,
    *,
    device: torch.device,
    size: int = 224,
    key: str | None = None,
) -> Embedder:
    """An embedder in fp32 without TF32, in evaluation mode, channels last.

    Batches are padded to one size: torch picks kernels by batch size, and they round
    differently.

    Args:
        features: maps float images (n, 3, size, size) from 0 to 255 to features.
    """
    batch_size = 128 if device.type == "cuda" or size <= 64 else 8  # 8 fit a CPU's caches
    network.eval().to(device).to(memory_format=torch.channels_last)

    def run(images: Tensor) -> Tensor:
        full = F.pad(images.to(device).float(), (0, 0) * 3 + (0, batch_size - len(images)))
        with exact():
            x = full.contiguous(memory_format=torch.channels_last)
            return features(x)[: len(images)]

    return Embedder(run, size, key and f"{key}-{device.type}", batch_size)


def pick_device(name: str) -> torch.device:
    """The device with this name; "auto" is a GPU if there is one.

    Raises:
        UsageError: there is no CUDA device.
    """
    if name == "cuda" and not torch.cuda.is_available():
        raise UsageError("--device cuda: no CUDA device found; use --device cpu")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


def exact() -> AbstractContextManager[None]:
    """Turn off TF32 and kernel search while features are computed."""
    flags: AbstractContextManager[None] = torch.backends.cudnn.flags(
        enabled=True, benchmark=False, deterministic=True, allow_tf32=False
    )
    return flags


def embed(
    photos: Sequence[Photo],
    embedder: Embedder,
    *,
    cache: FeatureCache | None = None,
    threads: int | None = None,
    skip: Skip | None = None,
    progress: Callable[[int], None] = lambda count: None,
) -> tuple[Tensor, list[int]]:
    """Features (n, d) of the photos, and the positions of those n among them.

    Args:
        skip: called with the error of each unreadable photo, which is then left out; without it
            the first one raises.
    """

    def view(photo: Photo) -> tuple[bytes, Tensor | Pixels] | ImageError:
        try:
            data = photo.load()
            key = digest(data) if cache is not None else b""
            known = cache.get(key) if cache is not None else None
            if known is not None:
                return key, known
            pixels = to_pixels(data, photo.id)
            return key, pixels if embedder.whole else centre(pixels, embedder.size)
        except ImageError as error:
            return error

    rows: Tensor | None = None  # made when the first features tell their width
    good: list[int] = []
    batch: list[tuple[int, bytes, Pixels]] = []

    def keep(places: list[int], found: Tensor) -> None:
        nonlocal rows
        if rows is None:
            rows = torch.empty(len(photos), found.shape[1])
        rows[places] = found

    running: list[tuple[list[int], list[bytes], Tensor]] = []  # at most one, on a GPU perhaps

    def run() -> None:
        """Start a batch, then fetch the features of the one before."""
        images = stack([pixels for _, _, pixels in batch])
        with torch.inference_mode():
            features = embedder.network(images).float()
        finish()
        places, keys = [place for place, _, _ in batch], [key for _, key, _ in batch]
        running.append((places, keys, features))
        batch.clear()

    def finish() -> None:
        while running:
            places, keys, features = running.pop()
            features = features.cpu()
            keep(places, features)
            if cache is not None:
                for key, row in zip(keys, features, strict=True):
                    cache.put(key, row)

    with workers(threads) as pool:
        for index, (_, seen) in enumerate(ordered(pool, view, photos, 2 * embedder.batch_size)):
            progress(1)
            if isinstance(seen, ImageError):
                if skip is None:
                    raise seen
                skip(seen)
                continue
            key, found = seen
            if isinstance(found, Tensor):  # features from the cache
                keep([len(good)], found[None])
            else:
                batch.append((len(good), key, found))
            good.append(index)
            if len(batch) == (1 if embedder.whole else embedder.batch_size):
                run()
    if batch:
        run()
    finish()
    return torch.empty(0, 0) if rows is None else rows[: len(good)], good
