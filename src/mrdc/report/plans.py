"""The small page that `plan --report` and `pack --report` write."""

from contextlib import suppress
from pathlib import Path

from mrdc._utils.errors import ImageError
from mrdc._utils.text import size
from mrdc.codec import CODECS
from mrdc.data import open_images
from mrdc.nn.embed import load_embedder
from mrdc.planning.plan import Plan
from mrdc.report.contents import SHOWN, at_qualities
from mrdc.report.figures import COLOURS, Figure, Table, drawn, legend, line, log_scale
from mrdc.report.page import write_page
from mrdc.report.parts import Grid, Section, Strip


def write_plan(plan: Plan, output: Path) -> None:
    """A page about a plan.

    Raises:
        OutputError: it cannot be written, or would replace something else.
    """
    data = Path(plan.settings.photos).name
    sections = [choice(plan), curve(plan), images(plan)]
    write_page(output, f"{data} in {plan.budget}", sections, plan.sentence())


def choice(plan: Plan) -> Section:
    """Every candidate in a table."""
    exact = any(candidate.exact for candidate in plan.candidates)
    rows: Table = [["candidate", "images", "bytes", "R_q", "verdict",
                    *(["log Z_q", "L_2"] if exact else [])]]  # fmt: skip
    for c in plan.candidates:
        known = c.exact or {}
        more = [f"{known[key]:.3f}" if key in known else "" for key in ("log_z", "l2")]
        rows.append([str(c), f"{c.quantity:,}", f"{c.bytes:,}", f"{c.volume_ratio:.3f}",
                     c.verdict, *(more if exact else [])])  # fmt: skip
    told = (f"{plan.images:,} images of {plan.classes:,} classes; the budget is "
            f"{plan.budget_bytes:,} bytes ({size(plan.budget_bytes)}).")  # fmt: skip
    return Section("choice", "The choice", [told, Grid(rows)])


def curve(plan: Plan) -> Section:
    """R_q against the number of images that fit."""
    epsilon = plan.settings.epsilon
    figure = Figure(
        "plan", "R_q against the images that fit; the ring is the choice",
        "R_q of each candidate by the number of images it would hold",
        data=[["candidate", "images", "R_q"]],
    )  # fmt: skip
    with drawn(figure) as axes:
        axes.axhspan(max(1 - epsilon, 1e-3), 1 + epsilon, color="#999999", alpha=0.2, lw=0,
                     label=f"|R_q - 1| < {epsilon:g}")  # fmt: skip
        codecs = list(dict.fromkeys(c.codec for c in plan.candidates))
        for number, codec in enumerate(codecs):
            points = [c for c in plan.candidates if c.codec == codec and c.volume_ratio > 0]
            x, y = [c.quantity for c in points], [c.volume_ratio for c in points]
            line(axes, number, x, y, codec)
            for c in points:
                where = (c.quantity, c.volume_ratio)
                label = "original" if c.quality is None else str(c.quality)
                axes.annotate(label, where, textcoords="offset points", xytext=(5, 5), fontsize=8.5)
                figure.data.append([str(c), *where])
                if (c.codec, c.quality) == (plan.chosen.codec, plan.chosen.quality):
                    axes.plot(*where, "o", ms=14, mfc="none", mec=COLOURS[7], mew=1.6)
        axes.set(xlabel="images that fit the budget", ylabel="R_q")
        log_scale(axes)
        legend(axes, len(codecs) + 1)
    return Section("curve", "Quality against quantity", [figure])


def images(plan: Plan) -> Section:
    """A few images at every candidate."""
    section = Section("images", "What the images look like")
    pairs = [(CODECS[c.codec], c.quality) for c in plan.candidates if c.quality is not None]
    embedder = load_embedder(plan.settings.embed, plan.settings.weights)
    photos = open_images(plan.settings.photos, plan.settings.skip_bad).all_photos
    for photo in photos[:: max(1, len(photos) // SHOWN)][:SHOWN]:
        with suppress(ImageError):  # of those that the plan has skipped
            section.parts.append(Strip(photo.id, at_qualities(photo, pairs, embedder)))
    return section
