"""Memory replay with data compression: old training images under a byte budget.

    import mrdc
    plan = mrdc.plan("photos", "20/class")               # which quality, how many images
    packed = mrdc.pack("photos", "200MB", "old.mrdc")    # one memory file
    memory = mrdc.ReplayMemory.load("old.mrdc")          # a data set for any DataLoader
    stream = mrdc.open_stream("photos", phases=5)
    result = mrdc.run_phases(mrdc.LUCIR(), stream)       # learn it phase by phase

Everything in `__all__` is public, and imported when it is first used; everything else is private.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from mrdc._utils.errors import BudgetError as BudgetError
    from mrdc._utils.errors import CheckpointError as CheckpointError
    from mrdc._utils.errors import DataError as DataError
    from mrdc._utils.errors import ImageError as ImageError
    from mrdc._utils.errors import MemoryFileError as MemoryFileError
    from mrdc._utils.errors import MissingError as MissingError
    from mrdc._utils.errors import MrdcError as MrdcError
    from mrdc._utils.errors import OutputError as OutputError
    from mrdc._utils.errors import RanksError as RanksError
    from mrdc._utils.errors import StoreError as StoreError
    from mrdc._utils.errors import SweepError as SweepError
    from mrdc._utils.errors import TrainingError as TrainingError
    from mrdc._utils.errors import UsageError as UsageError
    from mrdc._utils.errors import VolumeError as VolumeError
    from mrdc.codec import CODECS as CODECS
    from mrdc.codec import Codec as Codec
    from mrdc.data import DATASETS as DATASETS
    from mrdc.data.coco import open_scenes as open_scenes
    from mrdc.data.images import ImageSet as ImageSet
    from mrdc.data.photo import Photo as Photo
    from mrdc.data.splits import Splits as Splits
    from mrdc.data.splits import open_splits as open_splits
    from mrdc.data.stream import Stream as Stream
    from mrdc.data.stream import open_stream as open_stream
    from mrdc.detection.learner import run_scenes as run_scenes
    from mrdc.detection.settings import SceneSettings as SceneSettings
    from mrdc.detection.stream import make_scenes as make_scenes
    from mrdc.distributed.group import world as world
    from mrdc.experiments.folder import RunFolder as RunFolder
    from mrdc.memory.budget import Budget as Budget
    from mrdc.memory.budget import parse_budget as parse_budget
    from mrdc.memory.replay import ReplayMemory as ReplayMemory
    from mrdc.methods import DDE as DDE
    from mrdc.methods import LUCIR as LUCIR
    from mrdc.methods import METHODS as METHODS
    from mrdc.methods import TPCIL as TPCIL
    from mrdc.methods import AANets as AANets
    from mrdc.methods import BiC as BiC
    from mrdc.methods import CosineReplay as CosineReplay
    from mrdc.methods import Fidelity as Fidelity
    from mrdc.methods import Finetune as Finetune
    from mrdc.methods import ICaRL as ICaRL
    from mrdc.methods import Joint as Joint
    from mrdc.methods import Lesson as Lesson
    from mrdc.methods import LwF as LwF
    from mrdc.methods import Method as Method
    from mrdc.methods import Mnemonics as Mnemonics
    from mrdc.methods import Needs as Needs
    from mrdc.methods import PlainReplay as PlainReplay
    from mrdc.methods import PODNet as PODNet
    from mrdc.methods import Relaxed as Relaxed
    from mrdc.methods import Wrapper as Wrapper
    from mrdc.nn.heads import Head as Head
    from mrdc.nn.net import Net as Net
    from mrdc.nn.net import Output as Output
    from mrdc.nn.settings import TrainSettings as TrainSettings
    from mrdc.planning.learn import Replay as Replay
    from mrdc.planning.pack import pack as pack
    from mrdc.planning.plan import plan as plan
    from mrdc.planning.selection import SELECTORS as SELECTORS
    from mrdc.training.classes import run_phases as run_phases
    from mrdc.training.results import PhaseResult as PhaseResult
    from mrdc.training.results import RunResult as RunResult
    from mrdc.training.settings import MemorySettings as MemorySettings

_HOME = {
    "mrdc._utils.errors": (
        "BudgetError CheckpointError DataError ImageError MemoryFileError MissingError MrdcError "
        "OutputError RanksError StoreError SweepError TrainingError UsageError VolumeError"
    ),
    "mrdc.codec": "CODECS Codec",
    "mrdc.data": "DATASETS",
    "mrdc.data.coco": "open_scenes",
    "mrdc.data.images": "ImageSet",
    "mrdc.data.photo": "Photo",
    "mrdc.data.splits": "Splits open_splits",
    "mrdc.data.stream": "Stream open_stream",
    "mrdc.detection.learner": "run_scenes",
    "mrdc.detection.settings": "SceneSettings",
    "mrdc.detection.stream": "make_scenes",
    "mrdc.distributed.group": "world",
    "mrdc.experiments.folder": "RunFolder",
    "mrdc.memory.budget": "Budget parse_budget",
    "mrdc.memory.replay": "ReplayMemory",
    "mrdc.methods": (
        "AANets BiC CosineReplay DDE Fidelity Finetune ICaRL Joint LUCIR Lesson LwF METHODS Method "
        "Mnemonics Needs PODNet PlainReplay Relaxed TPCIL Wrapper"
    ),
    "mrdc.nn.heads": "Head",
    "mrdc.nn.net": "Net Output",
    "mrdc.nn.settings": "TrainSettings",
    "mrdc.planning.learn": "Replay",
    "mrdc.planning.pack": "pack",
    "mrdc.planning.plan": "plan",
    "mrdc.planning.selection": "SELECTORS",
    "mrdc.training.classes": "run_phases",
    "mrdc.training.results": "PhaseResult RunResult",
    "mrdc.training.settings": "MemorySettings",
}
_MODULES = {name: module for module, names in _HOME.items() for name in names.split()}
__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'mrdc' has no attribute {name!r}")
    try:
        return getattr(import_module(_MODULES[name]), name)
    except ModuleNotFoundError as error:
        from mrdc._utils.extras import missing

        raise missing(error, f"mrdc.{name}") or error from None


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
