"""Networks: backbones against torchvision's, heads by hand, checkpoints in files."""

import math
from itertools import pairwise
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor, nn
from torchvision.models import resnet18

from mrdc._utils.errors import CheckpointError
from mrdc.nn.branches import Body
from mrdc.nn.checkpoint import (
    Architecture,
    Checkpoint,
    load_network,
    read_checkpoint,
    write_checkpoint,
)
from mrdc.nn.heads import LSC, Head, Linear, Split, SplitCosine
from mrdc.nn.net import Net, normalised
from mrdc.nn.resnet import Block, ResNet, Stem, Variant, blocks
from tests.helpers import changed, lived_in, state_of
from tests.helpers import tiny as fresh

pytestmark = pytest.mark.usefixtures("seeded")

STEMS = pytest.mark.parametrize("stem", ["7x7", "3x3"])
HEADS = pytest.mark.parametrize("head", [Linear, SplitCosine, LSC])


def convolutions(network: nn.Module) -> list[nn.Module]:
    """Convolutions and batch norms in the order they were made."""
    return [m for m in network.modules() if isinstance(m, (nn.Conv2d, nn.BatchNorm2d))]


def images(count: int = 2, side: int = 32) -> Tensor:
    return torch.randint(0, 256, (count, 3, side, side), dtype=torch.uint8)


def tiny(variant: Variant = "plain", head: type[Head] = Linear) -> Net:
    """A network with three classes and 16 features."""
    return lived_in(fresh(variant, head, 3))


# Backbones


def test_plain_is_torchvisions_resnet18() -> None:
    """With its weights, in its order, logits and maps are the same."""
    theirs = resnet18(weights=None)
    ours = Net(lived_in(ResNet("plain")), Linear(512))
    ours.head.grow(1000, theirs.fc.weight.detach())
    assert isinstance(ours.head, Linear)
    ours.head.bias.data.copy_(theirs.fc.bias)
    pairs = zip(convolutions(ours.backbone), convolutions(theirs), strict=True)
    for mine, other in pairs:
        other.load_state_dict(mine.state_dict())
    theirs.eval()
    x = images(2, 64)
    with torch.inference_mode():
        expected, out = theirs(normalised(x)), ours(x)
        stem = theirs.maxpool(theirs.relu(theirs.bn1(theirs.conv1(normalised(x)))))
        first = theirs.layer1(stem)
    assert expected.std() > 0.1
    torch.testing.assert_close(out.logits, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(out.maps[0], first, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("variant", "negative"),
    [("plain", (0, 0, 0, 0)), ("lucir", (0, 0, 0, 1)), ("pod", (1, 1, 1, 1))],
)
@STEMS
def test_which_maps_may_be_negative(
    variant: Variant, negative: tuple[int, ...], stem: Stem
) -> None:
    """None of plain's, the last of lucir's, all of pod's; stages start from the map before them."""
    network, seen = lived_in(ResNet(variant, 4, stem)), list[Tensor]()
    for stage in network.stages:
        assert isinstance(stage, nn.Sequential)
        stage[0].register_forward_hook(lambda _, inputs, out: seen.extend((inputs[0], out)))
    maps = network(torch.randn(2, 3, 64, 64))
    assert tuple(int(m.min() < 0) for m in maps) == negative
    for stage, (before, map_) in zip(list(network.stages)[1:], pairwise(maps), strict=True):
        assert torch.equal(stage(before), map_)
    del seen[8:]
    assert all(out.min() == 0 for out in (seen[0], *seen[1::2]))
    side = 16 if stem == "7x7" else 32
    assert [tuple(m.shape[1:]) for m in maps] == [(4 << n, side >> n, side >> n) for n in range(4)]


@pytest.mark.parametrize(("variant", "weight"), [("plain", 1.0), ("lucir", 1.0), ("pod", 0.0)])
def test_pod_blocks_start_as_their_shortcuts(variant: Variant, weight: float) -> None:
    """Their last batch norm starts at zero; convolutions with Kaiming's variance by fan-out."""
    network = ResNet(variant, 16)
    blocks = [m for m in network.modules() if isinstance(m, Block)]
    assert len(blocks) == 8
    for block in blocks:
        assert (block.bn2.weight == weight).all()
        assert (block.bn1.weight == 1).all()
    kernels = blocks[6].conv1.weight
    assert kernels.shape[:2] == (128, 64)
    assert kernels.std().item() == pytest.approx(math.sqrt(2 / (128 * 9)), rel=0.02)
    assert abs(kernels.mean().item()) < 1e-3


@given(st.integers(1, 20), st.integers(1, 20), st.booleans(), st.integers(0, 99))
def test_a_wide_convolution_by_blocks(height: int, width: int, bias: bool, seed: int) -> None:
    """It computes the same sums as the convolution that it replaces on a GPU."""
    torch.manual_seed(seed)
    x, weight = torch.randn(2, 3, 2 * height, 2 * width).double(), torch.randn(4, 3, 7, 7).double()
    more = torch.randn(4).double() if bias else None
    torch.testing.assert_close(F.conv2d(*blocks(x, weight), more), F.conv2d(x, weight, more, 2, 3))


# Heads


@HEADS
@settings(max_examples=20, deadline=None)
@given(counts=st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_growing_keeps_the_scores_of_old_classes(head: type[Head], counts: list[int]) -> None:
    """For any number of new classes; rows of linear and cosine heads start within 1 / sqrt(d)."""
    made, features = head(4), torch.randn(3, 4)
    before = torch.empty(3, 0)
    for count in counts:
        made.grow(count)
        scores = made.scores(features).detach()
        assert scores.shape == (3, made.classes)
        torch.testing.assert_close(scores[:, : before.shape[1]], before, rtol=0, atol=1e-5)
        before = scores
    assert made.classes == sum(counts)
    made.grow(500)
    if head is not LSC:
        rows = made.weight if isinstance(made, Linear) else made.new
        assert isinstance(rows, Tensor) and rows.requires_grad and 0.49 < rows.abs().max() <= 0.5
        assert rows.std().item() == pytest.approx(1 / math.sqrt(12), rel=0.05)


def test_heads_by_hand() -> None:
    """(1, 2) . (3, 4) + 0 = 11; (3, 4) has the cosines 0.6 and 0.8 with the axes."""
    linear = Linear(2)
    linear.grow(1, torch.tensor([[3.0, 4.0]]))
    scores = linear.scores(torch.tensor([[1.0, 2.0]]))
    assert scores.tolist() == linear.logits(scores).tolist() == [[11.0]]
    cosine = SplitCosine(2)
    cosine.grow(1, torch.tensor([[7.0, 0.0]]))
    cosine.grow(1, torch.tensor([[0.0, 0.1]]))
    cosine.scale.data.fill_(3.0)
    scores = cosine.scores(torch.tensor([[3.0, 4.0]]))
    torch.testing.assert_close(scores, torch.tensor([[0.6, 0.8]]))
    torch.testing.assert_close(cosine.logits(scores), torch.tensor([[1.8, 2.4]]))


@pytest.mark.parametrize("kind", [SplitCosine, LSC])
def test_growing_moves_new_rows_to_the_old(kind: type[Split]) -> None:
    """In order and frozen; only the given new rows and the scale, which is kept, learn."""
    head = kind(2)
    head.grow(1, torch.tensor([3.0, 4.0]).expand(1, *head.shape))
    assert len(head.old) == 0 and head.scale.item() == 1.0
    head.scale.data.fill_(7.0)
    first, rows = head.rows.detach().clone(), torch.tensor([0.0, -1.0]).expand(1, *head.shape)
    head.grow(1, rows)
    assert head.mean_norm().item() == pytest.approx(3.0)  # lengths 5 and 1, half of each
    assert not head.mean_norm().requires_grad
    assert torch.equal(head.old, first) and torch.equal(head.new, rows)
    assert not head.old.requires_grad
    assert [name for name, p in head.named_parameters() if p.requires_grad] == ["new", "scale"]
    assert head.scale.item() == 7.0


def test_local_similarity_against_a_loop() -> None:
    """Per class, the mean of -|f - w|^2 over its ten proxies, weighted by its softmax."""
    head = LSC(6)
    head.grow(2)
    head.grow(3)
    features = torch.randn(4, 6)
    scores = head.scores(features)
    rows = head.rows.detach()
    for n in range(4):
        f = features[n] / features[n].norm()
        for c in range(5):
            near = [-float((f - w / w.norm()).square().sum()) for w in rows[c]]
            share = [math.exp(s) for s in near]
            expected = sum(a * s for a, s in zip(share, near, strict=True)) / sum(share)
            assert scores[n, c].item() == pytest.approx(expected, abs=1e-5)


# Networks


@HEADS
def test_scores_stay_in_fp32_under_autocast(head: type[Head]) -> None:
    """The backbone computes in bf16, the head exactly as it does on those features."""
    net = tiny(head=head)
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        out = net(images())
    assert out.maps[-1].dtype == torch.bfloat16
    assert out.features.dtype == out.scores.dtype == out.logits.dtype == torch.float32
    with torch.inference_mode():
        assert torch.equal(out.scores, net.head.scores(out.features))
        assert torch.equal(out.logits, net.head.logits(out.scores))


def test_images_are_normalised_and_features_pooled() -> None:
    """By ImageNet's statistics, from bytes and from floats; features are the mean last map."""
    mean = torch.tensor([123.675, 116.28, 103.53]).view(1, 3, 1, 1)
    std = torch.tensor([58.395, 57.12, 57.375]).view(1, 3, 1, 1)
    torch.testing.assert_close(normalised(mean), torch.zeros(1, 3, 1, 1))
    torch.testing.assert_close(normalised(mean + std), torch.ones(1, 3, 1, 1))
    net, x, seen = tiny(), images(), list[Tensor]()
    net.backbone.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    with torch.inference_mode():
        out = net(x)
        torch.testing.assert_close(seen[0], normalised(x))
        assert torch.equal(out.features, net.features(x.float()))
        torch.testing.assert_close(out.features, out.maps[-1].mean((2, 3)))


@HEADS
def test_a_teacher_does_not_follow_its_student(head: type[Head]) -> None:
    """It answers as the network did while that one, otherwise unchanged, learns and grows."""
    net, x = tiny("lucir", head), images(4)
    with torch.inference_mode():
        expected = net(x).logits
    state = state_of(net.train())
    learns = [p.requires_grad for p in net.parameters()]
    teacher = net.frozen()
    assert net.training and changed(net, state) == set()
    assert [p.requires_grad for p in net.parameters()] == learns
    with torch.inference_mode():
        before = teacher(x)
        torch.testing.assert_close(before.logits, expected, rtol=1e-4, atol=1e-4)
    optimiser = torch.optim.SGD(net.parameters(), lr=1.0)
    net(x).logits.square().sum().backward()
    optimiser.step()
    net.head.grow(2)
    with torch.inference_mode():
        for a, b in zip(before[1:], teacher(x)[1:], strict=True):
            assert torch.equal(a, b)
    assert teacher.classes == 3
    assert not teacher.training and not any(p.requires_grad for p in teacher.parameters())


# Checkpoints


def checkpoint(
    head: str = "LSC", classes: tuple[int, ...] = (2, 1), body: Body = "plain"
) -> Checkpoint:
    what = Architecture("pod", head, 2, "3x3", 32, classes, body)
    net = lived_in(what.build()).to(memory_format=torch.channels_last)
    tensors = {"model": dict(net.state_dict()), "method": {"bias_": torch.tensor([1.5, -0.5])}}
    return Checkpoint(what, tensors, {"phase": len(classes) - 1, "note": [1, None, "x"]})


def test_a_copied_checkpoint_does_not_change_with_the_network() -> None:
    """Neither its tensors, whose layout it keeps, nor its values."""
    net = fresh().to(memory_format=torch.channels_last)
    made = Checkpoint(None, {"model": dict(net.state_dict())}, {"losses": [1]})
    copied, before = made.copied(), {k: v.clone() for k, v in net.state_dict().items()}
    made.about["losses"].append(2)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(1)
    assert copied.about == {"losses": [1]}
    for name, tensor in copied.tensors["model"].items():
        assert torch.equal(tensor, before[name])
        assert tensor.stride() == before[name].stride()
        assert not tensor.requires_grad


@pytest.mark.parametrize("head", ["Linear", "SplitCosine", "LSC"])
@pytest.mark.parametrize(
    ("classes", "body"), [((2,), "plain"), ((3, 1, 2), "scaled"), ((2, 1), "branches")]
)
def test_a_checkpoint_comes_back_whole(
    tmp_path: Path, head: str, classes: tuple[int, ...], body: Body
) -> None:
    """Tensors of any layout bit for bit, JSON values, and a network with the same output."""
    made = checkpoint(head, classes, body)
    write_checkpoint(tmp_path / "a.safetensors", made)
    read = read_checkpoint(tmp_path / "a.safetensors")
    assert (read.architecture, read.about) == (made.architecture, made.about)
    assert read.tensors.keys() == made.tensors.keys()
    for group, tensors in made.tensors.items():
        assert read.tensors[group].keys() == tensors.keys()
        assert all(torch.equal(read.tensors[group][name], tensors[name]) for name in tensors)
    x = images()
    net, again = made.network(), read.network()
    assert not again.training
    assert (again.classes, again.body) == (sum(classes), body)
    with torch.inference_mode():
        assert torch.equal(net(x).logits, again(x).logits)
    frozen = [[n for n, p in one.named_parameters() if not p.requires_grad] for one in (net, again)]
    assert frozen[0] == frozen[1] and ("head.old" in frozen[0]) == (head != "Linear")


def test_the_network_of_a_folder_is_that_of_its_last_phase(tmp_path: Path) -> None:
    """It comes with its image size; torch's generator is left alone."""
    with pytest.raises(CheckpointError, match=rf"{tmp_path}: not a run folder with a finished"):
        load_network(tmp_path)
    for phase in range(3):
        made = checkpoint(classes=(2,) * (phase + 1))
        write_checkpoint(tmp_path / f"phase-{phase:02d}.safetensors", made)
    state = torch.get_rng_state()
    net, size = load_network(tmp_path)
    assert torch.equal(torch.get_rng_state(), state)
    assert (net.classes, size) == (6, 32)
    assert changed(net, made.tensors["model"]) == set()
    write_checkpoint(tmp_path / "phase-03.safetensors", Checkpoint(None, made.tensors))
    with pytest.raises(CheckpointError, match="the run of a detector, which cannot embed"):
        load_network(tmp_path)


def test_refuses_files_that_are_no_checkpoints(tmp_path: Path) -> None:
    """Missing, damaged, cut anywhere, or from another program."""
    path = tmp_path / "one.safetensors"
    unreadable = r"one\.safetensors: cannot be read as a checkpoint"
    with pytest.raises(CheckpointError, match=unreadable):
        read_checkpoint(path)
    save_file({"weight": torch.ones(2)}, path)
    with pytest.raises(CheckpointError, match=r"one\.safetensors: not a checkpoint of mrdc"):
        read_checkpoint(path)
    write_checkpoint(path, checkpoint())
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(CheckpointError, match=r"one\.safetensors: damaged \(it does not match"):
        read_checkpoint(path)
    for keep in (0.0, 0.001, 0.5, 0.999):
        path.write_bytes(whole[: int(keep * len(whole))])
        with pytest.raises(CheckpointError, match=unreadable):
            read_checkpoint(path)
