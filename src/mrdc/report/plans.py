"""The page that `plan --report` and `pack --report` write."""

import math
from contextlib import suppress
from pathlib import Path

from mrdc._utils.errors import ImageError
from mrdc._utils.text import ratio, size, small_number
from mrdc.codec import CODECS
from mrdc.data import open_images
from mrdc.nn.embedder import load_embedder
from mrdc.planning.plan import Plan
from mrdc.planning.resize import shrunk
from mrdc.planning.settings import SYMBOLS
from mrdc.report.contents import SHOWN, at_qualities
from mrdc.report.figures import (
    Figure,
    Grid,
    Section,
    Strip,
    criterion_axis,
    drawn,
    label_points,
    legend,
    line,
)
from mrdc.report.page import write_page


def write_plan(plan: Plan, output: Path) -> None:
    """Write a page about a plan."""
    title = f"{Path(plan.settings.photos).name} in {plan.budget}"
    write_page(output, title, [choice(plan), curve(plan), images(plan)], plan.sentence())


def choice(plan: Plan) -> Section:
    """A table of all candidates."""
    rows = []
    for candidate in plan.candidates:
        exact = candidate.exact or {}
        rows.append(
            {
                "candidate": str(candidate),
                "verdict": candidate.verdict,
                "R_q": ratio(candidate.volume_ratio),
                "r": ratio(candidate.ratio_per_image, candidate.ratio_error),
                "discrepancy": small_number(candidate.discrepancy),
                "images": f"{candidate.quantity:,}",
                "bytes": f"{candidate.bytes:,}",
                "log Z_q": f"{exact['log_z']:.3f}" if exact else "",
                "L_2": f"{exact['l2']:.3f}" if exact else "",
            }
        )
    budget = f"{plan.budget_bytes:,} bytes ({size(plan.budget_bytes)})"
    what = f"{plan.images:,} images of {plan.classes:,} classes; the budget is {budget}."
    return Section("choice", "The choice", [what, Grid.of(rows)])


def curve(plan: Plan) -> Section:
    """The criterion against the number of images that fit."""
    criterion, symbol = plan.settings.criterion, SYMBOLS[plan.settings.criterion]
    figure = Figure(
        f"{symbol} against the images that fit; the ring marks the choice",
        f"{symbol} of each candidate by the number of images it would hold",
        [["candidate", "images", "R_q", "r", "discrepancy"]],
    )
    known = [c for c in plan.candidates if c.quantity and math.isfinite(c.value(criterion))]
    numbers = [[c.volume_ratio, c.ratio_per_image, c.discrepancy] for c in known]
    figure.data += [[str(c), c.quantity, *row] for c, row in zip(known, numbers, strict=True)]
    codecs = list(dict.fromkeys(c.codec for c in known))
    labels = [c.codec if c.quality is None else str(c.quality) for c in known]
    with drawn(figure) as axes:
        criterion_axis(axes, criterion, plan.settings.limits)
        for number, codec in enumerate(codecs):
            points = [(c.quantity, c.value(criterion)) for c in known if c.codec == codec]
            x, y = zip(*points, strict=True)
            line(axes, number, x, y, codec)
        ring = plan.chosen.quantity, plan.chosen.value(criterion)
        axes.plot(*ring, "o", ms=14, mfc="none", mec="black", mew=1.6)
        axes.set(xlabel="images that fit the budget (labels: quality)")
        axes.margins(x=0.1, y=0.1)
        legend(axes, len(codecs) + 1)
        points = [(c.quantity, c.value(criterion)) for c in known]
        label_points(axes, [(*at, label) for at, label in zip(points, labels, strict=True)])
    return Section("curve", "Quality against quantity", [figure])


def images(plan: Plan) -> Section:
    """A few images at each candidate quality."""
    section = Section("images", "What the images look like")
    pairs = [(CODECS.find(c.codec), c.quality) for c in plan.candidates if c.quality is not None]
    embedder = load_embedder(plan.settings.embed, plan.settings.weights)
    settings = plan.settings
    photos = open_images(settings.photos, settings.skip_bad, settings.columns).all_photos
    for photo in photos[:: max(1, len(photos) // SHOWN)][:SHOWN]:
        with suppress(ImageError):  # one that the plan has skipped
            if settings.max_side is not None:
                photo = shrunk(photo, settings.max_side)
            section.parts.append(Strip(photo.id, at_qualities(photo, pairs, embedder)))
    return section
