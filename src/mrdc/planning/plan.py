"""`plan`: which quality, how many images, and R_q of each candidate."""

import math
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

from PIL import features

from mrdc._utils.errors import BudgetError
from mrdc._utils.extras import Tensor
from mrdc._utils.registry import lookup
from mrdc.codec import CODECS, Codec
from mrdc.codec.scaled import split_scale
from mrdc.data.datasets import Source, given_images, source_path
from mrdc.data.images import ImageSet
from mrdc.memory.budget import Budget
from mrdc.planning.choice import BETTER_FAILS, Candidate, Rule, choose_quality, judge
from mrdc.planning.scan import Scan, Whole, check_settings, check_torch, engine, scan
from mrdc.planning.search import NO_ROOM, Found, Progress, quiet, search
from mrdc.planning.selection import SELECTORS, Selector
from mrdc.planning.settings import JPEGS, SYMBOLS, Criterion, Limits, PlanSettings
from mrdc.planning.volume import Volume

if TYPE_CHECKING:
    from mrdc.nn.embedder import Embedder

CHOSEN = ("codec", "quality", "quantity", "bytes")  # fields of a chosen candidate in JSON


@dataclass(frozen=True)
class Plan:
    """The measured candidates for a source and a budget, and the choice."""

    settings: PlanSettings
    budget: Budget
    budget_bytes: int
    classes: int
    images: int
    boxes: dict[str, int] | None  # for scenes
    select: str
    candidates: list[Candidate]
    chosen: Candidate
    skipped: list[str]
    ignored: list[str]
    seconds: float
    drawn_from: Whole | None = None  # the source, if only some of its classes were measured

    def sentence(self) -> str:
        """The choice, in words."""
        chosen = self.chosen
        everything = chosen.quantity == self.images - chosen.duplicates
        count = f"all {chosen.quantity:,} images" if everything else f"{chosen.quantity:,} images"
        if chosen.codec == "original":
            why = "they fit as they are" if everything else self._why_not()
            more = f"{self._matching()}{self._sampled()}"
            return f"Keep {count} as the original files: {why}.{more}"
        plain = next(c for c in self.candidates if c.codec == "original")
        gain = f" instead of {plain.quantity:,} originals" if plain.quantity else ""
        lower = " A lower quality would gain nothing: all images fit." if everything else ""
        more = f"{self._matching()}{self._avif()}{self._sampled()}"
        return f"Store {count} as {chosen}{gain}: {self._why(plain)}.{lower}{more}"

    def _matching(self) -> str:
        """What would be chosen if new images were shown as they will be stored, if that is more."""
        loose = replace(self.settings, matched=True)
        judged = judge(self.candidates, loose)
        best = choose_quality(judged, loose.criterion)
        if best is None or judged[best].quantity <= self.chosen.quantity:
            return ""
        return (
            f" If you show new images as they will be stored (--matched), {judged[best]} will do: "
            f"{judged[best].quantity:,} images."
        )

    def _avif(self) -> str:
        """That another codec would hold more, if only JPEG was tried and some images are left."""
        tried = {split_scale(candidate.codec)[0] for candidate in self.candidates}
        left = self.images - self.chosen.duplicates - self.chosen.quantity
        if not left or not tried <= {"original", *JPEGS} or not features.check("avif"):
            return ""
        return " AVIF may hold up to twice as many, but encodes slowly: try --codec jpeg avif."

    def _sampled(self) -> str:
        """What a sample of classes means for all of them, and whether it was large enough."""
        if self.drawn_from is None:
            return ""
        classes = self.drawn_from.classes
        held = self.chosen.quantity * classes / self.classes
        some = f"{self.classes:,} of {classes:,} classes"
        said = f" Measured on {some}; all of them would hold about {held:,.0f} images."
        close = [candidate for candidate in self.candidates if self._close(candidate)]
        if close:
            names = [f"{c} ({c.ratio_per_image:.3f} +- {c.ratio_error:.3f})" for c in close]
            more = min(4 * self.classes, classes)
            said += f" Too close to a limit to be sure: {', '.join(names)}; try --sample {more}."
        return said

    def _close(self, candidate: Candidate) -> bool:
        """Whether other classes might have made a candidate pass that fails, or the reverse."""
        ratio, error = candidate.ratio_per_image, candidate.ratio_error
        if self.settings.criterion != "ratio-per-image" or math.isnan(ratio):
            return False
        limits = self._limits(candidate)
        assert limits is not None
        nearest = min(abs(ratio - limit) for limit in limits)
        return math.isnan(error) or nearest < 2 * error

    def _why(self, plain: Candidate) -> str:
        """Why compressed images are stored rather than original files."""
        chosen = self.chosen
        if self.settings.limits is None:
            others = f"; original files: {plain.discrepancy:.3g}" if plain.quantity else ""
            return (
                f"of everything that fits, they stand in best for all {self.images:,} images "
                f"(discrepancy {chosen.discrepancy:.3g}{others})"
            )
        if self.settings.criterion == "volume-ratio":
            return (
                "their features span nearly the same volume as those of the originals "
                f"(R_q = {chosen.volume_ratio:.2f}, {self._allowed(chosen)})"
            )
        change = 100 * abs(chosen.ratio_per_image - 1)
        shown = " where new images are shown as stored" if self.settings.matched else ""
        if self._limits(chosen) != self.settings.limits:
            shown = " at this quality"
        return (
            f"compression changes what a network sees by {change:.1f} % per image "
            f"(r = {chosen.ratio_per_image:.3f}; {self._allowed(chosen)} is allowed{shown})"
        )

    def _why_not(self) -> str:
        """Why originals are kept, though not all of them fit."""
        if self.settings.criterion == "discrepancy":
            return f"they stand in better for all {self.images:,} images than compressed ones"
        compressed = [c for c in self.candidates if c.codec != "original" and c.quantity]
        passing = [c for c in compressed if c.feasible]
        if passing:
            most = max(passing, key=attrgetter("quantity"))
            return f"nothing that passes holds many more ({most}: {most.quantity:,})"
        if not compressed:
            return "nothing compressed fits"
        symbol, better = SYMBOLS[self.settings.criterion], ""
        if any(c.verdict == BETTER_FAILS for c in compressed):
            better = ", as that of every better quality must be"
        first = max(compressed, key=lambda c: c.quality or math.inf)
        return f"nothing compressed passes (no {symbol} {self._allowed(first)}{better})"

    def _allowed(self, candidate: Candidate) -> str:
        """Where the ratio of a candidate must lie, in words."""
        if self.settings.epsilon is not None:
            return f"within {self.settings.epsilon:g} of 1"
        limits = self._limits(candidate)
        return "between {:g} and {:g}".format(*limits) if limits else ""

    def _limits(self, candidate: Candidate) -> Limits | None:
        return self.settings.limits_of(candidate.codec, candidate.quality)

    def to_json(self) -> dict[str, Any]:
        limits = self._limits(self.chosen)
        return {
            "budget": self.budget.as_json(self.budget_bytes),
            "classes": self.classes,
            "images": self.images,
            "drawn_from": None if self.drawn_from is None else self.drawn_from._asdict(),
            "boxes": self.boxes,
            "select": self.select,
            "embed": self.settings.embed,
            "candidates": [candidate.to_json() for candidate in self.candidates],
            "chosen": {name: getattr(self.chosen, name) for name in CHOSEN},
            "criterion": self.settings.criterion,
            "rule": self.settings.rule,
            "epsilon": None if limits is None else round(limits[1] - 1, 9),
            "limits": limits,
            "skipped": self.skipped,
            "ignored": self.ignored,
            "seconds": round(self.seconds, 3),
        }


class PlanOptions(TypedDict, total=False):
    """Keyword arguments of `plan` and `pack`; the flags of `mrdc plan` describe them."""

    codec: str | Codec | Sequence[str | Codec]
    qualities: int | Sequence[int]
    scale: float | Sequence[float]
    select: str | Selector
    sample: int | None
    columns: tuple[str, str] | None
    max_side: int | None
    embed: str | Callable[[Tensor], Any]
    weights: Path | None
    criterion: Criterion
    epsilon: float | None
    matched: bool
    rule: Rule
    pairing: Literal["paired", "independent"]
    volume: Volume
    accounting: Literal["packed", "file"]
    exact: bool
    skip_bad: bool
    cache: bool
    seed: int
    device: Literal["auto", "cpu", "cuda"]
    threads: int | None
    engine: Literal["threads", "ray"]
    address: str | None


def plan(photos: Source, budget: str | int, **options: Unpack[PlanOptions]) -> Plan:
    """Choose a codec and quality for images and a byte budget; writes nothing.

    Args:
        photos: a folder, file or pattern, as for `mrdc plan`; or a data set of (image, label)
            such as `ImageFolder`, `Subset` or `ConcatDataset`, without a transform; or images by
            class.
        budget: "20/class", "2000 originals", "200MB", or a number of bytes.
        options: the flags of `mrdc plan`: `qualities=(90, 75, 50)`, `codec="webp"` or a codec
            object, `select` (a name or a selector), `criterion`, `epsilon`, `seed`, `threads`, ...
            `embed` is a name, or a callable from uint8 images (n, 3, 224, 224) to features.

    Raises:
        MrdcError: arguments or images that cannot be used.
    """
    settings = PlanSettings(source_path(photos), str(budget), **as_settings(options))
    images = passed_images(photos, settings)
    return run_plan(settings, embedder=given_embedder(options), images=images)


def passed_images(
    photos: Source, settings: PlanSettings, numbered: bool = False
) -> ImageSet | None:
    """The images that a caller has passed, as for `given_images`; None for a path."""
    if isinstance(photos, str | os.PathLike):
        return None
    check_settings(settings)  # before any image is read
    return given_images(photos, settings.columns, numbered)


def as_settings(options: PlanOptions) -> dict[str, Any]:
    """Keyword arguments as settings; objects are registered under their own names."""
    values: dict[str, Any] = dict(options)
    known = {field.name: field for field in fields(PlanSettings)}
    for name in values:
        lookup(known, name, "option")
    if "codec" in options:
        codec = options["codec"]
        given = [codec] if isinstance(codec, str | Codec) else codec
        values["codec"] = tuple(CODECS.name_of(one) for one in given)
    if "select" in options:
        values["select"] = SELECTORS.name_of(options["select"])
    if not isinstance(options.get("embed", ""), str):
        values["embed"] = getattr(options["embed"], "__name__", type(options["embed"]).__name__)
    return values


def given_embedder(options: PlanOptions) -> "Embedder | None":
    """The embedder that a caller has passed; None for a name."""
    embed = options.get("embed", "")
    if isinstance(embed, str):
        return None
    check_torch(needed=True, select="features")
    from mrdc.nn.embedder import as_embedder

    return as_embedder(embed)


def run_plan(
    settings: PlanSettings,
    *,
    progress: Progress = quiet,
    embedder: "Embedder | None" = None,
    images: ImageSet | None = None,
) -> Plan:
    """Measure every candidate and choose one; writes nothing but the feature cache."""
    folder = Path(tempfile.gettempdir())
    check_settings(settings)
    with (
        engine(settings),
        scan(settings, progress, embedder, images, folder=folder, measuring=True) as seen,
    ):
        found = search(seen.pool, seen.budget, settings, exact=settings.exact)
        return make_plan(settings, seen, found)


def make_plan(settings: PlanSettings, seen: Scan, found: Found) -> Plan:
    """The plan that a search leads to; a BudgetError if nothing that fits passes."""
    if found.chosen is None:
        if not any(candidate.quantity for candidate in found.candidates):
            raise BudgetError(found.candidates[-1].verdict.removeprefix(NO_ROOM))
        criterion = settings.criterion
        symbol, tried = SYMBOLS[criterion], [c for c in found.candidates if c.quantity]
        fits = ", ".join(f"{c} ({symbol} {c.value(criterion):.3g})" for c in tried)
        known = any(math.isfinite(c.value(criterion)) for c in tried)
        raise BudgetError(
            f"the budget has no room for originals, and no candidate that fits passes: {fits}; "
            "raise --budget, add a --quality, or "
            + ("loosen --epsilon" if known else "use --criterion discrepancy")
        )
    scenes = seen.images.scenes
    return Plan(
        settings=replace(settings, embed=seen.embed or settings.embed),
        budget=seen.budget,
        budget_bytes=seen.budget.total_bytes(len(seen.images.classes)),
        classes=len(seen.images.classes),
        images=len(seen.images),
        boxes=None if scenes is None else scenes.as_json(),
        select=seen.select,
        candidates=found.candidates,
        chosen=found.chosen,
        skipped=seen.skipped,
        ignored=seen.images.ignored,
        seconds=time.perf_counter() - seen.start,
        drawn_from=seen.drawn_from,
    )
