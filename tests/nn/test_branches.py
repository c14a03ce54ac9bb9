"""Networks that learn at two rates: multipliers, two branches, and their cost."""

from dataclasses import replace
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mrdc._utils.errors import BudgetError
from mrdc.memory.budget import Budget
from mrdc.methods import DDE, LUCIR, AANets, Method, Mnemonics
from mrdc.nn.branches import Body, Branches, body_of, scaled, with_body
from mrdc.nn.checkpoint import Architecture
from mrdc.nn.compile import NETWORKS, compiled
from mrdc.nn.net import Net, Output
from mrdc.nn.resnet import LEVELS, ResNet, ScaledConv, Variant
from mrdc.training.architecture import extra_bytes
from mrdc.training.learner import ClassLearner
from tests.helpers import Run, changed, lived_in, small_run, small_stream, state_of

pytestmark = pytest.mark.usefixtures("quick")

EVERY_BODY = pytest.mark.parametrize("body", ["plain", "scaled", "branches"])
EVERY_VARIANT = pytest.mark.parametrize("variant", ["plain", "lucir", "pod"])


def tiny(body: Body = "plain", variant: Variant = "lucir") -> Net:
    """Three classes and 16 features, in evaluation mode."""
    return lived_in(Architecture(variant, "SplitCosine", 2, "3x3", 16, (2, 1), body).build())


def images(count: int = 3) -> Tensor:
    return torch.randint(0, 256, (count, 3, 16, 16), dtype=torch.uint8)


def everything(out: Output) -> list[Tensor]:
    return [*out.maps, *out[1:]]


def same(one: Output, other: Output) -> bool:
    """Whether tensors are equal bit for bit."""
    pairs = zip(everything(one), everything(other), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def learning(net: nn.Module) -> set[str]:
    """Names of the trainable parameters."""
    return {name for name, p in net.named_parameters() if p.requires_grad}


@pytest.mark.slow  # a GPU test compares compiled networks, too
def test_a_compiled_network_computes_and_learns_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced as for a GPU; two branches cover a plain and a scaled network."""
    real = torch.compile
    monkeypatch.setattr(torch, "compile", lambda f, **more: real(f, backend="aot_eager", **more))
    net, x, found = tiny("branches").train(), images(), list[list[Tensor]]()
    assert isinstance(net.backbone, Branches)
    for stage in (*net.backbone.stable.stages, *net.backbone.plastic.stages):
        del cast(nn.Sequential, stage)[1]  # half as much to trace
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


# Multipliers


@pytest.mark.parametrize(("kernel", "stride", "padding"), [(1, 2, 0), (3, 1, 1), (7, 2, 3)])
def test_a_scaled_convolution_against_a_loop(kernel: int, stride: int, padding: int) -> None:
    """The sum of multiplier * convolution by each slice; multipliers of 1 change no bit."""
    conv, x = nn.Conv2d(2, 4, kernel, stride, padding, bias=False), torch.randn(2, 2, 9, 8)
    layer = ScaledConv(conv)
    expected = torch.zeros_like(conv(x))
    assert torch.equal(layer(x), conv(x))
    nn.init.normal_(layer.scale)
    for out in range(4):
        for inp in range(2):
            part = conv.weight[out, inp][None, None]
            once = F.conv2d(x[:, inp][:, None], part, None, stride, padding)[:, 0]
            expected[:, out] += layer.scale[out, inp].item() * once
    torch.testing.assert_close(layer(x), expected)
    assert type(layer.plain()) is nn.Conv2d
    assert torch.equal(layer.plain()(x), layer(x))


@EVERY_VARIANT
def test_a_scaled_network_is_a_copy_that_computes_the_same(variant: Variant) -> None:
    """All its convolutions are scaled; multipliers and batch norms learn, and nothing else."""
    backbone, x = lived_in(ResNet(variant, 2, "3x3")), torch.randn(2, 3, 16, 16)
    other = scaled(backbone)
    assert all(torch.equal(a, b) for a, b in zip(backbone(x), other(x), strict=True))
    kinds = [type(part) for part in backbone.modules()]
    assert ScaledConv not in kinds
    assert sum(isinstance(part, ScaledConv) for part in other.modules()) == kinds.count(nn.Conv2d)
    assert all(p.requires_grad for p in backbone.parameters())
    mine, theirs = ({p.data_ptr() for p in net.parameters()} for net in (backbone, other))
    assert not mine & theirs
    kernels = {name for name, p in other.named_parameters() if p.ndim == 4 and "scale" not in name}
    assert len(kernels) == 20
    assert learning(other) == {name for name, _ in other.named_parameters()} - kernels


# Two branches


def branches(variant: Variant) -> Branches:
    backbone = with_body(ResNet(variant, 2, "3x3"), "branches")
    assert isinstance(backbone, Branches)
    return lived_in(backbone)


@EVERY_VARIANT
@pytest.mark.parametrize("mix", [(0.1, 0.9, 1.5, -0.25), (0.0,) * 4, (1.0,) * 4])
def test_branches_are_mixed_after_every_stage(variant: Variant, mix: tuple[float, ...]) -> None:
    """alpha * stable + (1 - alpha) * plastic, both computed from the previous mix."""
    net, x = branches(variant), torch.randn(2, 3, 16, 16)
    net.alpha.data = torch.tensor(mix)
    maps = net(x)
    assert len(maps) == LEVELS
    for number, alpha in enumerate(mix):
        if number == 0:
            stable, plastic = net.stable(x)[0], net.plastic(x)[0]
        else:
            stable, plastic = (b.stages[number](x) for b in (net.stable, net.plastic))
        assert not torch.equal(stable, plastic)
        x = alpha * stable + (1 - alpha) * plastic
        torch.testing.assert_close(maps[number], x, rtol=1e-4, atol=1e-4)


@EVERY_VARIANT
@EVERY_BODY
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_a_new_body_computes_exactly_the_same(
    variant: Variant, body: Body, layout: torch.memory_format
) -> None:
    """Maps, features, scores and logits, bit for bit: it takes over in the middle of a run."""
    net, x = tiny(variant=variant).to(memory_format=layout), images()
    with torch.inference_mode():
        before = net(x)
        other = net.train().with_body(body)
        after = other(x)
    assert before.logits.std() > 0
    assert same(before, after)
    assert other.body == tiny(body).body == body_of(other.backbone) == body
    assert isinstance(other.backbone, Branches if body == "branches" else ResNet)
    assert not other.training and not other.backbone.training and other.head is net.head


def test_what_learns_in_two_branches() -> None:
    """All of the plastic one, the given network; multipliers and norms of its stable copy."""
    plain = ResNet("lucir", 2, "3x3")
    net = Branches(plain).train()
    assert net.plastic is plain and net.features == 16
    assert net.alpha.tolist() == [0.5] * LEVELS
    before = {name: value.clone() for name, value in net.named_parameters()}
    optimiser = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.1)
    net(torch.randn(3, 3, 16, 16))[-1].square().sum().backward()
    optimiser.step()
    still = {name for name, p in net.named_parameters() if torch.equal(p, before[name])}
    kernels = {n for n in still if n.startswith("stable") and "conv.weight" in n}
    assert len(kernels) == 20 and still == {"alpha"} | kernels


# Teachers and evaluation


@EVERY_VARIANT
@EVERY_BODY
def test_a_teacher_computes_the_same_and_never_learns(variant: Variant, body: Body) -> None:
    """With batch norms and multipliers folded away; the network itself stays as it is."""
    net, x = tiny(body, variant), images()
    state, learns = state_of(net), learning(net)
    teacher = net.frozen()
    with torch.inference_mode():
        pairs = zip(everything(net(x)), everything(teacher(x)), strict=True)
    for a, b in pairs:
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
    assert not teacher.training and not learning(teacher)
    assert not {type(part) for part in teacher.modules()} & {nn.BatchNorm2d, ScaledConv}
    assert learning(net) == learns and changed(net, state) == set()
    assert net.body == body


@EVERY_BODY
def test_a_teacher_becomes_the_next_one_of_its_body(body: Body) -> None:
    """In place: the same parameters, including alpha, get the values of the other."""
    teacher, following, x = tiny(body).frozen(), tiny(body).frozen(), images()
    following.head.grow(2)
    weights = list(teacher.backbone.parameters())
    with torch.inference_mode():
        assert not same(teacher(x), following(x))
        teacher.become(following)
        assert same(teacher(x), following(x))
    assert all(a is b for a, b in zip(weights, teacher.backbone.parameters(), strict=True))
    assert teacher.classes == 5


@EVERY_BODY
def test_a_steady_output_is_that_of_evaluation(body: Body) -> None:
    """Without gradients; no statistic changes, and all modes are kept, even after an error."""
    net, x = tiny(body), images()
    with torch.inference_mode():
        expected = net(x)
    net.train()
    [part for part in net.modules() if isinstance(part, nn.BatchNorm2d)][1].eval()
    modes = {name: part.training for name, part in net.named_modules()}
    state = state_of(net)
    out = net.steady(x)
    assert same(out, expected)
    assert not any(value.requires_grad for value in everything(out))
    with pytest.raises(RuntimeError):
        net.steady(torch.zeros(2, 5, 16, 16))
    assert {name: part.training for name, part in net.named_modules()} == modes
    assert changed(net, state) == set()
    assert torch.is_grad_enabled() and net(x).logits.requires_grad


# The cost of more parameters

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
def test_bytes_that_a_method_adds_to_the_network(method: Method, expected: int) -> None:
    """A ResNet, its multipliers and four weights, four bytes each."""
    made = Architecture("lucir", "SplitCosine", 2, "3x3", 16)
    assert extra_bytes(made, method) == expected
    assert sum(p.numel() for p in ResNet("lucir", 2, "3x3").parameters()) == KERNELS + NORMS


@pytest.mark.parametrize(
    ("budget", "left", "message"),
    [
        (Budget(5000, "bytes"), 4400, "the budget 5kB is 5,000 bytes for 4 classes, but the extra"),
        (Budget(50, "originals", 100.0), 44, "50 originals is 5,000 bytes for 4 classes, but"),
        (Budget(10, "class", 100.0), 8.5, "parameters of the network take 12,000: raise"),
    ],
)
def test_a_charge_by_hand(budget: Budget, left: float, message: str) -> None:
    """600 bytes are 6 originals of 100, or 1.5 for each of 4 classes; 12,000 are too much."""
    less = budget.less(600, 4)
    assert less == replace(budget, amount=left)
    assert less.total_bytes(4) == budget.total_bytes(4) - 600
    for charge in (12_000, int(budget.total_bytes(4))):
        with pytest.raises(BudgetError, match=message if charge == 12_000 else "raise the budget"):
            budget.less(charge, 4)


def untrained(method: str, **memory: Any) -> Run:
    """Two phases of two classes, without training; images of 8 pixels."""
    stream = small_stream(2, 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ClassLearner, "fit", lambda *_, **__: None)
        return small_run(method, stream=stream, memory=memory, size=16).learn(0, 1)


@pytest.mark.parametrize("unit", ["/class", " originals", "B"])
def test_a_strict_budget_pays_for_the_second_branch(unit: str) -> None:
    """After the last phase it is smaller by that, to the byte, and the memory keeps to it."""
    original = small_stream(2, 2).original_bytes
    one = {"/class": 4 * original, " originals": original, "B": 1}[unit]
    budget = f"{(SECOND_BRANCH + 12 * original) / one:.0f}{unit}"
    runs = [untrained("lucir-aanets", budget=budget, strict_budget=s) for s in (True, False)]
    strict, free = (run.results[-1].memory for run in runs)
    paid = free.budget_bytes - strict.budget_bytes
    assert paid in (SECOND_BRANCH, SECOND_BRANCH + (unit != "B"))  # floats round down
    assert strict.parameter_bytes == free.parameter_bytes == SECOND_BRANCH
    assert 0 < strict.bytes <= strict.budget_bytes < free.bytes
    assert 0 < strict.items < free.items == 24
    architecture = runs[0].learner.checkpoint().architecture
    assert architecture is not None
    assert runs[0].learner.model.body == architecture.body == "branches"


def test_a_strict_budget_needs_room_and_costs_nothing_if_nothing_is_added() -> None:
    """Checked before any training; LUCIR keeps all of it, and reports no parameters."""
    small_run("lucir-aanets", memory={"budget": "50kB"})
    message = r"budget 50kB is 50,000 bytes for 6 classes, but the extra .* take 50,480: raise"
    with pytest.raises(BudgetError, match=message):
        small_run("lucir-aanets", memory={"budget": "50kB", "strict_budget": True})
    strict, free = (untrained("lucir", budget="3/class", strict_budget=s) for s in (True, False))
    assert strict.memory.budget == free.memory.budget
    assert strict.results[-1].memory.parameter_bytes is None
