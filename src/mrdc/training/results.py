"""Results of a phase and of a run, and their JSON."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any, NotRequired, Self, TypedDict

from mrdc._utils.errors import DataError
from mrdc._utils.typed import fits, hints_of

Json = dict[str, Any]


class CandidateRow(TypedDict):
    """Fields of a candidate in `PhaseResult.candidates` that readers need."""

    codec: str
    quality: int | None
    quantity: int
    volume_ratio: float | None
    ratio_per_image: NotRequired[float | None]
    discrepancy: NotRequired[float | None]


class RatioRow(TypedDict):
    """Fields of a row in `RunResult.volume_ratios` that readers need."""

    codec: str
    quality: int | None
    quantity: list[int]
    by_phase: list[float | None]
    ratio_per_image: NotRequired[list[float | None]]
    discrepancy: NotRequired[list[float | None]]
    mean: float | None
    mean_ratio_per_image: NotRequired[float | None]
    mean_discrepancy: NotRequired[float | None]
    verdict: NotRequired[str]


class Record:
    """A dataclass that is written to, and read from, one JSON object.

    Fields that are None are left out, unless None is a value of its own (`nullable`).
    Unknown keys are ignored, so that a newer version's file can be read.
    """

    nullable: tuple[str, ...] = ()
    rows: Mapping[str, Any] = MappingProxyType({})  # what readers need of rows that are JSON

    def to_json(self) -> Json:
        names = [one.name for one in fields(self) if "private" not in one.metadata]  # type: ignore[arg-type]
        values = {name: getattr(self, name) for name in names}
        return {
            name: value.to_json() if isinstance(value, Record) else value
            for name, value in values.items()
            if value is not None or name in self.nullable
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Undo `to_json`.

        Raises:
            DataError: a field is missing or has another type.
        """
        known = [one.name for one in fields(cls) if "private" not in one.metadata]  # type: ignore[arg-type]
        given = {name: values[name] for name in known if name in values}
        if isinstance(given.get("memory"), dict):
            given["memory"] = MemorySummary.from_json(given["memory"])
        hints = {**hints_of(cls), **cls.rows}
        for name, value in given.items():
            if not fits(value, hints[name]):
                raise DataError(f"{name} of a {cls.__name__} cannot be {value!r:.60}")
        try:
            found = cls(**given)
        except TypeError as error:  # a field is missing
            raise DataError(f"not a {cls.__name__}: {error}") from None
        found._check()
        return found

    def _check(self) -> None:
        """Raise a DataError if fields contradict each other."""


@dataclass(frozen=True)
class MemorySummary(Record):
    """Size of the memory after a phase; zeros without a memory."""

    bytes: int = 0
    budget_bytes: int = 0
    items: int = 0
    parameter_bytes: int | None = None  # of parameters that the method adds to the network
    scans: float | None = None  # mean of its images, for codec jpeg-progressive


@dataclass(frozen=True, kw_only=True)
class PhaseResult(Record):
    """Measurements after one phase."""

    nullable = ("quality",)
    rows = {"candidates": list[CandidateRow]}  # noqa: RUF012

    phase: int
    accuracy: float  # percent over all classes seen; AP for detectors
    quality: int | None  # quality of the images stored in this phase; None for originals
    codec: str = "original"  # codec of these images
    memory: MemorySummary
    trained_images: int
    seconds: float
    parts: dict[str, float]  # seconds by kind of work
    candidates: list[Json] = field(default_factory=list)  # of the search, as in `plan --json`
    report: Json = field(default_factory=dict)  # what the method has to say about the phase
    classes: int | None = None
    head_accuracy: float | None = None
    tasks: list[float] | None = None  # accuracy on the classes of each phase so far
    confusion: list[list[int]] | None = None  # test images by true and by assigned task
    old_as_old: float | None = None  # percent of old classes' images assigned to an old class
    new_as_new: float | None = None  # percent of new classes' images assigned to a new class
    ap: float | None = None
    ap50: float | None = None
    ap75: float | None = None
    by_class: dict[str, float | None] | None = None
    first_phase_seconds: float | None = None
    first_phase_images: int | None = None
    networks_bytes: int | None = None  # of the network and of its teacher, if there is one


@dataclass(frozen=True, kw_only=True)
class RunResult(Record):
    """Result of a run: the last line of its results.jsonl."""

    rows = {"volume_ratios": list[RatioRow]}  # noqa: RUF012
    nullable = ("quality", "mean_choice", "paper", "commit", "gpu", "first_phase_seconds")

    method: str
    accuracy: list[float]  # after each phase, in percent; AP for detectors
    average_incremental_accuracy: float
    average_forgetting: float
    quality: int | list[int | None] | None  # of stored images; one per phase if it may change
    memory: MemorySummary
    seconds: float
    parts: dict[str, float]
    trained_images: int
    data: str
    budget: str
    quality_rule: str
    seed: int
    criterion: str = "volume-ratio"  # what the search chose by
    volume_ratios: list[Json] = field(default_factory=list)  # R_q, r, discrepancy by candidate
    codecs: list[str] = field(default_factory=list)  # of the images stored in each phase
    mean_choice: int | str | None = None  # the quality (or codec and quality) that means choose
    left_out: dict[str, str] = field(default_factory=dict)  # what has no R_q, and why
    report: Json = field(default_factory=dict)
    phases: tuple[PhaseResult, ...] = field(default=(), metadata={"private": True})  # not in JSON

    # The experiment
    name: str = ""
    paper: float | None = None  # the number published for these settings
    synthetic: bool = False
    in_training: list[str] = field(default_factory=list)  # test images that are trained on, too
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
    ranks: int = 1  # processes that trained together

    # Classes
    sizes: list[int] | None = None
    head_accuracy: list[float] | None = None
    head_average_incremental_accuracy: float | None = None
    tasks: list[list[float]] | None = None
    old_as_old: list[float | None] | None = None  # after each phase; None after the first
    new_as_new: list[float | None] | None = None
    initial_forgetting: float | None = None
    networks_bytes: int | None = None  # in the last phase, of the network and of its teacher
    first_phase_seconds: float | None = None
    match: float | None = None  # chance that new images were shown as the memory stores them
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

    def _check(self) -> None:
        lists = [part for row in self.volume_ratios for part in row.values()]
        if any(isinstance(p, list) and len(p) != len(self.accuracy) for p in lists):
            raise DataError("a row of volume_ratios lacks phases")
