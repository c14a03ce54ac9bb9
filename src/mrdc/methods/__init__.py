"""Class-incremental methods, one paper each."""

from mrdc.methods.base import Lesson, Method
from mrdc.methods.bic import BiC
from mrdc.methods.finetune import Finetune, Joint
from mrdc.methods.icarl import ICaRL
from mrdc.methods.lucir import LUCIR
from mrdc.methods.lwf import LwF
from mrdc.methods.podnet import PODNet

METHODS: dict[str, type[Method]] = {
    "finetune": Finetune,
    "joint": Joint,
    "lwf": LwF,
    "icarl": ICaRL,
    "bic": BiC,
    "lucir": LUCIR,
    "podnet": PODNet,
}

__all__ = ["METHODS", "Lesson", "Method"]
