"""Settings of an optimisation. Fields are flags of the same name."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class TrainSettings:
    """One optimisation: SGD as in the paper's appendix."""

    epochs: int = 90
    """Passes over the images of a phase."""
    lr: float = 0.1
    """Learning rate at the start of a phase."""
    momentum: float = 0.9
    """SGD momentum."""
    weight_decay: float = 1e-4
    """Weight decay."""
    batch_size: int = 128
    """Images per step."""
    schedule: Literal["multistep", "cosine"] = "multistep"
    """multistep: as in the code of LUCIR and MRDC; cosine: as in PODNet and the MRDC paper."""
    milestones: tuple[float, ...] = (1 / 3, 2 / 3)
    """Where multistep lowers the rate, as fractions of the epochs."""
    gamma: float = 0.1
    """Factor by which multistep lowers the rate."""
    brightness: float = 0.0
    """Random brightness, 1 +- this; PODNet uses 63/255."""
    match: float = 0.0
    """Chance, drawn anew every epoch, that an image of a new class is shown as the memory would
    store it. 0: new classes are seen as originals, and only old ones compressed."""
