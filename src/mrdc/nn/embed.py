"""Images to features: `lite0`, `torchvision:NAME`, or any callable."""

import hashlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mrdc._utils.errors import ImageError, UsageError
from mrdc._utils.threads import ordered, workers
from mrdc.codec.image import Pixels, decode
from mrdc.data.crops import centre, stack
from mrdc.data.photo import Photo
from mrdc.memory.fill import Skip
from mrdc.nn.checkpoint import load_network
from mrdc.nn.feature_cache import FeatureCache
from mrdc.nn.net import normalised

Network = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Embedder:
    """A network that turns uint8 images (n, 3, size, size) into features (n, d).

    Attributes:
        key: identifies network and weights in the feature cache; None: no cache.
        whole: see images one by one as they are, rather than the middle of each.
    """

    network: Network
    size: int = 224
    key: str | None = None
    batch_size: int = 64
    whole: bool = False


def load_embedder(name: str | Network | Embedder, weights: Path | None = None) -> Embedder:
    """An embedder by name: `lite0`, `torchvision:NAME` with a weights file, or `run:FOLDER`.

    A callable from uint8 images (n, 3, 224, 224) to features is wrapped.

    Raises:
        UsageError: no such name, or a weights file missing, unreadable or
            of another network.
    """
    if isinstance(name, Embedder):
        return name
    if not isinstance(name, str):
        return Embedder(name)
    if name == "lite0":
        if weights is not None:
            raise UsageError("--weights goes with --embed torchvision:NAME; lite0 has its own")
        return _lite0()
    if name.startswith("torchvision:"):
        return _torchvision(name.removeprefix("torchvision:"), weights)
    if name.startswith("run:"):
        return _run(Path(name.removeprefix("run:")).expanduser(), weights)
    raise UsageError(
        f"unknown embed {name!r}: choose lite0, torchvision:NAME with --weights, or run:FOLDER"
    )


def _lite0() -> Embedder:
    from mrdc.nn.lite0 import fuse, lite0

    network = fuse(lite0())

    def features(images: Tensor) -> Tensor:
        return network.features((images - 127) / 128)

    return network_embedder(network, features, key="lite0-57934424")


def _torchvision(name: str, weights: Path | None) -> Embedder:
    from torchvision.models import get_model, list_models

    if name not in list_models():
        raise UsageError(f"torchvision has no model {name!r}; resnet18 is one")
    if weights is None:
        raise UsageError(f"embed 'torchvision:{name}' needs --weights FILE (a state dict)")
    state, digest = load_state(weights)
    network = get_model(name, weights=None)
    try:
        network.load_state_dict(state)
    except RuntimeError as error:
        first = str(error).split("\n")[1].strip()
        raise UsageError(f"{weights}: not weights of torchvision's {name} ({first})") from None
    head = [path for path, module in network.named_modules() if isinstance(module, nn.Linear)][-1]
    network.set_submodule(head, nn.Identity())
    return network_embedder(
        network, lambda images: network(normalised(images)), key=f"torchvision-{name}-{digest[:16]}"
    )


def _run(folder: Path, weights: Path | None) -> Embedder:
    """The network of a run folder; its features are those that the run selects by."""
    if weights is not None:
        raise UsageError("--weights goes with --embed torchvision:NAME; a run has its own")
    network, size = load_network(folder)
    digest = hashlib.sha256()
    for name, value in network.state_dict().items():
        digest.update(name.encode() + value.contiguous().numpy().tobytes())
    key = f"run-{digest.hexdigest()[:16]}-{size}"
    return network_embedder(network, network.features, size=size, key=key)


def load_state(path: Path) -> tuple[dict[str, Tensor], str]:
    """A state dict, from safetensors or torch's format without pickled code, and its SHA-256."""
    try:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path), digest
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
    return state, digest


def network_embedder(
    network: nn.Module,
    features: Network,
    *,
    size: int = 224,
    device: torch.device | None = None,
    key: str | None = None,
) -> Embedder:
    """Fp32 without TF32, evaluation mode, channels last, on the GPU where there is one.

    Batches are filled up and never run by one thread, since torch picks kernels
    by batch size and threads, and their rounding differs.

    Args:
        features: of float images (n, 3, size, size) of 0 to 255.
    """
    if device is None:
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    batch_size = 128 if device.type == "cuda" or size <= 64 else 8  # 8 fit a CPU's caches
    network.eval().to(device).to(memory_format=torch.channels_last)

    def run(images: Tensor) -> Tensor:
        threads = torch.get_num_threads()
        if threads == 1:
            torch.set_num_threads(2)
        try:
            return several_threads(images)
        finally:
            if threads == 1:
                torch.set_num_threads(1)

    def several_threads(images: Tensor) -> Tensor:
        full = F.pad(images.to(device).float(), (0, 0) * 3 + (0, batch_size - len(images)))
        with exact():
            x = full.contiguous(memory_format=torch.channels_last)
            return features(x)[: len(images)]

    return Embedder(run, size, key and f"{key}-{device.type}", batch_size)


def exact() -> AbstractContextManager[None]:
    """While what is selected or measured is computed: no TF32, no changing kernels."""
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
        skip: told of each unreadable photo, which is then left out; without
            it the first one raises.
    """

    def view(photo: Photo) -> tuple[bytes, Tensor | Pixels] | ImageError:
        try:
            data = photo.load()
            digest = content(data) if cache is not None else b""
            known = cache.get(digest) if cache is not None else None
            if known is not None:
                return digest, known
            pixels = decode(data, photo.id) if isinstance(data, bytes) else data
            return digest, pixels if embedder.whole else centre(pixels, embedder.size)
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
        """Start a batch; what the one before gave is fetched while this one runs."""
        images = stack([pixels for _, _, pixels in batch])
        with torch.inference_mode():
            features = embedder.network(images).float()
        finish()
        places, digests = [place for place, _, _ in batch], [digest for _, digest, _ in batch]
        running.append((places, digests, features))
        batch.clear()

    def finish() -> None:
        while running:
            places, digests, features = running.pop()
            features = features.cpu()
            keep(places, features)
            if cache is not None:
                for digest, row in zip(digests, features, strict=True):
                    cache.put(digest, row)

    with workers(threads) as pool:
        for index, (_, seen) in enumerate(ordered(pool, view, photos, 2 * embedder.batch_size)):
            progress(1)
            if isinstance(seen, ImageError):
                if skip is None:
                    raise seen
                skip(seen)
                continue
            digest, found = seen
            if isinstance(found, Tensor):  # features from the cache
                keep([len(good)], found[None])
            else:
                batch.append((len(good), digest, found))
            good.append(index)
            if len(batch) == (1 if embedder.whole else embedder.batch_size):
                run()
    if batch:
        run()
    finish()
    return torch.empty(0, 0) if rows is None else rows[: len(good)], good


def content(data: bytes | Pixels) -> bytes:
    """A digest of an image file's bytes, or of pixels."""
    raw = data if isinstance(data, bytes) else data.tobytes() + str(data.shape).encode()
    return hashlib.sha256(raw).digest()
