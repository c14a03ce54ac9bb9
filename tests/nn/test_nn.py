"""Networks: backbones against torchvision's, heads by hand, checkpoints in files."""

import math
from itertools import pairwise
from pathlib import Path
from typing import cast

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor, nn
from torchvision.models import resnet18

from mrdc._utils.errors import CheckpointError
from mrdc.nn.checkpoint import (
    Architecture,
    Checkpoint,
    load_network,
    read_checkpoint,
    write_checkpoint,
)
from mrdc.nn.heads import LSC, Linear, Split, SplitCosine
from mrdc.nn.net import Net, normalised
from mrdc.nn.resnet import Block, ResNet, Stem, Variant, blockwise

pytestmark = pytest.mark.usefixtures("seeded")


def convolutions(network: nn.Module) -> list[nn.Module]:
    """Convolutions and batch norms in the order they were made."""
    return [m for m in network.modules() if isinstance(m, (nn.Conv2d, nn.BatchNorm2d))]


def lived_in(network: ResNet) -> ResNet:
    """In evaluation mode, with batch norms as if it had been trained."""
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            for tensor in (module.weight, module.running_var):
                assert isinstance(tensor, Tensor)
                nn.init.uniform_(tensor, 0.5, 1.5)
            for tensor in (module.bias, module.running_mean):
                assert isinstance(tensor, Tensor)
                nn.init.normal_(tensor, 0, 0.3)
    return network.eval()


def images(count: int = 2, side: int = 32) -> Tensor:
    return torch.randint(0, 256, (count, 3, side, side), dtype=torch.uint8)


def tiny(variant: Variant = "plain", head: type[Linear] | type[Split] = Linear) -> Net:
    """A network with three classes and 16 features."""
    backbone = lived_in(ResNet(variant, 2, "3x3"))
    net = Net(backbone, head(backbone.features))
    net.head.grow(3)
    return net.eval()


# Backbones


def test_plain_is_torchvisions_resnet18() -> None:
    """With its weights, in its order, the same logits, maps and all."""
    theirs = resnet18(weights=None)
    ours = Net(ResNet("plain"), Linear(512))
    ours.head.grow(1000, theirs.fc.weight.detach())
    assert isinstance(ours.head, Linear)
    ours.head.bias.data.copy_(theirs.fc.bias)
    pairs = zip(
        convolutions(lived_in(cast(ResNet, ours.backbone))), convolutions(theirs), strict=True
    )
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
def test_which_maps_may_be_negative(variant: Variant, negative: tuple[int, ...]) -> None:
    """None of plain's, the last of lucir's, all of pod's."""
    maps = lived_in(ResNet(variant, 4))(torch.randn(2, 3, 64, 64))
    assert tuple(int(m.min() < 0) for m in maps) == negative


def test_nothing_stands_between_the_stages_of_pod() -> None:
    """A stage starts from the last one's map, negative values and all."""
    network = lived_in(ResNet("pod", 4))
    maps = network(torch.randn(2, 3, 64, 64))
    for stage, (before, after) in zip(list(network.stages)[1:], pairwise(maps), strict=True):
        assert torch.equal(stage(before), after)
        assert not torch.equal(stage(before.relu()), after)


@pytest.mark.parametrize("variant", ["plain", "lucir", "pod"])
@pytest.mark.parametrize("stem", ["7x7", "3x3"])
def test_stem_and_first_blocks_end_in_a_relu(variant: Variant, stem: Stem) -> None:
    """In all variants: it is the second block of a stage that may have none."""
    network, seen = lived_in(ResNet(variant, 4, stem)), list[Tensor]()
    for stage in network.stages:
        assert isinstance(stage, nn.Sequential)
        stage[0].register_forward_hook(lambda _, inputs, out: seen.extend((inputs[0], out)))
    network(torch.randn(2, 3, 64, 64))
    assert len(seen) == 8
    assert all(out.min() == 0 for out in (seen[0], *seen[1::2]))


@pytest.mark.parametrize(("variant", "weight"), [("plain", 1.0), ("lucir", 1.0), ("pod", 0.0)])
def test_pod_blocks_start_as_their_shortcuts(variant: Variant, weight: float) -> None:
    """The last batch norm of every block starts at zero, and only there, and only in pod."""
    blocks = [m for m in ResNet(variant, 4).modules() if isinstance(m, Block)]
    assert len(blocks) == 8
    for block in blocks:
        assert (block.bn2.weight == weight).all()
        assert (block.bn1.weight == 1).all()


def test_convolutions_start_with_variance_by_fan_out() -> None:
    """Kaiming's: 2 / (out * k * k)."""
    weight = ResNet("lucir", 64).stages[3][0].conv1.weight  # type: ignore[index]
    assert weight.shape[:2] == (512, 256)
    assert weight.std().item() == pytest.approx(math.sqrt(2 / (512 * 9)), rel=0.01)
    assert abs(weight.mean().item()) < 1e-3


@pytest.mark.parametrize(("stem", "side"), [("7x7", 16), ("3x3", 32)])
def test_stems_halve_twice_or_once(stem: Stem, side: int) -> None:
    """And every stage after the first once more."""
    maps = ResNet("plain", 4, stem)(torch.randn(1, 3, 64, 64))
    assert [tuple(m.shape[1:]) for m in maps] == [
        (4 << n, side >> n, side >> n) for n in range(4)
    ]  # fmt: skip


@given(
    height=st.integers(1, 20), width=st.integers(1, 20), bias=st.booleans(), seed=st.integers(0, 99)
)
def test_a_wide_convolution_by_blocks(height: int, width: int, bias: bool, seed: int) -> None:
    """What a GPU runs is the same sums as the convolution that it stands for."""
    torch.manual_seed(seed)
    x, weight = torch.randn(2, 3, 2 * height, 2 * width).double(), torch.randn(4, 3, 7, 7).double()
    more = torch.randn(4).double() if bias else None
    torch.testing.assert_close(blockwise(x, weight, more), F.conv2d(x, weight, more, 2, 3))


@pytest.mark.parametrize("variant", ["plain", "lucir", "pod"])
@pytest.mark.parametrize("stem", ["7x7", "3x3"])
def test_fusing_keeps_the_maps(variant: Variant, stem: Stem) -> None:
    """Batch norms are gone, all four maps are as before."""
    network = lived_in(ResNet(variant, 4, stem))
    x = torch.randn(2, 3, 32, 32)
    with torch.inference_mode():
        before = network(x)
        network.fuse()
        after = network(x)
    assert not any(isinstance(m, nn.BatchNorm2d) for m in network.modules())
    for a, b in zip(before, after, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


# Heads


@pytest.mark.parametrize("kind", [Linear, SplitCosine, LSC])
@settings(max_examples=20, deadline=None)
@given(counts=st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_growing_keeps_the_scores_of_old_classes(
    kind: type[Linear] | type[Split], counts: list[int]
) -> None:
    """Whatever classes come, those that were there score as before."""
    head, features = kind(5), torch.randn(3, 5)
    before = torch.empty(3, 0)
    for count in counts:
        head.grow(count)
        scores = head.scores(features).detach()
        assert scores.shape == (3, head.classes)
        torch.testing.assert_close(scores[:, : before.shape[1]], before, rtol=0, atol=1e-5)
        before = scores
    assert head.classes == sum(counts)


def test_linear_keeps_its_rows_and_trains_all_of_them() -> None:
    """Old weights and biases bit for bit; new ones within 1 / sqrt(d)."""
    head = Linear(4)
    head.grow(2)
    weight, bias = head.weight.detach().clone(), head.bias.detach().clone()
    head.grow(100)
    assert torch.equal(head.weight[:2], weight)
    assert torch.equal(head.bias[:2], bias)
    assert 0.45 < head.weight.abs().max() <= 0.5
    assert head.weight.requires_grad and head.bias.requires_grad


def test_linear_scores_are_logits() -> None:
    """(1, 2) . (3, 4) + 0 = 11, twice."""
    head = Linear(2)
    head.grow(1, torch.tensor([[3.0, 4.0]]))
    scores = head.scores(torch.tensor([[1.0, 2.0]]))
    assert scores.tolist() == head.logits(scores).tolist() == [[11.0]]


def test_cosine_head_by_hand() -> None:
    """The angle of (3, 4) to the axes is 0.6 and 0.8, whatever the lengths; times the scale."""
    head = SplitCosine(2)
    head.grow(1, torch.tensor([[7.0, 0.0]]))
    head.grow(1, torch.tensor([[0.0, 0.1]]))
    head.scale.data.fill_(3.0)
    scores = head.scores(torch.tensor([[3.0, 4.0]]))
    torch.testing.assert_close(scores, torch.tensor([[0.6, 0.8]]))
    torch.testing.assert_close(head.logits(scores), torch.tensor([[1.8, 2.4]]))


@pytest.mark.parametrize("kind", [SplitCosine, LSC])
def test_growing_moves_new_rows_to_the_old(kind: type[Split]) -> None:
    """Old rows are those of before, in order and frozen; only new ones and the scale learn."""
    head = kind(4)
    head.grow(2)
    assert len(head.old) == 0
    head.grow(3)
    first = head.rows.detach().clone()
    head.grow(1)
    assert torch.equal(head.old, first)
    assert not head.old.requires_grad
    assert [name for name, p in head.named_parameters() if p.requires_grad] == ["new", "scale"]
    assert head.scale.item() == 1.0


@pytest.mark.parametrize("kind", [SplitCosine, LSC])
def test_growing_keeps_the_scale(kind: type[Split]) -> None:
    """What was learned of it goes on into the next phase."""
    head = kind(4)
    head.grow(2)
    head.scale.data.fill_(7.0)
    head.grow(1)
    assert head.scale.item() == 7.0 and head.scale.requires_grad


def test_a_head_takes_the_rows_it_is_given() -> None:
    """Imprinted rows arrive unchanged."""
    rows = torch.randn(2, 4)
    head = SplitCosine(4)
    head.grow(1)
    head.grow(2, rows)
    assert torch.equal(head.new, rows)


def test_cosine_rows_start_uniformly() -> None:
    """Within 1 / sqrt(d)."""
    head = SplitCosine(4)
    head.grow(500)
    assert 0.49 < head.new.abs().max() <= 0.5
    assert head.new.std().item() == pytest.approx(1 / math.sqrt(12), rel=0.05)


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


@pytest.mark.parametrize("proxies", [1, 10])
def test_mean_norm_is_over_old_and_new_rows(proxies: int) -> None:
    """Lengths 5 and 1, half of each: 3."""
    long, short = torch.tensor([3.0, 4.0]), torch.tensor([0.0, -1.0])
    head: Split = SplitCosine(2) if proxies == 1 else LSC(2)
    for row in (long, short):
        head.grow(1, row.expand(1, *head.shape))
    assert head.mean_norm().item() == pytest.approx(3.0)
    assert not head.mean_norm().requires_grad


# Networks


@pytest.mark.parametrize("head", [Linear, SplitCosine, LSC])
def test_scores_stay_in_fp32_under_autocast(head: type[Linear] | type[Split]) -> None:
    """The backbone computes in bf16, the head exactly as it does on those features."""
    net = tiny(head=head)
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        out = net(images())
    assert out.maps[-1].dtype == torch.bfloat16
    assert out.features.dtype == out.scores.dtype == out.logits.dtype == torch.float32
    with torch.inference_mode():
        assert torch.equal(out.scores, net.head.scores(out.features))
        assert torch.equal(out.logits, net.head.logits(out.scores))


def test_features_are_the_pooled_last_map() -> None:
    """By both ways to them, from bytes and from floats."""
    net, x = tiny(), images()
    with torch.inference_mode():
        out = net(x)
        assert torch.equal(out.features, net.features(x.float()))
        torch.testing.assert_close(out.features, out.maps[-1].mean((2, 3)))


def test_images_are_normalised_by_imagenets_statistics() -> None:
    """The mean colour becomes 0, one deviation more becomes 1."""
    mean = torch.tensor([123.675, 116.28, 103.53]).view(1, 3, 1, 1)
    std = torch.tensor([58.395, 57.12, 57.375]).view(1, 3, 1, 1)
    torch.testing.assert_close(normalised(mean), torch.zeros(1, 3, 1, 1))
    torch.testing.assert_close(normalised(mean + std), torch.ones(1, 3, 1, 1))
    net, x = tiny(), images()
    seen: list[Tensor] = []
    net.backbone.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    net(x)
    torch.testing.assert_close(seen[0], normalised(x))


@pytest.mark.parametrize("head", [Linear, SplitCosine, LSC])
def test_a_teacher_does_not_follow_its_pupil(head: type[Linear] | type[Split]) -> None:
    """It answers as the network did, and goes on so when that one learns and grows."""
    net, x = tiny("lucir", head), images(4)
    teacher = net.frozen()
    with torch.inference_mode():
        before = teacher(x)
        torch.testing.assert_close(before.logits, net(x).logits, rtol=1e-4, atol=1e-4)
    net.train()
    optimiser = torch.optim.SGD(net.parameters(), lr=1.0)
    net(x).logits.square().sum().backward()
    optimiser.step()
    net.head.grow(2)
    with torch.inference_mode():
        for a, b in zip(before[1:], teacher(x)[1:], strict=True):
            assert torch.equal(a, b)
    assert teacher.classes == 3
    assert not any(p.requires_grad for p in teacher.parameters())
    assert not teacher.training


def test_making_a_teacher_leaves_the_network_alone() -> None:
    """It keeps its batch norms, its mode and its gradients."""
    net = tiny().train()
    state = {name: value.clone() for name, value in net.state_dict().items()}
    net.frozen()
    assert net.training
    assert all(p.requires_grad for p in net.parameters())
    assert state.keys() == net.state_dict().keys()
    assert all(torch.equal(state[name], value) for name, value in net.state_dict().items())


def test_a_teacher_becomes_the_next_one_in_place() -> None:
    """The same parameters with other weights, and the other's classes."""
    teacher, pupil, x = tiny("lucir", LSC).frozen(), tiny("lucir", LSC), images()
    pupil.head.grow(2)
    following = pupil.frozen()
    weights = list(teacher.backbone.parameters())
    teacher.become(following)
    assert all(a is b for a, b in zip(weights, teacher.backbone.parameters(), strict=True))
    assert teacher.classes == 5
    with torch.inference_mode():
        assert torch.equal(teacher(x).logits, following(x).logits)


# Checkpoints


def checkpoint(head: str = "LSC", classes: tuple[int, ...] = (2, 1)) -> Checkpoint:
    what = Architecture("pod", head, 2, "3x3", 32, classes)
    net = what.build()
    lived_in(cast(ResNet, net.backbone))
    tensors = {"model": dict(net.state_dict()), "method": {"bias_": torch.tensor([1.5, -0.5])}}
    return Checkpoint(what, tensors, {"phase": len(classes) - 1, "note": [1, None, "x"]})


@pytest.mark.parametrize("head", ["Linear", "SplitCosine", "LSC"])
@pytest.mark.parametrize("classes", [(2,), (2, 1), (3, 1, 2)])
def test_a_checkpoint_comes_back_whole(tmp_path: Path, head: str, classes: tuple[int, ...]) -> None:
    """Tensors bit for bit, what was noted, and a network that answers the same."""
    made = checkpoint(head, classes)
    write_checkpoint(tmp_path / "a.safetensors", made)
    read = read_checkpoint(tmp_path / "a.safetensors")
    assert read.architecture == made.architecture
    assert read.about == made.about
    assert {group: set(ts) for group, ts in read.tensors.items()} == {
        group: set(ts) for group, ts in made.tensors.items()
    }
    for group, tensors in made.tensors.items():
        for name, value in tensors.items():
            assert torch.equal(read.tensors[group][name], value)
    x = images()
    net, again = made.network(), read.network()
    assert not again.training
    assert again.classes == sum(classes)
    with torch.inference_mode():
        assert torch.equal(net(x).logits, again(x).logits)
    frozen = [name for name, p in again.named_parameters() if not p.requires_grad]
    assert frozen == ([] if head == "Linear" else ["head.old"])


def test_channels_last_weights_come_back(tmp_path: Path) -> None:
    """The layout in memory is no part of a checkpoint."""
    made = checkpoint()
    plain = {name: value.clone() for name, value in made.tensors["model"].items()}
    for name, value in plain.items():
        if value.ndim == 4:
            made.tensors["model"][name] = value.contiguous(memory_format=torch.channels_last)
    write_checkpoint(tmp_path / "a.safetensors", made)
    read = read_checkpoint(tmp_path / "a.safetensors").tensors["model"]
    assert all(torch.equal(read[name], value) for name, value in plain.items())


def test_the_network_of_a_folder_is_that_of_its_last_phase(tmp_path: Path) -> None:
    """With the side of the images it saw; torch's generator is left alone."""
    for phase in range(3):
        made = checkpoint(classes=(2,) * (phase + 1))
        write_checkpoint(tmp_path / f"phase-{phase:02d}.safetensors", made)
    state = torch.get_rng_state()
    net, size = load_network(tmp_path)
    assert torch.equal(torch.get_rng_state(), state)
    assert (net.classes, size) == (6, 32)
    assert all(torch.equal(v, made.tensors["model"][n]) for n, v in net.state_dict().items())


def test_refuses_a_folder_without_a_finished_phase(tmp_path: Path) -> None:
    """The message names the folder."""
    with pytest.raises(CheckpointError, match=rf"{tmp_path}: no run folder with a finished phase"):
        load_network(tmp_path)


def test_refuses_a_missing_checkpoint(tmp_path: Path) -> None:
    """The message names the file."""
    with pytest.raises(CheckpointError, match=r"none\.safetensors: cannot be read as a checkpoint"):
        read_checkpoint(tmp_path / "none.safetensors")


def test_refuses_somebody_elses_file(tmp_path: Path) -> None:
    """Safetensors, but not ours; or no safetensors at all."""
    path = tmp_path / "other.safetensors"
    save_file({"weight": torch.ones(2)}, path)
    with pytest.raises(CheckpointError, match=r"other\.safetensors: not a checkpoint of mrdc"):
        read_checkpoint(path)
    path.write_bytes(b"no tensors here, but quite some text that is none")
    with pytest.raises(CheckpointError, match=r"other\.safetensors: cannot be read as a checkpoin"):
        read_checkpoint(path)


@pytest.mark.parametrize("keep", [0.0, 0.001, 0.5, 0.999])
def test_refuses_a_checkpoint_cut_short(tmp_path: Path, keep: float) -> None:
    """Wherever it was cut."""
    path = tmp_path / "cut.safetensors"
    write_checkpoint(path, checkpoint())
    whole = path.read_bytes()
    path.write_bytes(whole[: int(keep * len(whole))])
    with pytest.raises(CheckpointError, match=r"cut\.safetensors: cannot be read as a checkpoint"):
        read_checkpoint(path)
