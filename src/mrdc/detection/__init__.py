"""Semi-supervised continual learning of detectors."""

from mrdc.detection.learner import run_scenes
from mrdc.detection.methods import LEARNERS
from mrdc.detection.stream import SceneStream, make_scenes

__all__ = ["LEARNERS", "SceneStream", "make_scenes", "run_scenes"]
