"""Embedding: deterministic, cached by content, with named networks and callables."""

import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchvision.models import get_model

from mrdc._utils.errors import ImageError, UsageError
from mrdc.data.crops import short_side
from mrdc.data.photo import Photo, digest
from mrdc.nn.embed import (
    CPU,
    Embedder,
    as_embedder,
    embed,
    load_embedder,
    network_embedder,
    with_size,
)
from mrdc.nn.feature_cache import FeatureCache, open_cache
from tests.conftest import CHEAP, jpeg, pixels, project


def shots(count: int) -> list[Photo]:
    return [Photo(f"{n}.jpg", lambda n=n: jpeg(n)) for n in range(count)]  # type: ignore[misc]


def test_one_row_per_photo_in_order() -> None:
    """For any batch size and number of threads; pixels need no file."""
    photos = [*shots(20), Photo("array", lambda: pixels(0))]
    rows, good = embed(photos, CHEAP)
    assert rows.shape == (21, 48)
    assert good == list(range(21))
    for batch_size, threads in ((1, 1), (5, 3), (64, 2)):
        again, _ = embed(photos, Embedder(project, 16, batch_size=batch_size), threads=threads)
        torch.testing.assert_close(again, rows, rtol=0, atol=1e-4)


def test_pixels_in_ram_are_not_decoded_again() -> None:
    """Files whose pixels are known are not even looked at."""
    known = Photo("0.jpg", lambda: b"text", decoded=pixels(0))
    assert torch.equal(embed([known], CHEAP)[0], embed([Photo("0", lambda: pixels(0))], CHEAP)[0])


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


def test_unreadable_photos_raise_or_are_skipped() -> None:
    """The returned positions say which rows are present."""
    photos = shots(4)
    photos[2] = Photo("bad.jpg", lambda: b"text")
    with pytest.raises(ImageError, match=r"bad\.jpg: not an image"):
        embed(photos, CHEAP)
    skipped: list[ImageError] = []
    rows, good = embed(photos, CHEAP, skip=skipped.append)
    assert good == [0, 1, 3]
    assert torch.equal(rows, embed([photos[i] for i in good], CHEAP)[0])
    assert len(skipped) == 1


def test_the_cache_spares_the_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By content: the same bytes under another name are known; beyond a size, rows are dropped."""
    seen: list[int] = []

    def counting(images: Tensor) -> Tensor:
        seen.append(len(images))
        return project(images)

    cache = FeatureCache(tmp_path, "test")
    first, _ = embed(shots(6), Embedder(counting, 16), cache=cache)
    renamed = [Photo("other name", lambda: jpeg(3)), Photo("new", lambda: jpeg(77))]
    second, _ = embed(renamed, Embedder(counting, 16), cache=cache)
    assert sum(seen) == 7
    assert torch.equal(second[0], first[3])
    cache.close()
    again = FeatureCache(tmp_path, "test")
    third, _ = embed(shots(6), Embedder(counting, 16), cache=again)
    assert sum(seen) == 7
    assert torch.equal(third, first)
    monkeypatch.setattr("mrdc.nn.feature_cache.CACHE_BYTES", 3 * 4 * 48)
    assert len(again.known()) == 7
    again.trim()
    again.close()
    cache = FeatureCache(tmp_path, "test")
    assert cache._db.execute("SELECT count(*) FROM features").fetchone()[0] == 3
    cache.close()


def test_a_broken_cache_is_reported_once_and_ignored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file of another program, or one that breaks while in use."""
    embedder = replace(CHEAP, key="k")
    cache = FeatureCache(tmp_path, "k")
    cache._db.execute("DROP TABLE features")
    rows, _ = embed(shots(5), embedder, cache=cache)
    cache.close()
    assert rows.shape == (5, 48)
    assert capsys.readouterr().err.count("feature cache turned off") == 1
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "k.sqlite").write_bytes(b"garbage" * 1000)
    assert open_cache(embedder.key) is None
    assert "features are not cached (file is not a database)" in capsys.readouterr().err


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


def test_cached_features_of_another_width_are_not_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The images are embedded again."""
    photos = [Photo(str(n), partial(jpeg, n)) for n in range(3)]
    cache = FeatureCache(tmp_path, "key")
    cache.put(digest(jpeg(1)), torch.ones(5))
    found, _ = embed(photos, CHEAP, cache=cache)
    cache.close()
    assert found.equal(embed(photos, CHEAP)[0])
    assert "the feature cache is damaged" in capsys.readouterr().err


def test_a_network_without_a_linear_head_is_refused(tmp_path: Path) -> None:
    """SqueezeNet classifies by a convolution."""
    torch.save(get_model("squeezenet1_1", weights=None).state_dict(), tmp_path / "w.pt")
    with pytest.raises(UsageError, match="squeezenet1_1 has no linear head"):
        load_embedder("torchvision:squeezenet1_1", tmp_path / "w.pt")


def test_batches_run_side_by_side_on_a_cpu() -> None:
    """The same features from any number of threads, each of which torch uses alone."""
    seen: set[tuple[bool, int]] = set()
    net = nn.Conv2d(3, 5, 3)

    def features(images: Tensor) -> Tensor:
        here = threading.current_thread() is threading.main_thread()
        seen.add((here, torch.get_num_threads()))
        found: Tensor = net(images).mean((2, 3))
        return found

    before = torch.get_num_threads()
    embedder = network_embedder(net, features, device=CPU, size=72)
    one, four = (embed(shots(10 * embedder.batch_size), embedder, threads=n)[0] for n in (1, 4))
    assert torch.equal(one, four)
    assert seen == {(False, 1)}
    assert torch.get_num_threads() == before


def test_side_by_side_batches_leave_the_flags_of_cudnn_alone() -> None:
    """They belong to the whole process, so threads must not change them in turn."""
    before = torch.backends.cudnn.deterministic
    seen: set[bool] = set()

    def features(images: Tensor) -> Tensor:
        seen.add(torch.backends.cudnn.deterministic)
        return images.mean((2, 3))

    embed(shots(3), network_embedder(nn.Linear(1, 1), features, device=CPU))
    assert seen == {before}


def test_a_network_that_fails_in_a_thread_says_why() -> None:
    def features(images: Tensor) -> Tensor:
        raise UsageError("no such layer")

    embedder = network_embedder(nn.Linear(1, 1), features, device=CPU, size=16)
    with pytest.raises(UsageError, match="no such layer"):
        embed(shots(1), embedder)
