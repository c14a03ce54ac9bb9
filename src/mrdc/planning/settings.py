"""Settings of `plan` and `pack`: fields are flags of the same name."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

QUALITIES = (10, 25, 50, 75, 90)  # the paper's Q


@dataclass(frozen=True)
class PlanSettings:
    """Settings that `plan` and `pack` share."""

    photos: tyro.conf.Positional[Path]
    """A folder per class, a folder with train/ and test/ of such, a .csv of path,label, a
    WebDataset .tar, or textures (built in); or scenes with boxes: a COCO .json, or a folder with
    train.json and images/, COCO or SODA10M as published."""
    budget: str
    """20/class, "2000 originals", or bytes such as 200MB (which then bound the whole file)."""
    codec: tuple[str, ...] = ("jpeg",)
    """Codecs to consider; `mrdc list` names them."""
    quality: tuple[int, ...] = QUALITIES
    """Qualities to consider. With one codec and one quality there is no search."""
    select: str = "auto"
    """How images of a class are ranked; `mrdc list` names the ways. auto: herding for classes,
    random_choice for scenes."""
    embed: str = "lite0"
    """Network that sees the images: lite0, torchvision:NAME, or run:FOLDER (one of our runs)."""
    weights: Path | None = None
    """Weights file of a torchvision network."""
    epsilon: float = 0.5
    """A quality passes while |R_q - 1| is below this."""
    rule: Literal["contiguous", "paper"] = "contiguous"
    """contiguous: no better quality may fail; paper: any quality that passes."""
    pairing: Literal["paired", "independent"] = "paired"
    """paired: the same images before and after; independent: ranked anew on compressed ones."""
    volume: Literal["gram", "ridge"] = "gram"
    """gram: the paper's; ridge: also for more images than feature dimensions."""
    accounting: Literal["packed", "file"] = "packed"
    """packed: JPEG tables stored once; file: every image a whole file, as in the paper."""
    exact: bool = False
    """Also embed what does not fit, for the exact k-DPP probabilities and L_2."""
    skip_bad: bool = False
    """Go on without unreadable or missing images, and list them."""
    cache: bool = True
    """Features are kept for the next time, in $MRDC_CACHE or the user cache folder;
    --no-cache neither keeps nor reads them."""
    seed: int = 0
    """For random_choice."""
    threads: int | None = None
    """Decoding and encoding threads, by default one for each core, up to eight; results do not
    depend on it."""


@dataclass(frozen=True)
class PackSettings(PlanSettings):
    """Settings of `pack`."""

    output: Annotated[Path, tyro.conf.arg(aliases=["-o"])] = Path("memory.mrdc")
    """The memory file to write."""
    force: bool = False
    """Replace the output if it exists."""
