"""Small memories, what they store, and strategies for images and settings."""

from typing import Any

from hypothesis import strategies as st

from mrdc.data.photo import Photo
from mrdc.memory.budget import Budget
from mrdc.memory.replay import ReplayMemory
from tests.conftest import jpeg


def filled(budget: int | str | Budget = "1MB", classes: int = 3, images: int = 6) -> ReplayMemory:
    memory = ReplayMemory(budget, "jpeg", 50)
    memory.add({label: [jpeg(100 * label + n) for n in range(images)] for label in range(classes)})
    return memory


def streams(memory: ReplayMemory) -> list[bytes]:
    return [memory.encoded(index) for index in range(len(memory))]


def photo_of(seed: int, size: tuple[int, int], quality: int) -> Photo:
    return Photo(f"{seed}-{size}-{quality}", lambda: jpeg(seed, quality, *size))


SIDES = st.tuples(st.integers(1, 40), st.integers(1, 40))
PHOTOS = st.builds(photo_of, st.integers(0, 5), SIDES, st.sampled_from([60, 95]))
CLASSES = st.lists(st.lists(PHOTOS, min_size=1, max_size=6), min_size=1, max_size=4).map(
    lambda classes: dict(enumerate(classes))
)
Photos = dict[int, list[Photo]]
ACCOUNTING = st.sampled_from(["packed", "file"])
MADE: st.SearchStrategy[dict[str, Any]] = st.builds(
    dict, codec=st.sampled_from(["original", "png"]), accounting=ACCOUNTING
) | st.builds(
    dict,
    codec=st.sampled_from(["jpeg", "jpeg-optimised", "jpeg-progressive"]),
    quality=st.integers(1, 100),
    accounting=ACCOUNTING,
)
