"""Results of a phase and of a run, and their JSON."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

Json = dict[str, Any]


class Record:
    """A dataclass that is written to, and read from, one JSON object.

    Fields that are None are left out, unless None is a value of its own (`nullable`).
    Unknown keys are ignored, so that a newer version's file can be read.
    """

    nullable: tuple[str, ...] = ()

    def to_json(self) -> Json:
        found: Json = {}
        for one in fields(self):  # type: ignore[arg-type]
            value = getattr(self, one.name)
            if one.metadata.get("private") or (value is None and one.name not in self.nullable):
                continue
            found[one.name] = value.to_json() if isinstance(value, Record) else value
        return found

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        known = {one.name: one for one in fields(cls)}  # type: ignore[arg-type]
        given = {name: value for name, value in values.items() if name in known}
        if "memory" in given:
            given["memory"] = MemorySummary.from_json(given["memory"])
        return cls(**given)


@dataclass(frozen=True)
class MemorySummary(Record):
    """Size of the memory after a phase; zeros without a memory.

    Attributes:
        parameter_bytes: bytes of parameters that the method adds to the network.
    """

    bytes: int = 0
    budget_bytes: int = 0
    items: int = 0
    parameter_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class PhaseResult(Record):
    """Measurements after one phase.

    Attributes:
        accuracy: percent over all classes seen; AP for detectors.
        quality: quality of the images stored in this phase; None for originals.
        candidates: the candidates of the search, as in `plan --json`.
        report: what the method has to say about the phase.
        parts: seconds by kind of work.
        tasks: accuracy on the classes of each phase so far.
        confusion: test images by the task they belong to and the task they were assigned to.
    """

    nullable = ("quality",)

    phase: int
    accuracy: float
    quality: int | None
    memory: MemorySummary
    trained_images: int
    seconds: float
    parts: dict[str, float]
    candidates: list[Json] = field(default_factory=list)
    report: Json = field(default_factory=dict)
    classes: int | None = None
    head_accuracy: float | None = None
    tasks: list[float] | None = None
    confusion: list[list[int]] | None = None
    ap: float | None = None
    ap50: float | None = None
    ap75: float | None = None
    by_class: dict[str, float | None] | None = None
    first_phase_seconds: float | None = None
    first_phase_images: int | None = None


@dataclass(frozen=True, kw_only=True)
class RunResult(Record):
    """Result of a run: the last line of its results.jsonl.

    Attributes:
        accuracy: after each phase, in percent; AP for detectors.
        quality: quality of the stored images; one per phase if it may change.
        volume_ratios: R_q of each candidate, by phase and averaged.
        mean_choice: the quality that R_q averaged over the phases chooses.
        left_out: candidates and classes without R_q, and why.
        paper: the number published for these settings.
        in_training: test images that are also training images.
        phases: measurements after each phase; not part of the JSON line.
    """

    nullable = ("quality", "mean_choice", "paper", "commit", "gpu", "first_phase_seconds")

    method: str
    accuracy: list[float]
    average_incremental_accuracy: float
    average_forgetting: float
    quality: int | list[int | None] | None
    memory: MemorySummary
    seconds: float
    parts: dict[str, float]
    trained_images: int
    data: str
    budget: str
    quality_rule: str
    seed: int
    volume_ratios: list[Json] = field(default_factory=list)
    mean_choice: int | str | None = None
    left_out: dict[str, str] = field(default_factory=dict)
    report: Json = field(default_factory=dict)
    phases: tuple[PhaseResult, ...] = field(default=(), metadata={"private": True})

    # The experiment
    name: str = ""
    paper: float | None = None
    synthetic: bool = False
    in_training: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    folder: str = ""
    mrdc: str = ""
    commit: str | None = None
    python: str = ""
    torch: str = ""
    numpy: str = ""
    pillow: str = ""
    gpu: str | None = None
    cores: int = 0

    # Classes
    sizes: list[int] | None = None
    head_accuracy: list[float] | None = None
    head_average_incremental_accuracy: float | None = None
    tasks: list[list[float]] | None = None
    initial_forgetting: float | None = None
    first_phase_seconds: float | None = None
    strict_budget: bool | None = None
    order: str | None = None
    held_out: bool | None = None
    ignored: list[str] | None = None

    # Detectors
    ap: list[float] | None = None
    ap50: list[float] | None = None
    ap75: list[float] | None = None
    by_class: dict[str, float | None] | None = None
    reports: list[Json] | None = None
    detection: bool | None = None
    detector: str | None = None
    replay: str | None = None
    labelled: int | None = None
    unlabelled: int | None = None
    steps: int | None = None
    dropped: int | None = None
