"""What a run is made of, from its settings: method, network, device."""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

import torch

from mrdc._utils.errors import UsageError
from mrdc._utils.registry import lookup
from mrdc._utils.threads import ordered, workers
from mrdc.data.photo import Photo
from mrdc.methods import METHODS, Method
from mrdc.methods.base import Wrapper
from mrdc.nn.checkpoint import Architecture
from mrdc.training.settings import RunSettings

T = TypeVar("T")
WIDTHS = {"resnet18": 64, "resnet18-narrow": 16}


def architecture(settings: RunSettings, method: Method) -> Architecture:
    """The network that settings and method ask for."""
    size = settings.size or 224
    stem = settings.stem
    if stem == "auto":
        stem = "3x3" if method.variant == "pod" or size <= 64 else "7x7"
    return Architecture(method.variant, method.head.__name__, WIDTHS[settings.network], stem, size)


def extra_bytes(made: Architecture, method: Method) -> int:
    """Bytes of the parameters that a method adds to the network after the first phase."""
    with torch.device("meta"):
        bodies = (replace(made, body=method.body).build(), made.build())
    more, plain = (sum(p.nbytes for p in net.parameters()) for net in bodies)
    return more - plain


def charged_bytes(settings: RunSettings, method: Method) -> int:
    """What a strict budget is charged for the network."""
    if not settings.memory.strict_budget:
        return 0
    return extra_bytes(architecture(settings, method), method)


def named_seed(seed: int, name: str) -> int:
    """For everything that is drawn under a name."""
    digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
    return int.from_bytes(digest[:4], "little") >> 1


def pick_device(name: str) -> torch.device:
    """A device that is there.

    Raises:
        UsageError: cuda was asked for and there is none.
    """
    if name == "cuda" and not torch.cuda.is_available():
        raise UsageError("--device cuda: there is no CUDA device here; use --device cpu")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


def make_method(settings: RunSettings) -> Method:
    """The method with its own settings, each checked against the fields it has.

    Raises:
        UsageError: no such method or setting, or another kind of value.
    """
    return with_options(
        lookup(METHODS, settings.method, "method")(), settings.options, settings.method
    )


def with_options(method: T, options: Sequence[str], name: str) -> T:
    """A method with settings written as name=value, each of the kind that is there.

    Raises:
        UsageError: no such setting, or another kind of value.
    """
    defaults = method_settings(method)
    if options and not defaults:
        raise UsageError(f"--set {options[0]}: {name} has no settings")
    values: dict[str, Any] = {}
    for option in options:
        key, equals, text = (part.strip() for part in option.partition("="))
        if not equals:
            raise UsageError(f"--set {option}: write it as name=value")
        default = lookup(defaults, key, f"setting of {name}")
        try:
            values[key] = type(default)(text)
        except ValueError:
            want = {"int": "a whole number", "float": "a number"}[type(default).__name__]
            raise UsageError(f"--set {option}: {key} takes {want}") from None
        if isinstance(default, int | float) and not 0 <= values[key] < math.inf:
            raise UsageError(f"--set {option}: {key} must be 0 or more, and finite")
    return changed(method, values)


def method_settings(method: Any) -> dict[str, Any]:
    """Settings of a method and of what it wraps."""
    inner = method_settings(method.inner) if isinstance(method, Wrapper) else {}
    return inner | {name: getattr(method, name) for name in own_settings(method)}


def own_settings(method: Any) -> list[str]:
    """Names of a method's own settings."""
    names = [field.name for field in fields(method)]
    return [name for name in names if name != "inner" and not name.endswith("_")]


def changed(method: T, values: dict[str, Any]) -> T:
    """The method with other settings."""
    new = {name: value for name, value in values.items() if name in own_settings(method)}
    if isinstance(method, Wrapper):
        new["inner"] = changed(method.inner, values)
    return replace(method, **new)  # type: ignore[type-var]


def content_digest(photos: Sequence[Photo], threads: int | None) -> str:
    """SHA-256 of the contents of photos, in their order."""

    def digest(photo: Photo) -> bytes:
        data = photo.load()
        raw = data if isinstance(data, bytes) else data.tobytes() + str(data.shape).encode()
        return hashlib.sha256(raw).digest()

    found = hashlib.sha256()
    with workers(threads) as pool:
        for _, one in ordered(pool, digest, photos):
            found.update(one)
    return found.hexdigest()
