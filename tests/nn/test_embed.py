"""Embedding: deterministic, cached by content, refuses what it cannot use."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from mrdc._utils.errors import ImageError, UsageError
from mrdc.data.photo import Photo
from mrdc.nn.embed import Embedder, embed, load_embedder
from mrdc.nn.feature_cache import FeatureCache, open_cache
from tests.conftest import CHEAP, jpeg, pixels, project


def shots(count: int) -> list[Photo]:
    return [Photo(f"{n}.jpg", lambda n=n: jpeg(n)) for n in range(count)]  # type: ignore[misc]


def test_one_row_a_photo_in_their_order() -> None:
    """Whatever the batch size and the threads."""
    rows, good = embed(shots(21), CHEAP)
    assert rows.shape == (21, 48)
    assert good == list(range(21))
    for batch_size, threads in ((1, 1), (5, 3), (64, 2)):
        again, _ = embed(shots(21), Embedder(project, 16, batch_size=batch_size), threads=threads)
        torch.testing.assert_close(again, rows, rtol=0, atol=1e-4)


def test_lite0_is_deterministic_to_the_bit() -> None:
    """Batch, company and thread count make no difference."""
    embedder = load_embedder("lite0")
    rows, _ = embed(shots(11), embedder)
    assert rows.shape == (11, 1280)
    assert rows.dtype == torch.float32
    alone, _ = embed(shots(1), embedder)
    assert torch.equal(alone[0], rows[0])
    threads = torch.get_num_threads()
    try:
        for count in (1, 2, 3, 4):
            torch.set_num_threads(count)
            assert torch.equal(embed(shots(11), embedder)[0], rows)
    finally:
        torch.set_num_threads(threads)


def test_unreadable_photos_raise_or_are_skipped() -> None:
    """The positions tell which rows are there."""
    photos = shots(4)
    photos[2] = Photo("bad.jpg", lambda: b"text")
    with pytest.raises(ImageError, match=r"bad\.jpg: not an image"):
        embed(photos, CHEAP)
    told: list[ImageError] = []
    rows, good = embed(photos, CHEAP, skip=told.append)
    assert good == [0, 1, 3]
    assert torch.equal(rows, embed([photos[i] for i in good], CHEAP)[0])
    assert len(told) == 1


def test_the_cache_spares_the_network(tmp_path: Path) -> None:
    """Keyed by content: the same bytes under another name are known."""
    seen: list[int] = []

    def counting(images: torch.Tensor) -> torch.Tensor:
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
    again.close()
    assert sum(seen) == 7
    assert torch.equal(third, first)


def test_the_cache_drops_its_oldest_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It cannot grow without end."""
    monkeypatch.setattr("mrdc.nn.feature_cache.CACHE_BYTES", 3 * 4 * 48)
    cache = FeatureCache(tmp_path, "test")
    embed(shots(6), CHEAP, cache=cache)
    cache.close()
    cache = FeatureCache(tmp_path, "test")
    count = cache._db.execute("SELECT count(*) FROM features").fetchone()[0]
    cache.close()
    assert count == 3


def test_a_broken_cache_is_no_reason_to_stop(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another program's file, or one that breaks on the way: said once, then done without."""
    embedder = replace(CHEAP, key="k")
    cache = FeatureCache(tmp_path, "k")
    cache._db.execute("DROP TABLE features")
    rows, _ = embed(shots(5), embedder, cache=cache)
    cache.close()
    assert rows.shape == (5, 48)
    assert capsys.readouterr().err.count("not cached any more") == 1
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "k.sqlite").write_bytes(b"garbage" * 1000)
    assert open_cache(embedder.key) is None
    assert "features are not cached (file is not a database)" in capsys.readouterr().err


def test_arrays_are_embedded_as_they_are() -> None:
    """Pixels need no file."""
    rows, _ = embed([Photo("a", lambda: pixels(0, 16, 16))], CHEAP)
    image = torch.from_numpy(pixels(0, 16, 16).copy()).permute(2, 0, 1)
    assert np.isfinite(rows.numpy()).all()
    assert image.shape == (3, 16, 16)


def test_a_torchvision_network_with_its_weights(tmp_path: Path) -> None:
    """Features are what enters the last linear layer; both file kinds load."""
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
        ("lite1", None, "unknown embed 'lite1': choose lite0, torchvision:NAME"),
        ("lite0", "w.pth", "--weights goes with --embed torchvision:NAME"),
        ("torchvision:resnet", None, "torchvision has no model 'resnet'"),
        ("torchvision:resnet18", None, "needs --weights FILE"),
        ("torchvision:resnet18", "missing.pth", r"missing.pth: cannot be read \(No such file"),
        ("torchvision:resnet18", "text.pth", r"text.pth: not a state dict, .* its state_dict\(\)"),
        ("torchvision:resnet18", "other.pth", "not weights of torchvision's resnet18"),
    ],
)
def test_refusals(name: str, weights: str | None, message: str, tmp_path: Path) -> None:
    """Each names the flag or the file."""
    (tmp_path / "text.pth").write_text("hello")
    torch.save({"weight": torch.zeros(3)}, tmp_path / "other.pth")
    with pytest.raises(UsageError, match=message):
        load_embedder(name, tmp_path / weights if weights else None)


def test_pickled_code_in_weights_is_not_run(tmp_path: Path) -> None:
    """Weights files are data."""
    torch.save({"weight": Path("/")}, tmp_path / "evil.pth")
    with pytest.raises(UsageError, match="not a state dict"):
        load_embedder("torchvision:resnet18", tmp_path / "evil.pth")
