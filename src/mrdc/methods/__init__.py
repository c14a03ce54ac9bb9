"""Class-incremental methods, one paper per file."""

from collections.abc import Callable

from mrdc._utils.registry import Registry
from mrdc.methods.aanets import AANets as AANets
from mrdc.methods.base import Method as Method
from mrdc.methods.base import Needs as Needs
from mrdc.methods.base import Wrapper as Wrapper
from mrdc.methods.bic import BiC as BiC
from mrdc.methods.dde import DDE as DDE
from mrdc.methods.fidelity import Fidelity as Fidelity
from mrdc.methods.icarl import ICaRL as ICaRL
from mrdc.methods.lesson import Lesson as Lesson
from mrdc.methods.lucir import LUCIR as LUCIR
from mrdc.methods.lwf import LwF as LwF
from mrdc.methods.mnemonics import Mnemonics as Mnemonics
from mrdc.methods.plain import CosineReplay as CosineReplay
from mrdc.methods.plain import Finetune as Finetune
from mrdc.methods.plain import Joint as Joint
from mrdc.methods.plain import PlainReplay as PlainReplay
from mrdc.methods.podnet import PODNet as PODNet
from mrdc.methods.relaxed import Relaxed as Relaxed
from mrdc.methods.tpcil import TPCIL as TPCIL
from mrdc.nn.settings import TrainSettings as TrainSettings

METHODS: Registry[Callable[[], Method]] = Registry(
    "method",
    "methods",
    {
        "finetune": Finetune,
        "replay": PlainReplay,
        "replay-cosine": CosineReplay,
        "joint": Joint,
        "lwf": LwF,
        "icarl": ICaRL,
        "bic": BiC,
        "lucir": LUCIR,
        "podnet": PODNet,
        "tpcil": TPCIL,
        "mnemonics": Mnemonics,
        "lucir-aanets": lambda: AANets(LUCIR()),
        "podnet-aanets": lambda: AANets(PODNet()),
        "lucir-dde": lambda: DDE(LUCIR(base=5.0)),
        "podnet-dde": lambda: DDE(PODNet()),
        "lucir-fidelity": lambda: Fidelity(LUCIR()),
        "lucir-relaxed": lambda: Relaxed(LUCIR()),
    },
)
