"""What commands can be told: fields here are flags of the same name."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, Protocol

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


@dataclass(frozen=True)
class TrainSettings:
    """One optimisation: SGD as in the paper's appendix."""

    epochs: int = 90
    """Passes over the images of a phase."""
    lr: float = 0.1
    """Learning rate at the start of a phase."""
    momentum: float = 0.9
    """Of SGD."""
    weight_decay: float = 1e-4
    """Of everything that is trained."""
    batch_size: int = 128
    """Images in a step."""
    schedule: Literal["multistep", "cosine"] = "multistep"
    """multistep: as the released code of LUCIR and MRDC; cosine: as PODNet, and the MRDC text."""
    milestones: tuple[float, ...] = (1 / 3, 2 / 3)
    """Where multistep lowers the rate, as parts of the epochs."""
    gamma: float = 0.1
    """What multistep multiplies the rate by."""
    brightness: float = 0.0
    """Random brightness, 1 +- this; PODNet uses 63/255."""


@dataclass(frozen=True)
class MemorySettings:
    """The replay memory of a run."""

    budget: str = "20/class"
    """20/class (100/phase for scenes), "2000 originals", or bytes such as 200MB."""
    quality: str = "auto"
    """auto: R_q chooses after the first phase, for the whole run; dynamic: after every phase;
    original: the files as they are; or a number."""
    codec: str = "jpeg"
    """Codec of compressed images; `mrdc list` names them."""
    candidates: tuple[int, ...] = QUALITIES
    """Qualities that R_q is measured for."""
    select: str = "herding"
    """How images of a class are ranked; `mrdc list` names the ways."""
    epsilon: float = 0.5
    """A quality passes while |R_q - 1| is below this."""
    rule: Literal["contiguous", "paper"] = "contiguous"
    """contiguous: no better quality may fail; paper: any quality that passes."""
    pairing: Literal["paired", "independent"] = "paired"
    """paired: ranked by the originals; independent: ranked by the compressed images."""
    volume: Literal["gram", "ridge"] = "gram"
    """gram: the paper's; ridge: also for more images than feature dimensions."""
    accounting: Literal["packed", "file"] = "packed"
    """packed: JPEG tables stored once; file: every image a whole file, as in the paper."""
    strict_budget: bool = False
    """Charge parameters that the method adds to the network (AANets' second branch), as fp32."""


class ReplaySettings(Protocol):
    """What a memory that is filled phase by phase must be told."""

    @property
    def data(self) -> str: ...
    @property
    def memory(self) -> MemorySettings: ...
    @property
    def seed(self) -> int: ...
    @property
    def threads(self) -> int | None: ...


@dataclass(frozen=True)
class RunSettings:
    """A continual-learning experiment: one stream, one method, one memory."""

    data: str
    """A folder with train/ and test/ (ImageNet, CUB-200-2011 and Tiny-ImageNet as published,
    too), imagenet-sub:FOLDER, cifar100:FOLDER, textures (built in); or anything `plan` reads."""
    method: Annotated[str, tyro.conf.Suppress] = "lucir"
    phases: int = 5
    """Phases after the first; in all, with --first equal."""
    first: str = "half"
    """Classes of the first phase: half, equal (all phases alike), or a number."""
    order: str = "1993"
    """Class order: a seed (1993 is the published one), sorted, similar or dissimilar."""
    superclasses: Path | None = None
    """CSV of class,superclass, for the orders similar and dissimilar."""
    holdout: float = 0.2
    """Share set aside for testing where the data has no test images."""
    seed: int = 0
    """For first weights, crops and random selections."""
    network: Literal["resnet18", "resnet18-narrow"] = "resnet18"
    """resnet18-narrow has a quarter of the channels, for runs without a GPU."""
    stem: Literal["auto", "7x7", "3x3"] = "auto"
    """First convolution; auto: 3x3 for PODNet and for images up to 64 px, else 7x7."""
    size: int | None = None
    """Side of what the network sees; by default 224, or the data's own if that is smaller."""
    options: Annotated[tuple[str, ...], tyro.conf.arg(name="set")] = ()
    """Settings of the method, such as margin=0.4."""
    train: TrainSettings = TrainSettings()
    memory: MemorySettings = MemorySettings()
    out: Path | None = None
    """Folder of the run; by default runs/ and a name made of the above."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to train."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """auto: bf16 on a GPU, else fp32. What is selected and measured is always fp32."""
    compile: Literal["auto", "yes", "no"] = "auto"
    """Compile the training step on a GPU; auto: where the run is long enough to repay it."""
    resident: Literal["auto", "gpu", "ram", "stream"] = "auto"
    """Where decoded images are kept during a phase; auto: the first of gpu, ram with room."""
    threads: int | None = None
    """Decoding and encoding threads, by default one for each core, up to eight; results do not
    depend on it."""
    checkpoint_seconds: float = 60.0
    """Least time between two checkpoints inside a phase."""
    cache: bool = True
    """Share the first phase between runs that agree on it, in $MRDC_CACHE or the user cache
    folder; --no-cache trains it anew."""
    tensorboard: bool = False
    """Also write TensorBoard events into the folder (needs mrdc[tensorboard])."""


@dataclass(frozen=True)
class StepSettings:
    """Training of a detector: SGD with a constant rate, step by step."""

    steps: int = 10_000
    """Steps of a phase."""
    lr: float = 0.01
    """Learning rate."""
    momentum: float = 0.9
    """Of SGD."""
    weight_decay: float = 1e-4
    """Of everything that is trained."""
    warmup: float = 0.1
    """Part of the first phase over which the rate rises."""
    batch_size: int = 16
    """Labelled images in a step."""
    unlabelled_batch: int = 16
    """Unlabelled images in a step."""


@dataclass(frozen=True)
class DetectSettings:
    """Continual learning of a detector: scenes in phases, some with boxes, some without."""

    data: str
    """A folder with train.json, val.json (COCO) and images/, or SODA10M or COCO as published, or
    shapes (built in)."""
    method: Annotated[str, tyro.conf.Suppress] = "supervised"
    replay: Annotated[Literal["none", "memory", "joint"], tyro.conf.Suppress] = "memory"
    phases: int = 5
    """Phases; scenes are drawn at random."""
    labelled: int = 1000
    """Labelled scenes of a phase."""
    unlabelled: int = 20_000
    """Unlabelled images of a phase."""
    seed: int = 0
    """For phases, first weights, views and random selections."""
    detector: Literal["r50", "r18", "lite0"] = "r50"
    """Faster R-CNN on ResNet-50, on ResNet-18, or on EfficientNet-Lite0 (ImageNet weights)."""
    weights: Path | None = None
    """ImageNet weights of a ResNet; without them it starts from scratch, with group norms."""
    short: int = 1080
    """Images are scaled to this short side"""
    long: int = 1920
    """unless the long one would be over this."""
    options: Annotated[tuple[str, ...], tyro.conf.arg(name="set")] = ()
    """Settings of the method, such as threshold=0.6."""
    train: StepSettings = StepSettings()
    memory: MemorySettings = MemorySettings(budget="100/phase", select="random_choice")
    out: Path | None = None
    """Folder of the run; by default runs/ and a name made of the above."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to train."""
    threads: int | None = None
    """Decoding and encoding threads, by default one for each core, up to eight; results do not
    depend on it."""
    checkpoint_seconds: float = 60.0
    """Least time between two checkpoints inside a phase."""
    tensorboard: bool = False
    """Also write TensorBoard events into the folder (needs mrdc[tensorboard])."""


AnySettings = RunSettings | DetectSettings
