"""Networks that learn at two rates: multipliers, two branches, and what they cost."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

import mrdc.training.prepare
from mrdc._utils.errors import BudgetError
from mrdc.memory.budget import Budget
from mrdc.methods import DDE, AANets, Method
from mrdc.methods.lucir import LUCIR
from mrdc.methods.mnemonics import Mnemonics
from mrdc.nn.branches import Body, Branches, body_of, scaled, with_body
from mrdc.nn.checkpoint import Architecture, Checkpoint, read_checkpoint, write_checkpoint
from mrdc.nn.net import NETWORKS, Net, Output, compiled
from mrdc.nn.resnet import LEVELS, ResNet, ScaledConv, Variant
from mrdc.training.classes import Run
from mrdc.training.exemplars import Exemplars, memory_json
from mrdc.training.fit import Stop
from mrdc.training.prepare import extra_bytes
from mrdc.training.resume import Keeper
from mrdc.training.settings import MemorySettings, RunSettings, TrainSettings
from tests.helpers import small_stream

pytestmark = pytest.mark.usefixtures("seeded")

EVERY_BODY = pytest.mark.parametrize("body", ["plain", "scaled", "branches"])
EVERY_VARIANT = pytest.mark.parametrize("variant", ["plain", "lucir", "pod"])


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)  # the embedder wants two


def lived_in(module: nn.Module) -> None:
    """Everything away from where it starts, and the branches from each other."""
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            for spread in (part.weight, part.running_var):
                nn.init.uniform_(spread, 0.5, 1.5)  # type: ignore[arg-type]
            for shift in (part.bias, part.running_mean):
                nn.init.normal_(shift, 0, 0.3)  # type: ignore[arg-type]
        elif isinstance(part, nn.Conv2d):
            part.weight.data *= torch.empty_like(part.weight).uniform_(0.5, 1.5)
        elif isinstance(part, ScaledConv):
            nn.init.uniform_(part.scale, 0.5, 1.5)
        elif isinstance(part, Branches):
            nn.init.uniform_(part.alpha, 0.2, 0.8)


def tiny(body: Body = "plain", variant: Variant = "lucir", lived: bool = True) -> Net:
    """Three classes, 16 features, in evaluation mode."""
    net = Architecture(variant, "SplitCosine", 2, "3x3", 16, (2, 1), body).build()
    if lived:
        lived_in(net)
    return net.eval()


def images(count: int = 3) -> Tensor:
    return torch.randint(0, 256, (count, 3, 16, 16), dtype=torch.uint8)


def everything(out: Output) -> list[Tensor]:
    return [*out.maps, *out[1:]]


@pytest.mark.parametrize("body", ["plain", "scaled", "branches"])
def test_compiled_networks_say_and_learn_the_same(
    body: Body, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Traced as for a GPU, without making kernels; one limit holds for all networks."""
    real = torch.compile
    monkeypatch.setattr(torch, "compile", lambda f, **more: real(f, backend="aot_eager", **more))
    net, x = tiny(body).train(), images()
    found = []
    with torch._dynamo.config.patch(recompile_limit=8):
        for maps in (net._maps, compiled(net)):
            net.zero_grad()
            last = maps(x)[-1]
            last.square().mean().backward()  # type: ignore[no-untyped-call]
            grads = [p.grad for p in net.parameters() if p.grad is not None]
            found.append([last.detach(), *(grad.clone() for grad in grads)])
        assert torch._dynamo.config.recompile_limit == NETWORKS
    assert len(found[0]) == len(found[1]) > 10
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


def same(one: Output, other: Output) -> bool:
    """Bit by bit."""
    pairs = zip(everything(one), everything(other), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


# Multipliers


@pytest.mark.parametrize(("kernel", "stride", "padding"), [(1, 2, 0), (3, 1, 1), (7, 2, 3)])
def test_multipliers_of_one_are_the_convolution_itself(
    kernel: int, stride: int, padding: int
) -> None:
    """Bit by bit, for every convolution that a ResNet has."""
    conv, x = nn.Conv2d(2, 4, kernel, stride, padding, bias=False), torch.randn(2, 2, 9, 8)
    assert torch.equal(ScaledConv(conv)(x), conv(x))


def test_a_scaled_convolution_by_hand() -> None:
    """Kernels 2 and 3 times 5 and -1, of a pixel (1, 10): 2 * 5 * 1 - 3 * 10; 4 of the second."""
    conv = nn.Conv2d(2, 2, 1, bias=False)
    conv.weight.data = torch.tensor([[2.0, 3.0], [4.0, 0.5]])[:, :, None, None]
    layer = ScaledConv(conv)
    assert layer.scale.shape == (2, 2, 1, 1)
    layer.scale.data = torch.tensor([[5.0, -1.0], [1.0, 0.0]])[:, :, None, None]
    pixel = torch.tensor([1.0, 10.0])[None, :, None, None]
    assert layer(pixel).flatten().tolist() == [-20.0, 4.0]


def test_a_multiplier_belongs_to_a_whole_slice() -> None:
    """The map is the sum over input channels of multiplier * convolution by that slice."""
    layer = ScaledConv(nn.Conv2d(3, 2, 3, 2, 1, bias=False))
    nn.init.normal_(layer.scale)
    x = torch.randn(2, 3, 5, 7)
    expected = torch.zeros(2, 2, 3, 4)
    for out in range(2):
        for inp in range(3):
            part = layer.conv.weight[out, inp][None, None]
            once = F.conv2d(x[:, inp][:, None], part, None, 2, 1)[:, 0]
            expected[:, out] += layer.scale[out, inp].item() * once
    torch.testing.assert_close(layer(x), expected)


def test_multipliers_learn_and_kernels_do_not() -> None:
    """The gradient of a multiplier is what its slice would add."""
    layer = ScaledConv(nn.Conv2d(2, 1, 3, bias=False))
    x = torch.randn(1, 2, 3, 3)
    layer(x).sum().backward()
    assert layer.conv.weight.grad is None and not layer.conv.weight.requires_grad
    assert layer.scale.grad is not None
    torch.testing.assert_close(layer.scale.grad[0, :, 0, 0], (layer.conv.weight * x)[0].sum((1, 2)))


def test_a_scaled_convolution_can_be_made_plain() -> None:
    """One convolution with the multipliers in its kernels."""
    layer, x = ScaledConv(nn.Conv2d(3, 2, 3, 2, 1, bias=False)), torch.randn(2, 3, 6, 6)
    nn.init.normal_(layer.scale)
    expected = layer(x)
    plain = layer.plain()
    assert type(plain) is nn.Conv2d
    assert torch.equal(plain(x), expected)


@EVERY_VARIANT
def test_a_scaled_network_says_the_same_and_is_another(variant: Variant) -> None:
    """Every convolution is scaled; the network it was made of keeps its own, and its gradients."""
    backbone, x = ResNet(variant, 2, "3x3"), torch.randn(2, 3, 16, 16)
    lived_in(backbone)
    other = scaled(backbone.eval())
    pairs = zip(backbone(x), other(x), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    kinds = [type(part) for part in backbone.modules()]
    assert ScaledConv not in kinds
    assert sum(isinstance(part, ScaledConv) for part in other.modules()) == kinds.count(nn.Conv2d)
    assert all(p.requires_grad for p in backbone.parameters())
    mine, theirs = ({p.data_ptr() for p in net.parameters()} for net in (backbone, other))
    assert not mine & theirs


def test_multipliers_and_batch_norms_of_a_scaled_network_learn() -> None:
    """And nothing else."""
    other = scaled(ResNet("lucir", 2, "3x3"))
    learned = {name for name, p in other.named_parameters() if p.requires_grad}
    kernels = {name for name, p in other.named_parameters() if p.ndim == 4 and "scale" not in name}
    assert len(kernels) == 20
    assert learned == {name for name, _ in other.named_parameters()} - kernels


# Two branches


@EVERY_VARIANT
@pytest.mark.parametrize("alpha", [1.0, 0.0])
def test_all_the_weight_on_a_branch_is_that_branch_alone(variant: Variant, alpha: float) -> None:
    """1 is the stable one, 0 the plastic one: every map, bit by bit."""
    backbone = with_body(ResNet(variant, 2, "3x3"), "branches")
    assert isinstance(backbone, Branches)
    lived_in(backbone)
    backbone.eval().alpha.data.fill_(alpha)
    x = torch.randn(2, 3, 16, 16)
    alone = (backbone.stable if alpha else backbone.plastic)(x)
    assert not torch.equal(backbone.stable(x)[-1], backbone.plastic(x)[-1])
    assert all(torch.equal(a, b) for a, b in zip(backbone(x), alone, strict=True))


@EVERY_VARIANT
@EVERY_BODY
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_a_new_body_says_exactly_the_same(
    variant: Variant, body: Body, layout: torch.memory_format
) -> None:
    """Maps, features, scores and logits, bit by bit: it takes over in mid-run."""
    net, x = tiny(variant=variant).to(memory_format=layout), images()
    with torch.inference_mode():
        before = net(x)
        after = net.with_body(body)(x)
    assert before.logits.std() > 0
    assert same(before, after)


def test_branches_are_mixed_after_every_stage() -> None:
    """Number by number: alpha * stable + (1 - alpha) * plastic, both of what was mixed before."""
    net = with_body(ResNet("pod", 2, "3x3"), "branches").eval()
    assert isinstance(net, Branches)
    lived_in(net)
    net.alpha.data = torch.tensor([0.1, 0.9, 1.5, -0.25])  # nothing keeps them within 0 and 1
    x = torch.randn(2, 3, 16, 16)
    maps = net(x)
    assert len(maps) == LEVELS
    for number, alpha in enumerate((0.1, 0.9, 1.5, -0.25)):
        if number == 0:
            stable, plastic = net.stable(x)[0], net.plastic(x)[0]
        else:
            stable, plastic = (b.stages[number](x) for b in (net.stable, net.plastic))
        pairs = zip(stable.flatten().tolist(), plastic.flatten().tolist(), strict=True)
        mixed = torch.tensor([alpha * a + (1 - alpha) * b for a, b in pairs])
        x = mixed.view_as(stable)
        torch.testing.assert_close(maps[number], x, rtol=1e-4, atol=1e-4)


def test_what_learns_in_two_branches() -> None:
    """All of the plastic one, multipliers and batch norms of the stable one; no alpha by itself."""
    net = tiny("branches").train()
    before = {name: value.clone() for name, value in net.named_parameters()}
    optimiser = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.1)
    net(images()).features.square().sum().backward()
    optimiser.step()
    still = {
        n for n, p in net.backbone.named_parameters() if torch.equal(p, before[f"backbone.{n}"])
    }
    assert still == {"alpha", *(n for n in still if n.startswith("stable") and "conv.weight" in n)}
    assert len(still) == 1 + 20


def test_half_of_each_branch_at_first() -> None:
    """One weight a level, which nobody learns until asked to."""
    backbone = Branches(ResNet("plain", 2, "3x3"))
    assert backbone.alpha.tolist() == [0.5] * 4
    assert not backbone.alpha.requires_grad
    assert backbone.features == 16


def test_the_plastic_branch_is_the_network_itself() -> None:
    """The stable one is a copy: learning in one leaves the other alone."""
    plain = ResNet("plain", 2, "3x3")
    backbone = Branches(plain)
    assert backbone.plastic is plain
    kernels = backbone.stable.conv1.conv.weight  # type: ignore[union-attr]
    assert isinstance(kernels, Tensor)
    plain.conv1.weight.data.zero_()
    assert kernels.abs().sum() > 0


@EVERY_BODY
def test_bodies_have_names(body: Body) -> None:
    """As they are asked for, of backbones, networks and architectures."""
    net = tiny()
    assert (body_of(net.backbone), net.body) == ("plain", "plain")
    assert body_of(with_body(ResNet("plain", 2, "3x3"), body)) == body
    other = net.train().with_body(body)
    assert other.body == body
    assert not other.training and not other.backbone.training
    assert other.head is net.head
    assert tiny(body).body == body
    assert isinstance(other.backbone, Branches if body == "branches" else ResNet)


# Teachers


@EVERY_VARIANT
@EVERY_BODY
def test_folding_batch_norms_changes_no_answer(variant: Variant, body: Body) -> None:
    """Neither with multipliers nor in two branches; none of these is left."""
    net, x = tiny(body, variant), images()
    with torch.inference_mode():
        before = net(x)
        net.backbone.fuse()
        after = net(x)
    for a, b in zip(everything(before), everything(after), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
    kinds = {type(part) for part in net.modules()}
    assert not kinds & {nn.BatchNorm2d, ScaledConv}


@EVERY_BODY
def test_a_teacher_says_what_the_network_says_and_leaves_it_alone(body: Body) -> None:
    """It never learns, whatever its body is; the network goes on learning."""
    net, x = tiny(body), images()
    state = {name: value.clone() for name, value in net.state_dict().items()}
    learns = {name for name, p in net.named_parameters() if p.requires_grad}
    teacher = net.frozen()
    with torch.inference_mode():
        for a, b in zip(everything(net(x)), everything(teacher(x)), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
    assert not teacher.training
    assert not any(p.requires_grad for p in teacher.parameters())
    assert {name for name, p in net.named_parameters() if p.requires_grad} == learns
    assert all(torch.equal(value, state[name]) for name, value in net.state_dict().items())
    assert net.body == body


@EVERY_BODY
def test_a_teacher_becomes_the_next_one_of_its_body(body: Body) -> None:
    """In place: the same parameters, alpha among them, with the other's values."""
    teacher, following, x = tiny(body).frozen(), tiny(body).frozen(), images()
    following.head.grow(2)
    weights = list(teacher.backbone.parameters())
    with torch.inference_mode():
        assert not same(teacher(x), following(x))
        teacher.become(following)
        assert same(teacher(x), following(x))
    assert all(a is b for a, b in zip(weights, teacher.backbone.parameters(), strict=True))
    assert teacher.classes == 5


# Reading without learning


@EVERY_BODY
def test_a_steady_answer_is_that_of_evaluation(body: Body) -> None:
    """Though the network is training: no gradients, no statistic moves, all modes stay."""
    net, x = tiny(body), images()
    with torch.inference_mode():
        expected = net(x)
    net.train()
    quiet = [part for part in net.modules() if isinstance(part, nn.BatchNorm2d)][1]
    quiet.eval()
    modes = {name: part.training for name, part in net.named_modules()}
    state = {name: value.clone() for name, value in net.state_dict().items()}
    out = net.steady(x)
    assert same(out, expected)
    assert not any(value.requires_grad for value in everything(out))
    assert {name: part.training for name, part in net.named_modules()} == modes
    assert not quiet.training
    assert all(torch.equal(value, state[name]) for name, value in net.state_dict().items())
    assert net(x).logits.requires_grad


def test_modes_come_back_after_an_error() -> None:
    """An image of another shape ends the answer, not the training."""
    net = tiny("branches").train()
    with pytest.raises(RuntimeError):
        net.steady(torch.zeros(2, 5, 16, 16))
    assert all(part.training for part in net.modules())
    assert torch.is_grad_enabled()


# Files


@EVERY_BODY
def test_a_body_comes_back_from_a_file(tmp_path: Path, body: Body) -> None:
    """The same answers, and the same parameters to learn."""
    made = Architecture("pod", "LSC", 2, "3x3", 16, (2, 1), body)
    net, x = made.build().eval(), images()
    lived_in(net)
    path = tmp_path / "a.safetensors"
    write_checkpoint(path, Checkpoint(made, {"model": dict(net.state_dict())}))
    read = read_checkpoint(path)
    again = read.network()
    assert read.architecture == made
    assert again.body == body
    with torch.inference_mode():
        assert same(net(x), again(x))
    learns = [{n for n, p in one.named_parameters() if p.requires_grad} for one in (net, again)]
    assert learns[0] == learns[1]


def test_an_older_file_knows_no_body(tmp_path: Path) -> None:
    """Its network is plain."""
    made = Architecture("lucir", "SplitCosine", 2, "3x3", 16, (2, 1))
    net, path, x = made.build().eval(), tmp_path / "old.safetensors", images()
    write_checkpoint(path, Checkpoint(made, {"model": dict(net.state_dict())}))
    with safe_open(path, framework="pt") as file:
        metadata = dict(file.metadata())
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    architecture = json.loads(metadata["architecture"])
    assert architecture.pop("body") == "plain"
    save_file(tensors, path, metadata | {"architecture": json.dumps(architecture)})
    read = read_checkpoint(path)
    assert read.architecture == made
    with torch.inference_mode():
        assert same(read.network()(x), net(x))


# What more parameters cost

KERNELS = 54 + 144 + 512 + 2048 + 8192  # of the stem and the four stages, at width 2
NORMS = 2 * (2 + 4 * 2 + 5 * 4 + 5 * 8 + 5 * 16)
SLICES = 6 + 16 + 64 + 256 + 1024
SECOND_BRANCH = 4 * (KERNELS + NORMS + SLICES + 4)


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        (LUCIR(), 0),
        (DDE(LUCIR()), 0),
        (Mnemonics(), 4 * SLICES),
        (AANets(LUCIR()), SECOND_BRANCH),
        (AANets(DDE(LUCIR())), SECOND_BRANCH),
        (DDE(AANets(LUCIR())), SECOND_BRANCH),
    ],
)
def test_what_a_method_adds_to_the_network(method: Method, expected: int) -> None:
    """A ResNet, its multipliers and four weights, four bytes each; nothing but what is new."""
    made = Architecture("lucir", "SplitCosine", 2, "3x3", 16)
    assert extra_bytes(made, method) == expected
    assert sum(p.numel() for p in ResNet("lucir", 2, "3x3").parameters()) == KERNELS + NORMS


@pytest.mark.parametrize(
    ("amount", "unit", "left"),
    [(5000, "bytes", 4400), (50, "originals", 44), (10, "class", 8.5)],
)
def test_a_charge_by_hand(amount: float, unit: Any, left: float) -> None:
    """600 bytes are 6 originals of 100, or 1.5 for each of 4 classes."""
    budget = Budget(amount, unit, 100.0)
    less = budget.less(600, 4)
    assert less == Budget(left, unit, 100.0)
    assert less.total_bytes(4) == budget.total_bytes(4) - 600
    assert budget.amount == amount


def test_bytes_can_be_charged_without_originals() -> None:
    """Their size is not asked for."""
    assert Budget(1000.0, "bytes").less(1, 9) == Budget(999.0, "bytes")


@given(
    amount=st.floats(1, 1e4), unit=st.sampled_from(["class", "originals"]),
    size=st.floats(1, 1e5), classes=st.integers(1, 1000), part=st.floats(0, 0.99),
)  # fmt: skip
def test_all_classes_together_lose_the_charge(
    amount: float, unit: Any, size: float, classes: int, part: float
) -> None:
    """To a byte."""
    budget = Budget(amount, unit, size)
    charge = int(part * budget.total_bytes(classes))
    left = budget.less(charge, classes).total_bytes(classes)
    assert abs(left - (budget.total_bytes(classes) - charge)) <= 1


@pytest.mark.parametrize(
    ("budget", "message"),
    [
        (Budget(600.0, "bytes"), r"the budget 600B is 600 bytes for 4 classes, but 12,000 are"),
        (Budget(120, "originals", 100.0), r"120 originals is 12,000 bytes for 4 classes, but"),
        (Budget(30, "class", 100.0), r"30/class is 12,000 bytes for 4 classes, but 12,000 are "
         r"charged for further parameters of the network: raise it"),
    ],
)  # fmt: skip
def test_refuses_a_charge_that_leaves_nothing(budget: Budget, message: str) -> None:
    """As large as the budget, or larger."""
    with pytest.raises(BudgetError, match=message):
        budget.less(12_000, 4)
    assert replace(budget, amount=budget.amount * 21).less(12_000, 4).amount > 0


@pytest.fixture
def small_run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Run]:
    """A run of a network of width 2, which trains nothing."""
    monkeypatch.setitem(mrdc.training.prepare.WIDTHS, "resnet18-narrow", 2)
    monkeypatch.setattr(Run, "_fit", lambda *_, **__: Stop(0, [torch.zeros(4)]))

    def make(method: str, **memory: Any) -> Run:
        chosen = RunSettings(
            "photos", method=method, network="resnet18-narrow", size=16, device="cpu", threads=1,
            memory=MemorySettings(quality="original", candidates=(50,), **memory),
            train=TrainSettings(epochs=1, batch_size=8),
        )  # fmt: skip
        return Run(chosen, small_stream(2, 2), Keeper())

    return make


def held(run: Run) -> Exemplars:
    assert run.exemplars is not None
    return run.exemplars


@pytest.mark.parametrize("unit", ["/class", " originals", "B"])
def test_a_strict_budget_pays_for_the_second_branch(
    small_run: Callable[..., Run], unit: str
) -> None:
    """After the last phase it is smaller by that, to the byte, and the memory keeps to it."""
    original = small_stream(2, 2).original_bytes
    one = {"/class": 4 * original, " originals": original, "B": 1}[unit]
    budget = f"{(SECOND_BRANCH + 12 * original) / one:.0f}{unit}"
    runs = [small_run("lucir-aanets", budget=budget, strict_budget=s) for s in (True, False)]
    for run in runs:
        for phase in range(2):
            run.learn(phase)
    strict, free = (run.results[-1]["memory"] for run in runs)
    paid = free["budget_bytes"] - strict["budget_bytes"]
    assert paid in (SECOND_BRANCH, SECOND_BRANCH + (unit != "B"))  # floats round down
    assert strict["parameter_bytes"] == free["parameter_bytes"] == SECOND_BRANCH
    assert 0 < strict["bytes"] <= strict["budget_bytes"] < free["bytes"]
    assert 0 < strict["items"] < free["items"] == 24
    architecture = runs[0]._checkpoint().architecture
    assert architecture is not None
    assert runs[0].model.body == architecture.body == "branches"


def test_a_strict_budget_costs_nothing_where_nothing_is_added(
    small_run: Callable[..., Run],
) -> None:
    """LUCIR keeps all of it, and says nothing of parameters."""
    strict, free = (small_run("lucir", budget="3/class", strict_budget=s) for s in (True, False))
    assert held(strict).budget == held(free).budget
    assert strict.extra_bytes == 0
    assert "parameter_bytes" not in memory_json(strict.exemplars, strict.extra_bytes)["memory"]


def test_refuses_a_strict_budget_smaller_than_the_second_branch(
    small_run: Callable[..., Run],
) -> None:
    """Before any training; the budget that is not strict will do."""
    small_run("lucir-aanets", budget="50kB")
    message = r"budget 50kB is 50,000 bytes for 4 classes, but 50,480 are charged for further"
    with pytest.raises(BudgetError, match=message):
        small_run("lucir-aanets", budget="50kB", strict_budget=True)
