"""What commands can be told: fields here are flags of the same name."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, Protocol

import tyro

from mrdc.planning.settings import QUALITIES


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
