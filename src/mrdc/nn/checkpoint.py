"""Checkpoints: safetensors files with the architecture to rebuild the network."""

import copy
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, get_type_hints

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from mrdc._utils.errors import CheckpointError, MrdcError, lacks_memory
from mrdc._utils.files import whole_file
from mrdc._utils.typed import fits
from mrdc.nn.branches import AnyBackbone, Body, any_backbone, with_body
from mrdc.nn.heads import LSC, Head, Linear, SplitCosine
from mrdc.nn.net import Net
from mrdc.nn.resnet import ResNet, Stem, Variant

HEADS: dict[str, type[Head]] = {"Linear": Linear, "SplitCosine": SplitCosine, "LSC": LSC}
BUILT_IN = frozenset(HEADS)
WIDTHS = {"resnet18": 64, "resnet18-narrow": 16}  # channels of the first stage
FORMAT = "mrdc-checkpoint-1"


@dataclass(frozen=True)
class Architecture:
    """Everything needed to build a network."""

    variant: Variant
    head: str
    width: int
    stem: Stem
    size: int  # side of the images it sees
    classes: tuple[int, ...] = ()  # number of classes of each phase so far
    body: Body = "plain"  # what the backbone has become since the first phase
    module: str = ""  # class of the module that the user passes in instead of our ResNet

    def build(self, module: nn.Module | None = None) -> Net:
        """A network with weights from torch's generator, or around a copy of a module."""
        if self.head not in HEADS:
            raise CheckpointError(f"the head is a {self.head}, whose method is not imported")
        plain: ResNet | AnyBackbone
        if module is not None:
            plain = any_backbone(copy.deepcopy(module), self.size)
        elif not self.module:
            plain = ResNet(self.variant, self.width, self.stem)
        else:
            raise CheckpointError(f"the network is a {self.module}, which must be passed in")
        backbone = with_body(plain, self.body)
        head = HEADS[self.head](backbone.features)
        for count in self.classes:
            head.grow(count)
        return Net(backbone, head)


@dataclass
class Checkpoint:
    """Tensors by group and name, and JSON values; detectors have no architecture."""

    architecture: Architecture | None
    tensors: dict[str, dict[str, Tensor]]
    about: dict[str, Any] = field(default_factory=dict)

    def copied(self) -> "Checkpoint":
        """A copy that training does not change; faster than `copy.deepcopy` for many tensors."""
        tensors = {
            group: {name: tensor.detach().clone() for name, tensor in found.items()}
            for group, found in self.tensors.items()
        }
        return replace(self, tensors=tensors, about=copy.deepcopy(self.about))

    def network(self, module: nn.Module | None = None) -> Net:
        """The saved network, in evaluation mode; `module` as for `Architecture.build`."""
        assert self.architecture is not None
        with state_errors():
            net = self.architecture.build(module)
            net.load_state_dict(self.tensors["model"])
        return net.eval()


@contextmanager
def state_errors(what: str = "the checkpoint") -> Iterator[None]:
    """Turn the errors of a checkpoint that does not fit into one."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError) as error:
        if isinstance(error, MrdcError) or lacks_memory(error):
            raise
        why = str(error).partition("\n")[0]
        raise CheckpointError(f"{what} does not fit this network ({why})") from None


def write_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Write it whole or not at all."""
    flat = {
        f"{group}/{name}": tensor.detach().cpu().contiguous().clone()
        for group, tensors in checkpoint.tensors.items()
        for name, tensor in tensors.items()
    }
    architecture = json.dumps(checkpoint.architecture and asdict(checkpoint.architecture))
    texts = {"format": FORMAT, "architecture": architecture, "about": json.dumps(checkpoint.about)}
    with whole_file(path) as file:
        file.write(save(flat, {**texts, "sha256": digest(flat, json.dumps(texts, sort_keys=True))}))


def digest(tensors: Mapping[str, Tensor], about: str = "") -> str:
    """SHA-256 of a text, and of names and values of tensors."""
    found = hashlib.sha256(about.encode())
    for name in sorted(tensors):
        found.update(name.encode())
        found.update(tensors[name].cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint; a CheckpointError if it is missing, damaged, or something else."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata: Mapping[str, str] = file.metadata() or {}
            if metadata.get("format") != FORMAT:
                raise CheckpointError(f"{path}: not a checkpoint of mrdc")
            flat = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path}: cannot be read as a checkpoint ({error})") from None
    texts = {name: text for name, text in metadata.items() if name != "sha256"}
    if digest(flat, json.dumps(texts, sort_keys=True)) != metadata.get("sha256"):
        raise CheckpointError(f"{path}: damaged (it does not match its checksum)")
    tensors: dict[str, dict[str, Tensor]] = {}
    for key, value in flat.items():
        group, _, name = key.partition("/")
        tensors.setdefault(group, {})[name] = value
    try:
        fields, about = (json.loads(metadata[name]) for name in ("architecture", "about"))
        made = fields and Architecture(**{**fields, "classes": tuple(fields["classes"])})
    except (KeyError, TypeError, ValueError, RecursionError):
        raise CheckpointError(f"{path}: not a checkpoint of mrdc") from None
    hints = get_type_hints(Architecture).items()
    if not fits(about, dict[str, Any]) or (
        made and not all(fits(getattr(made, name), hint) for name, hint in hints)
    ):
        raise CheckpointError(f"{path}: not a checkpoint of mrdc")
    return Checkpoint(made, tensors, about)


def last_checkpoint(folder: Path) -> Path | None:
    """The newest phase of a run folder."""
    files = folder.glob("phase-*.safetensors")
    found = [path for path in files if re.fullmatch(r"phase-\d+", path.stem)]  # no copies
    return max(found, key=lambda path: int(path.stem.removeprefix("phase-")), default=None)


def load_network(folder: Path) -> tuple[Net, int]:
    """The network of a run folder as its last finished phase left it, and its image size."""
    path = last_checkpoint(folder)
    if path is None:
        raise CheckpointError(f"{folder}: not a run folder with a finished phase")
    checkpoint = read_checkpoint(path)
    if checkpoint.architecture is None:
        raise CheckpointError(f"{folder}: the run of a detector, which cannot embed single crops")
    with torch.random.fork_rng(devices=[]):
        return checkpoint.network(), checkpoint.architecture.size
