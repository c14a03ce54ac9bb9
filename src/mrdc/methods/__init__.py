"""Class-incremental methods, one paper per file."""

from collections.abc import Callable

from mrdc._utils.registry import Registry
from mrdc.methods.aanets import AANets
from mrdc.methods.base import Method, Needs, Wrapper
from mrdc.methods.bic import BiC
from mrdc.methods.dde import DDE
from mrdc.methods.finetune import Finetune, Joint
from mrdc.methods.icarl import ICaRL
from mrdc.methods.lesson import Lesson
from mrdc.methods.lucir import LUCIR
from mrdc.methods.lwf import LwF
from mrdc.methods.mnemonics import Mnemonics
from mrdc.methods.podnet import PODNet
from mrdc.methods.tpcil import TPCIL
from mrdc.nn.settings import TrainSettings

METHODS: Registry[Callable[[], Method]] = Registry(
    "method",
    "methods",
    {
        "finetune": Finetune,
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
    },
)

__all__ = [
    "DDE",
    "LUCIR",
    "METHODS",
    "TPCIL",
    "AANets",
    "BiC",
    "Finetune",
    "ICaRL",
    "Joint",
    "Lesson",
    "LwF",
    "Method",
    "Mnemonics",
    "Needs",
    "PODNet",
    "TrainSettings",
    "Wrapper",
]
