"""Semi-supervised continual learning of detectors."""

from mrdc.detection.learners import LEARNERS
from mrdc.detection.phases import run_scenes
from mrdc.detection.stream import SceneStream, make_scenes

__all__ = ["LEARNERS", "SceneStream", "make_scenes", "run_scenes"]
