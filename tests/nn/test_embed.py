"""Embedding: every photo in order, cached by content, batches side by side."""

import threading
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from mrdc._utils.errors import ImageError, UsageError
from mrdc.data.photo import Photo, digest
from mrdc.nn.embed import embed
from mrdc.nn.embedder import CPU, Embedder, network_embedder
from mrdc.nn.feature_cache import FeatureCache, open_cache
from tests.conftest import CHEAP, jpeg, pixels, project, shots


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
