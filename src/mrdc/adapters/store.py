"""A memory for adapters: `Replay`, with features from a framework's own network and transforms."""

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from mrdc.data.photo import Photo
from mrdc.memory.inputs import Columns
from mrdc.planning.learn import Replay

Embed = Callable[[Sequence[Photo]], Tensor]  # photos to features (n, d)


class Store(Replay):
    """A `Replay` that is given a function to embed photos each time it learns."""

    _embed: Embed

    def learn_with(
        self,
        embed: Embed,
        photos: Mapping[int, Sequence[Photo]],
        values: Mapping[int, Columns] | None = None,
    ) -> None:
        """Learn images, ranked by features from `embed`; otherwise as `Replay.learn`."""
        self._embed = embed
        try:
            self.learn(photos, values)
        finally:
            del self._embed  # it holds the framework's learner

    def _features(self, photos: Sequence[Photo], stage: str) -> Tensor:
        return self._embed(photos)
