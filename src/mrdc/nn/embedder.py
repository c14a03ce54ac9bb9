"""Networks that embed images: `lite0:SIZE`, `torchvision:NAME`, `run:FOLDER`, or any callable."""

import hashlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mrdc._utils.errors import ImageError, UsageError
from mrdc.codec.image import Pixels
from mrdc.data.crops import centre, short_side, tensor
from mrdc.data.photo import Photo
from mrdc.distributed.group import world
from mrdc.nn.checkpoint import digest as state_digest
from mrdc.nn.checkpoint import load_network
from mrdc.nn.modes import evaluating
from mrdc.nn.net import normalised

Network = Callable[[Tensor], Tensor]
CPU = torch.device("cpu")
SIDES = 64, 224  # px: the smallest and the largest input of lite0, unless its name has another
LOOKS = 20  # photos whose sides are looked up


@dataclass(frozen=True)
class Embedder:
    """A network that turns uint8 images (n, 3, size, size) into features (n, d)."""

    network: Network
    size: int = 224
    key: str | None = None  # identifies network and weights in the feature cache; None: no cache
    batch_size: int = 64
    whole: bool = False  # embed each image as it is, one by one, rather than its centre crop
    device: torch.device = CPU  # where the network is
    view: Callable[[Tensor], Tensor] | None = None  # makes the network's input of a uint8 image
    side_by_side: bool = False  # several threads may call it, and it is on a CPU

    def prepare(self, pixels: Pixels) -> Pixels | Tensor:
        """An image as the network sees it."""
        if self.view is not None:
            return self.view(tensor(pixels))
        return pixels if self.whole else centre(pixels, self.size)


def as_embedder(
    embed: str | Callable[[Tensor], Any] | Embedder, view: Callable[[Tensor], Tensor] | None = None
) -> Embedder | None:
    """An embedder from a callable; None for a name, which `load_embedder` takes.

    The callable maps uint8 images (n, 3, 224, 224), or what `view` makes of each image, to
    features (n, d) or maps (n, d, h, w), which are averaged over their sides; arrays and tensors
    are both fine. A module, that of a method, and those that a function refers to are in
    evaluation mode meanwhile, and get images on their device.
    """
    if isinstance(embed, str):
        return None
    if isinstance(embed, Embedder):
        return embed

    modules = nn.ModuleList(modules_of(embed))

    def network(images: Tensor) -> Tensor:
        device = next((weights.device for weights in modules.parameters()), images.device)
        with evaluating(modules), uint8_explained(images):
            found, count = embed(images.to(device)), len(images)
        rows, shape = torch.empty(0), type(found).__name__
        with suppress(TypeError, ValueError, RuntimeError):  # what torch raises for other types
            rows = torch.as_tensor(found)
            shape = f"the shape {tuple(rows.shape)}"
        if rows.ndim == 4:
            rows = rows.float().mean((2, 3))
        if rows.ndim != 2 or len(rows) != count:
            raise UsageError(
                f"embed must return features (n, d) or maps (n, d, h, w) of {count} images, "
                f"got {shape}"
            )
        return rows

    return Embedder(network, view=view)


def modules_of(function: Any) -> list[nn.Module]:
    """The modules that a callable is, belongs to, or refers to by name."""
    if isinstance(function, partial):
        return modules_of(function.func)
    owner = function if isinstance(function, nn.Module) else getattr(function, "__self__", None)
    if isinstance(owner, nn.Module):
        return [owner]
    if not inspect.isfunction(function):
        return []
    names = inspect.getclosurevars(function)
    known = [*names.nonlocals.values(), *names.globals.values()]
    return [value for value in known if isinstance(value, nn.Module)]


@contextmanager
def uint8_explained(images: Tensor) -> Iterator[None]:
    """Explain torch's error about images that a network cannot take as they are."""
    try:
        yield
    except RuntimeError as error:
        if images.dtype != torch.uint8 or "unsigned char" not in str(error):
            raise
        raise UsageError(
            "embed gets uint8 images from 0 to 255: convert and normalise them in it first"
        ) from error


def with_size(name: str, photos: Sequence[Photo]) -> str:
    """The name of an embedder for these photos: `lite0` gets a size, which does not enlarge them.

    Enlarged images show their compression to the network as no network of their size sees it.
    """
    if name != "lite0":
        return name
    sides = []
    for photo in photos[:: max(1, len(photos) // LOOKS)]:
        with suppress(ImageError):
            sides.append(min(photo.pixels().shape[:2]))
    least, most = SIDES
    fitting = (size for size in range(most, least, -8) if short_side(size) <= median(sides))
    return f"lite0:{next(fitting, least)}" if sides else name


def load_embedder(name: str, weights: Path | None = None, device: str = "auto") -> Embedder:
    """An embedder by name: `lite0` or `lite0:SIZE`, `torchvision:NAME` with a weights file, or
    `run:FOLDER`."""
    where = pick_device(device)
    kind, _, rest = name.partition(":")
    if weights is not None and kind != "torchvision":
        raise UsageError(f"--weights needs --embed torchvision:NAME; {name} has its own weights")
    if kind == "lite0":
        from mrdc.nn.lite0 import fuse, lite0

        size = _size(name, rest) if ":" in name else SIDES[1]
        lite = fuse(lite0())

        def features(images: Tensor) -> Tensor:
            return lite.features((images - 127) / 128)

        key = f"lite0-57934424-2-{size}"
        return network_embedder(lite, features, size=size, device=where, key=key)
    if name.startswith("torchvision:"):
        return _torchvision(rest, weights, where)
    if name.startswith("run:"):
        network, size = load_network(Path(rest).expanduser())
        key = f"run-{state_digest(network.state_dict())[:16]}-{size}"
        return network_embedder(network, network.features, size=size, device=where, key=key)
    raise UsageError(
        f"unknown embed {name!r}: choose lite0, lite0:SIZE, torchvision:NAME with --weights, or "
        "run:FOLDER"
    )


def _size(name: str, text: str) -> int:
    if not text.isdecimal() or not 32 <= int(text) <= 1024:
        raise UsageError(f"embed {name!r}: the size must be a number of pixels from 32 to 1024")
    return int(text)


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
    heads = [path for path, module in network.named_modules() if isinstance(module, nn.Linear)]
    if not heads:
        raise UsageError(f"torchvision's {name} has no linear head to take features from")
    network.set_submodule(heads[-1], nn.Identity())
    key = f"torchvision-{name}-{sha256[:16]}"
    return network_embedder(network, lambda x: network(normalised(x)), device=device, key=key)


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
            f"--weights {path}: not a state dict, saved by torch or as .safetensors (of a "
            "pickled network, save its state_dict())"
        ) from None
    if not isinstance(state, dict) or not all(isinstance(v, Tensor) for v in state.values()):
        raise UsageError(f"--weights {path}: not a state dict (no tensors by name)")
    return state, sha256


def network_embedder(
    net: nn.Module, features: Network, *, device: torch.device, size: int = 224, key: str = ""
) -> Embedder:
    """An embedder in fp32 without TF32; `features` takes float images (n, 3, h, w), 0 to 255.

    Batches are padded to one size: torch picks kernels by batch size, and they round differently.
    """
    batch_size = 128 if device.type == "cuda" or size <= 64 else 4  # 4 fit a CPU's caches
    net.eval().to(device).to(memory_format=torch.channels_last)

    on_cpu = device.type == "cpu"

    def run(images: Tensor) -> Tensor:
        full = F.pad(images.to(device).float(), (0, 0) * 3 + (0, batch_size - len(images)))
        with nullcontext() if on_cpu else exact():  # whose flags are those of the whole process
            return features(full.contiguous(memory_format=torch.channels_last))[: len(images)]

    cached_as = f"{key}-{device.type}" if key else None
    return Embedder(run, size, cached_as, batch_size, device=device, side_by_side=on_cpu)


def pick_device(name: str) -> torch.device:
    """The device with this name; "auto" is a GPU if there is one, one for each process."""
    world()  # sets the GPU of this process
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
