"""What a run consists of."""

from abc import ABC, abstractmethod

from mrdc.experiments.check import Checked, Listener
from mrdc.experiments.settings import AnySettings
from mrdc.training.results import RunResult
from mrdc.training.resume import Keeper


class Experiment(ABC):
    """A stream and what learns it; classes and scenes differ in the details."""

    settings: AnySettings

    @abstractmethod
    def fingerprint(self) -> str:
        """Hash of the images and their phases."""

    @abstractmethod
    def check(self, listener: Listener) -> Checked:
        """Read every image, and refuse a budget that is too small.

        Raises:
            MrdcError: images or settings that cannot be used.
        """

    @abstractmethod
    def learn(self, keeper: Keeper) -> RunResult:
        """Learn the stream."""
