"""Settings of any run: what decides its numbers, and the name of its folder."""

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mrdc._utils.errors import UsageError
from mrdc._utils.stores import is_url
from mrdc.detection.settings import DetectSettings
from mrdc.planning.selection import usual_selector
from mrdc.training.settings import RunSettings

AnySettings = RunSettings | DetectSettings

# Where and how to run, not what. On a CPU these do not change the numbers; on a GPU, whose sums
# differ from run to run anyway, kernels and the order of draws may.
FREE = (
    "out",
    "device",
    "compile",
    "resident",
    "threads",
    "checkpoint_seconds",
    "cache",
    "tensorboard",
    "plugin",
)


def decisive_settings(settings: AnySettings) -> dict[str, Any]:
    """Settings that decide the numbers, as JSON; runs of a study with equal ones share a folder."""
    values = {name: value for name, value in asdict(settings).items() if name not in FREE}
    scenes = isinstance(settings, DetectSettings)
    values["memory"]["select"] = usual_selector(settings.memory.select, scenes)
    if Path(settings.data).exists():
        values["data"] = str(Path(settings.data).resolve())
    plain: dict[str, Any] = json.loads(json.dumps(values, default=str))
    return plain


def check_out(out: Path | None) -> None:
    """Refuse a URL: runs need a local folder."""
    url = str(out).replace(":/", "://", 1)  # a path has one slash
    if is_url(url):
        raise UsageError(
            f"--out {url}: must be a local folder; mrdc run --publish {url} puts a finished run "
            "there"
        )


def flat(settings: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings under dotted names."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, dict):
            found |= flat(value, f"{prefix}{name}.")
        else:
            found[prefix + name] = value
    return found


def folder_name(settings: AnySettings, name: str) -> str:
    """A name made of the recipe, the data, the phases and the seed."""
    data = re.sub(r"[^\w.-]+", "_", data_name(settings.data))
    return f"{name}-{data}-{settings.phases}-seed{settings.seed}"


def data_name(data: str) -> str:
    """The last part of a path, with the kind that may precede it: imagenet-sub:ILSVRC2012."""
    kind = re.match(r"([\w-]+:)?", data)
    assert kind is not None
    return kind[0] + Path(data[kind.end() :]).resolve().name


def built_in(data: str, name: str = "textures") -> bool:
    """Whether this names built-in images, and not a folder of that name."""
    return data == name and not Path(data).exists()
