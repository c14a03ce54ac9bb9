"""Settings of a search, of `plan` and of `pack`. Fields are flags of the same name."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro
from tyro.constructors import PrimitiveConstructorSpec

from mrdc._utils.store_path import as_path

if TYPE_CHECKING:
    from mrdc.codec import Codec

QUALITIES = (10, 25, 50, 75, 90)  # the paper's Q
LOWER = 5  # considered, too, if new images are shown as they will be stored
Criterion = Literal["volume-ratio", "ratio-per-image", "discrepancy"]
CRITERION: Criterion = "ratio-per-image"  # the default
Limits = tuple[float, float]  # a ratio passes between them
LIMITS: dict[str, Limits] = {"volume-ratio": (0.5, 1.5), "ratio-per-image": (0.95, 1.03)}
MATCHED = LIMITS | {"ratio-per-image": (0.5, 1.5)}  # if new images are shown as they will be stored
JPEGS = ("jpeg", "jpeg-optimised", "jpeg-progressive")
GENTLE = 25  # from this quality up, r of a JPEG may be as far above 1 as if matched
BANDWIDTH = 0.5  # h of the kernel exp(-|a - b|^2 / h) of the discrepancy, for rows of length 1
SYMBOLS = {"volume-ratio": "R_q", "ratio-per-image": "r", "discrepancy": "discrepancy"}
Location = Annotated[
    Path,
    PrimitiveConstructorSpec[Path](
        nargs=1,
        metavar="PATH",
        instance_from_str=lambda given: as_path(given[0]),
        is_instance=lambda value: isinstance(value, Path),
        str_from_instance=lambda path: [str(path)],
    ),
]  # a path or a URL


@dataclass(frozen=True)
class SearchSettings:
    """How a quality is searched for; `plan`, `pack` and runs share these."""

    codec: tuple[str, ...] = ("jpeg",)
    """Codecs to consider; `mrdc list` names them."""
    qualities: tuple[int, ...] | None = None
    """Qualities to consider; by default 10 25 50 75 90, and also 5 if new images are shown as they
    will be stored; 5 15 25 35 50 75 for avif."""
    scale: tuple[float, ...] = (1.0,)
    """Scales to consider with every quality: 0.5 shrinks an image to half its sides before it is
    encoded; decoding restores its size."""
    select: str = "auto"
    """Selector that ranks the images of a class; `mrdc list` names them. auto: herding for
    classes, random_choice for scenes."""
    criterion: Criterion = CRITERION
    """What decides. volume-ratio: R_q, as in the paper; ratio-per-image: r, which is R_q per stored
    image; discrepancy: how well the stored images stand in for all originals."""
    epsilon: float | None = None
    """A quality passes if R_q or r is within this of 1. By default R_q must be between 0.5 and 1.5,
    and r between 0.95 and 1.03 (for JPEG of quality 25 or better 0.95 and 1.5), or 0.5 and 1.5 if
    new images are shown as they will be stored."""
    rule: Literal["contiguous", "paper"] = "contiguous"
    """For R_q and r. contiguous: every better quality must pass too; paper: any that passes."""
    pairing: Literal["paired", "independent"] = "paired"
    """paired: rank the originals; independent: rank the compressed images."""
    volume: Literal["gram", "ridge"] = "gram"
    """gram: the paper's volume; ridge: defined for more images than feature dimensions."""
    accounting: Literal["packed", "file"] = "packed"
    """packed: store shared headers once; file: store images as whole files, as in the paper."""

    def __post_init__(self) -> None:
        """From Python a single codec, quality or scale will do."""
        for name in ("codec", "qualities", "scale"):
            given = getattr(self, name)
            if given is not None:
                alone = isinstance(given, str) or not isinstance(given, Iterable)
                object.__setattr__(self, name, (given,) if alone else tuple(given))

    @property
    def matched(self) -> bool:
        """True if new images are shown as they will be stored, which changes defaults."""
        return False

    def tried(self, codec: "Codec") -> tuple[int, ...]:
        """The qualities of a codec to consider."""
        if self.qualities is not None:
            return self.qualities
        usual = (LOWER, *QUALITIES) if self.matched else QUALITIES
        return codec.considered or usual

    @property
    def limits(self) -> Limits | None:
        """Where the ratio must lie; None for the discrepancy, which has no limits."""
        if self.epsilon is not None:
            return 1 - self.epsilon, 1 + self.epsilon
        return (MATCHED if self.matched else LIMITS).get(self.criterion)

    def limits_of(self, codec: str, quality: int | None) -> Limits | None:
        """Where the ratio of a candidate must lie: r of a better JPEG may be further above 1."""
        limits, by_ratio = self.limits, self.criterion == "ratio-per-image"
        gentle = codec in JPEGS and quality is not None and quality >= GENTLE
        if limits is None or self.epsilon is not None or not (by_ratio and gentle):
            return limits
        return limits[0], MATCHED[self.criterion][1]


@dataclass(frozen=True)
class ChoiceSettings(SearchSettings):
    """Settings of a search for training that is not a run of mrdc."""

    matched: bool = False
    """You will show new images as they will be stored (`ReplayMemory.as_stored`): then stronger
    compression pays, r may be between 0.5 and 1.5, and quality 5 is considered, too."""


@dataclass(frozen=True)
class Source:
    """The images and the budget of a plan."""

    photos: tyro.conf.Positional[Location]
    """Folder with a sub-folder per class, or with train/ and test/ of such; a .csv of path,label;
    a WebDataset .tar; a .parquet or .arrow file with images; a quoted pattern of these, such as
    'photos-*.parquet' or 'shard-{0000..0099}.tar'; hf:FOLDER, written by save_to_disk; textures
    (built in). Paths may be URLs, such as s3://bucket/photos. For scenes with boxes: a COCO .json,
    or a folder with train.json and images/; COCO and SODA10M as published."""
    budget: str
    """20/class, "2000 originals", or bytes such as 200MB (which bound the whole file)."""


@dataclass(frozen=True)
class PlanSettings(ChoiceSettings, Source):
    """Settings that `plan` and `pack` share."""

    qualities: Annotated[tuple[int, ...] | None, tyro.conf.arg(name="quality")] = None
    """Qualities to consider; by default 10 25 50 75 90, and also 5 if --matched; 5 15 25 35 50 75
    for avif. One codec with one quality needs no search."""
    sample: int | None = None
    """Measure this many classes, drawn at random, with their share of the budget, instead of all of
    them: faster where there are many. `pack` then stores all classes."""
    columns: tuple[str, str] | None = None
    """Columns with the image (or its path) and the class, in a CSV with a heading, or a Parquet or
    Arrow file; by default path and label, or the only ones that fit."""
    max_side: int | None = None
    """Shrink images whose longer side exceeds this many pixels first, as if the source had been
    resized."""
    embed: str = "lite0"
    """Network that embeds the images: lite0, lite0:SIZE, torchvision:NAME, or run:FOLDER (from a
    run). Without a size, lite0 sees 224 px, or less if the images are smaller; give one if you
    train at a smaller size than the images have."""
    weights: Path | None = None
    """Weights file of a torchvision network."""
    exact: bool = False
    """Also compute the exact k-DPP probabilities and L_2, which embeds every image."""
    skip_bad: bool = False
    """Skip unreadable or missing images, and list them."""
    cache: Annotated[bool, tyro.conf.arg(help_behavior_hint="")] = True
    """Do not cache features, which are otherwise kept in $MRDC_CACHE or the user cache folder."""
    seed: int = 0
    """Seed of random_choice and --sample."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to embed."""
    threads: int | None = None
    """Threads that decode and encode; by default one per core, up to eight. Results do not depend
    on it."""
    engine: Literal["threads", "ray"] = "threads"
    """Where images are embedded and encoded. threads: in this process; ray: by the workers of a Ray
    cluster, with the same result (docs/scale.md)."""
    address: str | None = None
    """HOST:PORT of the Ray cluster; by default $RAY_ADDRESS, or else Ray is started on this machine
    with --threads workers."""
    plugin: tuple[str, ...] = ()
    """Modules to import first, which may register codecs, selectors or data sets."""


@dataclass(frozen=True)
class PackSettings(PlanSettings):
    """Settings of `pack`."""

    output: Annotated[Location, tyro.conf.arg(aliases=["-o"])] = Path("memory.mrdc")
    """Memory to write, a path or a URL."""
    part_size: str | None = None
    """Write a folder of memory files of at most this size, such as 1GB, and a manifest, instead of
    one file. Other commands take the folder like a file; the budget is one for all parts."""
    fade: bool = False
    """Cut scans of all images, down to 5 of 10, before images are left out, now and when `add` or
    `rebudget` needs room; for --codec jpeg-progressive, best with --quality 75."""
    force: bool = False
    """Replace the output if it exists."""
