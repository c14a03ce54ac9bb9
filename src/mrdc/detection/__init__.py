"""Semi-supervised continual learning of detectors."""
