"""Embedders: lite0, networks of torchvision, and any callable."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchvision.models import get_model

from mrdc._utils.errors import UsageError
from mrdc.data.crops import short_side
from mrdc.data.photo import Photo
from mrdc.nn.embed import embed
from mrdc.nn.embedder import Embedder, as_embedder, load_embedder, with_size
from tests.conftest import CHEAP, jpeg, pixels, shots


def test_lite0_is_deterministic_to_the_bit() -> None:
    """Neither its batch nor the threads that decode change the features of an image."""
    embedder = load_embedder("lite0", device="cpu")
    rows, _ = embed(shots(11), embedder)
    assert rows.shape == (11, 1280)
    assert rows.dtype == torch.float32
    assert torch.equal(embed(shots(1), embedder)[0][0], rows[0])
    assert torch.equal(embed(shots(11), embedder, threads=3)[0], rows)


@pytest.mark.parametrize(
    ("side", "size"), [(10, 64), (73, 64), (90, 72), (100, 80), (255, 216), (256, 224), (999, 224)]
)
def test_lite0_does_not_enlarge_images(side: int, size: int) -> None:
    """Its input is the largest that they fill, of 64 to 224 px; the longer side does not matter."""
    photos = [Photo(str(n), partial(pixels, n, side, 2 * side)) for n in range(3)]
    assert with_size("lite0", photos) == f"lite0:{size}"
    assert short_side(size) <= side or size == 64
    assert load_embedder(f"lite0:{size}", device="cpu").size == size


def test_the_size_of_most_images_counts() -> None:
    """Only `lite0` gets a size, by a few images that can be read."""
    small, large = (Photo(str(side), partial(pixels, 0, side, side)) for side in (80, 300))
    assert with_size("lite0", [small, large, large]) == "lite0:224"
    assert with_size("lite0", [small, small, large]) == "lite0:64"
    bad = Photo("bad.jpg", lambda: b"text")
    assert with_size("lite0", [bad, bad, small]) == "lite0:64"
    assert with_size("lite0", [bad]) == with_size("lite0", []) == "lite0"
    assert load_embedder("lite0", device="cpu").size == 224
    for name in ("lite0:100", "torchvision:resnet18", "run:here"):
        assert with_size(name, [small]) == name


def test_sizes_have_their_own_cache() -> None:
    assert load_embedder("lite0:64").key != load_embedder("lite0:72").key


def means(images: Tensor) -> Tensor:
    """A map (n, 3, 7, 7)."""
    return torch.nn.functional.avg_pool2d(images.float(), 32)


@pytest.mark.parametrize(
    "network",
    [
        means,
        lambda images: means(images).numpy(),
        lambda images: means(images).mean((2, 3)).double().numpy(),
        lambda images: means(images).mean((2, 3)).tolist(),
    ],
    ids=["map", "array map", "array", "list"],
)
def test_any_callable_can_embed(network: Callable[[Tensor], Any]) -> None:
    """It gets uint8 crops of 224 px, and returns features or maps (averaged), arrays or tensors."""
    assert as_embedder(CHEAP) is CHEAP and as_embedder("lite0") is None
    seen: list[tuple[torch.Size, torch.dtype]] = []

    def watched(images: Tensor) -> Any:
        seen.append((images.shape, images.dtype))
        return network(images)

    embedder = as_embedder(watched)
    assert embedder is not None and embedder.key is None
    rows, _ = embed(shots(3), embedder)
    assert seen == [((3, 3, 224, 224), torch.uint8)]
    assert rows.dtype == torch.float32
    expected = embed(shots(3), Embedder(lambda images: means(images).mean((2, 3))))[0]
    torch.testing.assert_close(rows, expected)


@pytest.mark.parametrize(
    ("found", "shown"),
    [
        (torch.zeros(3), r"the shape \(3,\)"),
        (torch.zeros(2, 5), r"the shape \(2, 5\)"),
        (torch.zeros(3, 5, 7).numpy(), r"the shape \(3, 5, 7\)"),
        (torch.zeros(1, 5, 7, 7), r"the shape \(1, 5, 7, 7\)"),
        (None, "NoneType"),
        ({"features": 1}, "dict"),
    ],
)
def test_refuses_callables_that_return_something_else(found: Any, shown: str) -> None:
    embedder = as_embedder(lambda images: found)
    assert embedder is not None
    message = rf"embed must return features \(n, d\) or maps .* of 3 images, got {shown}"
    with pytest.raises(UsageError, match=message):
        embed(shots(3), embedder)


def test_a_network_that_a_function_refers_to_is_in_evaluation_mode() -> None:
    """Its batch norms would learn otherwise; afterwards it trains on."""
    norm = nn.BatchNorm2d(3).train()

    def closure(images: Tensor) -> Tensor:
        return norm(images.float())  # type: ignore[no-any-return]

    for function in (closure, partial(closure), lambda images: norm(images.float())):
        made = as_embedder(function)
        assert made is not None
        embed([Photo("a", lambda: jpeg(0))], made)
        assert norm.training and float(norm.running_mean.abs().sum()) == 0  # type: ignore[union-attr]


def test_networks_that_do_not_take_bytes_are_explained() -> None:
    made = as_embedder(nn.Conv2d(3, 4, 3))
    assert made is not None
    with pytest.raises(UsageError, match="embed gets uint8 images from 0 to 255: convert and"):
        embed([Photo("a", lambda: jpeg(0))], made)


def test_a_torchvision_network_with_its_weights(tmp_path: Path) -> None:
    """Features are the input of the last linear layer; both kinds of file load."""
    from safetensors.torch import save_file
    from torchvision.models import resnet18

    network = resnet18(weights=None)
    torch.save(network.state_dict(), tmp_path / "w.pth")
    save_file(network.state_dict(), tmp_path / "w.safetensors")
    plain = load_embedder("torchvision:resnet18", tmp_path / "w.pth")
    rows, _ = embed(shots(2), plain)
    other, _ = embed(shots(2), load_embedder("torchvision:resnet18", tmp_path / "w.safetensors"))
    assert rows.shape == (2, 512)
    assert torch.equal(rows, other)


@pytest.mark.parametrize(
    ("name", "weights", "message"),
    [
        ("lite1", None, "unknown embed 'lite1': choose lite0, lite0:SIZE, torchvision:NAME"),
        ("lite0:big", None, "embed 'lite0:big': the size must be a number of pixels from 32 to"),
        ("lite0:31", None, "embed 'lite0:31': the size must be"),
        ("lite0:", None, "embed 'lite0:': the size must be"),
        ("lite0", "w.pth", "--weights needs --embed torchvision:NAME; lite0 has its own"),
        ("torchvision:resnet", None, "torchvision has no model 'resnet'"),
        ("torchvision:resnet18", None, "needs --weights FILE"),
        ("torchvision:resnet18", "missing.pth", r"missing.pth: cannot be read \(No such file"),
        ("torchvision:resnet18", "text.pth", r"text.pth: not a state dict, .* its state_dict\(\)"),
        ("torchvision:resnet18", "other.pth", "not weights of torchvision's resnet18"),
        ("torchvision:resnet18", "code.pth", "not a state dict"),  # which is not run
    ],
)
def test_refusals(name: str, weights: str | None, message: str, tmp_path: Path) -> None:
    (tmp_path / "text.pth").write_text("hello")
    torch.save({"weight": torch.zeros(3)}, tmp_path / "other.pth")
    torch.save({"weight": Path("/")}, tmp_path / "code.pth")
    with pytest.raises(UsageError, match=message):
        load_embedder(name, tmp_path / weights if weights else None)


def test_a_network_without_a_linear_head_is_refused(tmp_path: Path) -> None:
    """SqueezeNet classifies by a convolution."""
    torch.save(get_model("squeezenet1_1", weights=None).state_dict(), tmp_path / "w.pt")
    with pytest.raises(UsageError, match="squeezenet1_1 has no linear head"):
        load_embedder("torchvision:squeezenet1_1", tmp_path / "w.pt")
