"""Settings of any run."""

from mrdc.detection.settings import DetectSettings
from mrdc.training.settings import RunSettings

AnySettings = RunSettings | DetectSettings
