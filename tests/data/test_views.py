"""Views made by processes are views of the right images."""

import pytest
import torch

from mrdc._utils.errors import ImageError
from mrdc.data.crops import centre_crop
from mrdc.data.views import centre_views
from mrdc.nn.embed import embed, embed_together
from tests.conftest import CHEAP, jpeg
from tests.training.feeds import examples, varied


@pytest.mark.parametrize("worth", [20, 1000])
def test_views_are_centre_crops_in_order(monkeypatch: pytest.MonkeyPatch, worth: int) -> None:
    """Made by processes or threads; their features are those that `embed` computes."""
    monkeypatch.setattr("mrdc._utils.forked.WORTH", worth)
    monkeypatch.setattr("mrdc._utils.forked.EACH", 5)
    source = varied(23)
    views = list(centre_views(source.photos, 16, 5, threads=2))
    assert [len(part) for part in views] == [5, 5, 5, 5, 3]
    for index, view in enumerate(torch.cat(views)):
        assert torch.equal(view, centre_crop(source[index][0], 16))
    expected, _ = embed(source.photos, CHEAP, threads=2)
    assert torch.equal(embed_together(source.photos, CHEAP, 2), expected)


def test_no_photos_have_no_views_and_damaged_ones_are_named() -> None:
    assert list(centre_views((), 16, 5)) == []
    with pytest.raises(ImageError, match=r"^1: the file is empty"):
        list(centre_views(examples([jpeg(0), b""]).photos, 16, 5))
