"""`plan` and `pack` with a cheap embedding, 4 images per class, and a counting codec."""

from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

from mrdc.codec.image import Pixels
from mrdc.codec.jpeg import Jpeg
from mrdc.nn.embedder import Embedder
from mrdc.planning.pack import Packed, run_pack
from mrdc.planning.plan import Plan, run_plan
from mrdc.planning.settings import PackSettings, PlanSettings
from tests.conftest import CHEAP


def settings(photos: Path, **options: Any) -> PlanSettings:
    return PlanSettings(photos, **{"budget": "4/class"} | options)


def planned(photos: Path, embedder: Embedder = CHEAP, **options: Any) -> Plan:
    return run_plan(settings(photos, **options), embedder=embedder)


def packed(photos: Path, output: Path, embedder: Embedder | None = CHEAP, **options: Any) -> Packed:
    given: dict[str, Any] = {"budget": "4/class", "output": output} | options
    return run_pack(PackSettings(photos, **given), embedder=embedder)


class Counting(Jpeg):
    """JPEG that counts how often each image is encoded with each quality."""

    name: ClassVar[str] = "counting"

    def __init__(self) -> None:
        self.calls: Counter[tuple[bytes, int | None]] = Counter()

    def encode(self, image: Pixels, quality: int | None = None) -> bytes:
        self.calls[image.tobytes(), quality] += 1
        return super().encode(image, quality)
