"""Compressing all training images first."""

import pytest

from mrdc.codec.image import decode
from mrdc.experiments.classes import compressed
from mrdc.memory.replay import ReplayMemory
from mrdc.training.settings import RunSettings
from tests.helpers import small_run, small_stream, stored

STREAM = small_stream(2, 2, height=24, width=30)
SETTINGS = RunSettings("", compress=25)


def test_training_images_are_compressed_as_a_memory_would_and_test_images_are_not() -> None:
    """Sizes stay those of the files, so that budgets in originals do not change."""
    made = compressed(STREAM, SETTINGS)
    memory = ReplayMemory("1MB", "jpeg", 25)
    memory.add(dict(enumerate(STREAM.train.photos)))
    assert [photo.load() for photo in made.train.all_photos] == stored(memory)
    assert made.test is STREAM.test and made.original_bytes == STREAM.original_bytes
    assert compressed(STREAM, RunSettings("")) is STREAM


@pytest.mark.usefixtures("quick")
def test_originals_are_the_compressed_files_then() -> None:
    """More of them fit than source files, and the first phase differs."""
    memory = {"quality": "original", "budget": "2/class"}
    runs = [
        small_run("lucir", stream=compressed(STREAM, settings), size=16, memory=memory).learn(0)
        for settings in (SETTINGS, RunSettings(""))
    ]
    small, large = (run.memory for run in runs)
    assert len(small) > len(large) > 0
    assert set(stored(small)) <= {p.load() for p in compressed(STREAM, SETTINGS).train.all_photos}
    assert decode(stored(small)[0]).shape == (24, 30, 3)
    keys = {run.learner.first_phase_key() for run in runs}
    assert len(keys) == 2
