"""Phases of scenes."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mrdc._utils.errors import DataError
from mrdc.data.examples import Examples
from mrdc.data.scenes import SceneSplits
from mrdc.detection.feed import sampled
from mrdc.detection.stream import make_scenes
from mrdc.training.match import Copies
from tests.scenes import scenes, splits


@given(phases=st.integers(1, 4), labelled=st.integers(1, 3), seed=st.integers(0, 5))
@settings(max_examples=20, deadline=None)
def test_phases_share_no_image(phases: int, labelled: int, seed: int) -> None:
    """Neither labelled nor unlabelled."""
    made = make_scenes(splits(), phases, labelled, 2, seed)
    names = [made.train.photos[i].id for part in made.labelled for i in part]
    names += [photo.id for part in made.unlabelled for photo in part]
    assert len(names) == len(set(names)) == phases * (labelled + 2)


def test_phases_depend_on_seed_and_names_alone() -> None:
    """The order of the images in a json does not matter."""
    given_ = splits()
    turned = SceneSplits(given_.train.pick(range(23, -1, -1)), given_.test, None)

    def ids(of: SceneSplits, seed: int) -> list[list[str]]:
        made = make_scenes(of, 2, 3, 3, seed)
        labelled = [[made.train.photos[i].id for i in part] for part in made.labelled]
        return labelled + [[photo.id for photo in part] for part in made.unlabelled]

    assert ids(given_, 1) == ids(turned, 1)
    assert ids(given_, 1) != ids(given_, 2)


def test_crowds_are_part_of_the_fingerprint() -> None:
    """They affect AP; here the last object becomes a crowd."""
    made = splits()
    boxes, crowds = made.test.boxes, made.test.crowds
    test = replace(made.test, boxes=(*boxes[:-1], crowds[-1]), crowds=(*crowds[:-1], boxes[-1]))
    other = replace(made, test=test)
    first, second = (make_scenes(one, 2, 3, 1, seed=0).fingerprint() for one in (made, other))
    assert first != second


def test_a_separate_pool_gives_unlabelled_images() -> None:
    """Their boxes are then unknown."""
    pool = scenes(range(200, 210)).photos
    made = make_scenes(replace(splits(), unlabelled=pool), 2, 3, 5, 0)
    assert {photo.id for part in made.unlabelled for photo in part} == {p.id for p in pool}
    assert made.truth is None


@pytest.mark.parametrize(
    ("labelled", "unlabelled", "message"),
    [(13, 1, "need 26 labelled images, but there are 24"), (6, 7, "need 14 unlabelled")],
)
def test_refuses_more_images_than_there_are(labelled: int, unlabelled: int, message: str) -> None:
    with pytest.raises(DataError, match=message):
        make_scenes(splits(), 2, labelled, unlabelled, 0)


@given(count=st.integers(1, 9), batch=st.integers(1, 12), seed=st.integers(0, 3))
@settings(max_examples=40, deadline=None)
def test_every_image_comes_once_before_any_comes_again(count: int, batch: int, seed: int) -> None:
    """Steps are slices of an endless row of permutations."""
    row = [place for step in range(2 * count) for place in sampled(count, batch, step, seed)]
    for start in range(0, len(row) - count + 1, count):
        assert sorted(row[start : start + count]) == list(range(count))


def test_copies_take_the_places_of_their_scenes() -> None:
    """Some are replaced in every permutation, others in the next."""
    copies = Copies(0.5, np.arange(4), Examples())
    steps = range(100)
    row = [place for step in steps for place in sampled(7, 3, step, 1)]
    seen = [place for step in steps for place in sampled(7, 3, step, 1, copies)]
    assert [place - 7 if place > 6 else place for place in seen] == row
    drawn = [place for place, other in zip(row, seen, strict=True) if place != other]
    assert set(drawn) == {0, 1, 2, 3} and 50 < len(drawn) < 120
    assert seen[:7] != seen[7:14]
