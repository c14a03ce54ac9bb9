"""Settings of a run. Fields are flags of the same name."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from mrdc.nn.settings import TrainSettings as TrainSettings
from mrdc.planning.settings import SearchSettings

TRAIN = TrainSettings()


@dataclass(frozen=True)
class Storage:
    """How much the memory of a run holds."""

    budget: str = "20/class"
    """20/class (100/phase for scenes), "2000 originals", or bytes such as 200MB."""
    quality: str = "auto"
    """auto: choose by the criterion after the first phase, for the whole run; dynamic: after every
    phase; original: keep the files as they are; a number; or run:FOLDER, what the criterion picks
    by its mean over the phases of a finished run."""


@dataclass(frozen=True)
class MemorySettings(SearchSettings, Storage):
    """The replay memory of a run."""

    fade: bool = False
    """Under a fixed budget, cut scans of all images, down to 5 of 10, before images are left out or
    dropped; for codec jpeg-progressive, best with quality 75."""
    strict_budget: bool = False
    """Charge parameters that the method adds to the network (AANets' second branch), as fp32."""

    def __post_init__(self) -> None:
        """From Python numbers will do for a budget and a quality."""
        super().__post_init__()
        for name in ("budget", "quality"):
            object.__setattr__(self, name, str(getattr(self, name)))


@dataclass(frozen=True)
class MatchedMemory(MemorySettings):
    """The same where new images are shown as they will be stored."""

    @property
    def matched(self) -> bool:
        return True


@dataclass(frozen=True)
class LearnSettings:
    """How a stream is learned."""

    seed: int = 0
    """Seed of initial weights, crops and random selections."""
    network: str = "resnet18"
    """resnet18, or resnet18-narrow, which has a quarter of the channels, for runs without a GPU."""
    stem: Literal["auto", "7x7", "3x3"] = "auto"
    """First convolution; auto: 3x3 for inputs up to 64 px, else 7x7."""
    size: int | None = None
    """Side of the network's input; by default 224, or smaller if the data is."""
    train: TrainSettings = TRAIN
    memory: MemorySettings = MemorySettings()
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to train."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """auto: bf16 on a GPU, else fp32. Selection and choice always use fp32."""
    compile: Literal["auto", "yes", "no"] = "auto"
    """Compile the training step on a GPU; auto: if the run is long enough to repay it."""
    resident: Literal["auto", "gpu", "ram", "stream"] = "auto"
    """Where images are kept during a phase: decoded on the GPU or in RAM, or as files that are
    decoded in every epoch (stream); auto: the fastest with room, and the log says which."""
    threads: int | None = None
    """Threads that decode and encode, or processes where there is more to decode; by default one
    per core, and up to eight threads. Results do not depend on it."""

    @property
    def choice(self) -> MemorySettings:
        """Settings of the memory, with the qualities and the bound that suit the training."""
        return MatchedMemory(**vars(self.memory)) if self.train.match == 1 else self.memory


@dataclass(frozen=True)
class StreamSettings:
    """Which classes arrive when, and which method learns them."""

    data: str
    """A folder with train/ and test/ (also ImageNet, CUB-200-2011 and Tiny-ImageNet as published),
    imagenet-sub:FOLDER, cifar100:FOLDER, textures (built in); or anything `plan` reads."""
    columns: tuple[str, str] | None = None
    """Columns with the image (or its path) and the class of a CSV, Parquet or Arrow file, as for
    `plan`."""
    method: Annotated[str, tyro.conf.Suppress] = "lucir"
    phases: int = 5
    """Phases after the first; with --first equal, all phases."""
    first: str = "half"
    """Classes of the first phase: half, equal (as many as in the others), or a number."""
    order: str = "1993"
    """Class order: a seed (1993 is the published one), sorted, similar or dissimilar."""
    superclasses: Path | None = None
    """CSV of class,superclass for the orders similar and dissimilar."""
    holdout: float = 0.2
    """Share of images set aside for testing if the data has no test images."""
    compress: int | None = None
    """Compress all training images of all phases to this quality of --memory.codec first. With
    the same --memory.quality they are then stored with hardly a change; budgets still count
    originals as they were. A baseline to compare --train.match with."""
    options: Annotated[tuple[str, ...], tyro.conf.arg(name="set")] = ()
    """Settings of the method, such as margin=0.4."""


@dataclass(frozen=True)
class FolderSettings:
    """Where a run keeps its results."""

    out: Path | None = None
    """Folder of the run; by default runs/ and a name made of the settings."""
    checkpoint_seconds: float = 60.0
    """Minimum time between two checkpoints inside a phase."""
    cache: bool = True
    """Share the first phase between runs that agree on it, in $MRDC_CACHE or the user cache
    folder; --no-cache turns that off."""
    skip_bad: bool = False
    """Leave out unreadable images, and list them."""
    tensorboard: bool = False
    """Also write TensorBoard events into the folder (needs the extra tensorboard)."""
    plugin: tuple[str, ...] = ()
    """Modules to import first, which may register methods, codecs, selectors or data sets."""


@dataclass(frozen=True)
class RunSettings(FolderSettings, LearnSettings, StreamSettings):
    """A continual-learning experiment: one stream, one method, one memory."""
