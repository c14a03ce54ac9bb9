"""Any module as a network: torchvision, timm and custom ones learn, save and resume."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchvision.models import mobilenet_v3_small, shufflenet_v2_x0_5

from mrdc._utils.errors import CheckpointError, UsageError
from mrdc.methods import DDE, LUCIR, AANets, Method, Mnemonics, Needs, PODNet, TrainSettings
from mrdc.nn.branches import any_backbone, as_maps, scaled
from mrdc.nn.checkpoint import Architecture, load_network, read_checkpoint, write_checkpoint
from mrdc.nn.heads import Linear
from mrdc.training.architecture import make_architecture
from mrdc.training.classes import run_phases
from mrdc.training.settings import LearnSettings, MemorySettings
from tests.helpers import Remembers, changed, small_stream, state_of, stored

pytestmark = pytest.mark.usefixtures("seeded")


class Pyramid(nn.Module):
    """A small network that returns a list of maps."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3, 2, 1)
        self.norm = nn.BatchNorm2d(4)
        self.second = nn.Conv2d(4, 6, 3, 2, 1, groups=2)

    def forward(self, x: Tensor) -> list[Tensor]:
        one = self.norm(self.first(x)).relu()
        return [one, self.second(one)]


def torchvision_features() -> nn.Module:
    net: nn.Module = shufflenet_v2_x0_5(weights=None)
    net.fc = nn.Identity()
    return net


def timm_features() -> nn.Module:
    made: nn.Module = pytest.importorskip("timm").create_model("test_resnet", num_classes=0)
    return made


NETWORKS = {
    "torchvision features": (torchvision_features, 1024, 1),
    "torchvision map": (lambda: mobilenet_v3_small(weights=None).features, 576, 1),
    "timm": (timm_features, 96, 1),
    "list of maps": (Pyramid, 6, 2),
}
EVERY = pytest.mark.parametrize(("make", "width", "maps"), NETWORKS.values(), ids=list(NETWORKS))


def learned(method: Method, network: nn.Module | str, keeper: Remembers, **given: Any) -> Any:
    usual: dict[str, Any] = {
        "memory": MemorySettings("2/class", "original", qualities=(50,)),
        "train": TrainSettings(epochs=1, lr=0.001, batch_size=16),
    }
    stream = small_stream(2, 1, images=4)
    return run_phases(
        method, stream, network=network, size=16, device="cpu", keeper=keeper, **usual | given
    )


@EVERY
def test_the_width_and_the_maps_of_a_network_are_found(
    make: Callable[[], nn.Module], width: int, maps: int
) -> None:
    """Features count as a map of one pixel; the module and its modes are left alone."""
    module = make().train()
    before = state_of(module)
    made = any_backbone(module, 16)
    assert made.features == width
    found = made.eval()(torch.randn(2, 3, 16, 16))
    assert len(found) == maps
    assert found[-1].shape[:2] == (2, width) and all(one.ndim == 4 for one in found)
    assert any_backbone(make().train(), 16).module.training
    assert changed(module, before) == set()


def test_modules_in_evaluation_mode_stay_there() -> None:
    """A batch norm that its owner has frozen."""
    module = Pyramid().train()
    module.norm.eval()
    any_backbone(module, 16)
    assert module.training and not module.norm.training


@EVERY
def test_any_network_learns_and_resumes_to_the_same_bits(
    make: Callable[[], nn.Module], width: int, maps: int, tmp_path: Path
) -> None:
    """From a checkpoint file after a phase; a copy learns, starting from the given weights."""
    method = partial(PODNet, finetune_epochs=1) if maps > 1 else LUCIR
    network = make().train()
    before, whole, resumed = state_of(network), Remembers(), Remembers()
    result = learned(method(), network, whole)
    path = tmp_path / "phase-00.safetensors"
    write_checkpoint(path, whole.saved[0].checkpoint)
    resumed.saved = [replace(whole.saved[0], checkpoint=read_checkpoint(path))]
    assert learned(method(), network, resumed).accuracy == result.accuracy
    mine, theirs = (keeper.saved[-1] for keeper in (whole, resumed))
    tensors = mine.checkpoint.tensors["model"]
    assert all(torch.equal(tensors[n], theirs.checkpoint.tensors["model"][n]) for n in tensors)
    assert stored(mine.memory) == stored(theirs.memory) != []
    assert network.training and changed(network, before) == set()
    assert any(not torch.equal(tensors[f"backbone.module.{n}"], before[n]) for n in before)
    with pytest.raises(CheckpointError, match="which must be passed in"):
        load_network(tmp_path)


def test_mnemonics_scales_the_kernels_of_any_network() -> None:
    """Grouped ones, too; the multipliers are the only added parameters."""
    keeper = Remembers()
    result = learned(Mnemonics(), network := Pyramid(), keeper)
    tensors = keeper.saved[-1].checkpoint.tensors["model"]
    scales = {name: value for name, value in tensors.items() if name.endswith(".scale")}
    scales.pop("head.scale")
    assert {name: value.shape for name, value in scales.items()} == {
        "backbone.module.first.scale": (4, 3, 1, 1),
        "backbone.module.second.scale": (6, 2, 1, 1),
    }
    assert all(bool((value != 1).any()) for value in scales.values())
    assert result.memory.parameter_bytes == 4 * (4 * 3 + 6 * 2)
    first = keeper.saved[0].checkpoint.tensors["model"]
    fixed, now = first["backbone.module.first.weight"], tensors["backbone.module.first.conv.weight"]
    assert torch.equal(fixed, now) and not torch.equal(now, network.first.weight)


@pytest.mark.parametrize("method", [AANets(LUCIR()), DDE(AANets(PODNet()))])
def test_aanets_refuses_any_other_network(method: Method) -> None:
    """Before anything is trained."""
    keeper = Remembers()
    with pytest.raises(UsageError, match=r"AANets mixes .* use network='resnet18' with it"):
        learned(method, Pyramid(), keeper)
    assert not keeper.saved


class Returns(nn.Module):
    """A module that returns something constant."""

    def __init__(self, value: object):
        super().__init__()
        self.value = value

    def forward(self, x: Tensor) -> object:
        return self.value


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (torch.zeros(1, 2, 3), r"torch.Size\(\[1, 2, 3\]\)"),
        (torch.zeros(4), r"torch.Size\(\[4\]\)"),
        ([], "nothing"),
        ({"features": 1}, "dict"),
        ([torch.zeros(1, 2), None], r"torch.Size\(\[1, 2\]\), NoneType"),
    ],
)
def test_refuses_networks_that_return_something_else(value: object, shown: str) -> None:
    """The message says what is allowed and what was returned."""
    message = rf"network must return features \(n, d\), a map .*several maps, got {shown}"
    with pytest.raises(UsageError, match=message):
        learned(LUCIR(), Returns(value), Remembers())
    assert [one.shape for one in as_maps(torch.zeros(2, 3))] == [(2, 3, 1, 1)]


def test_refuses_unknown_networks_and_heads() -> None:
    with pytest.raises(UsageError, match=r"unknown network 'resnet19'.*mean 'resnet18'\?"):
        learned(LUCIR(), "resnet19", Remembers())
    with pytest.raises(CheckpointError, match="the head is a Strange, whose method is not"):
        Architecture("plain", "Strange", 2, "3x3", 16).build()


def test_a_head_with_the_name_of_a_built_in_one_is_refused() -> None:
    """Checkpoints name heads by their class, so a second `Linear` would be taken for ours."""
    other = type("Linear", (Linear,), {})

    class Mine(Method):
        @property
        def needs(self) -> Needs:
            return Needs(head=other)

    with pytest.raises(UsageError, match="has the name of a built-in head: rename the class"):
        make_architecture(LearnSettings(), Mine())


def test_fixed_kernels_need_plain_convolutions() -> None:
    """A convolution with its own padding would compute something else."""
    odd = nn.Sequential(nn.Conv2d(3, 4, 3, padding_mode="reflect", padding=1))
    with pytest.raises(UsageError, match=r"plain nn\.Conv2d modules with zero padding: .*reflect"):
        scaled(odd)
