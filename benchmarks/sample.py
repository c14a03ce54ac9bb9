"""How often do some classes, drawn at random, lead to the choice of all of them, for how much work?

Work is the number of images that are embedded. The features of all classes are cached first.
"""

from statistics import mean

from common import emit, machine, options
from mrdc.planning.plan import Plan, plan

SEEDS = range(10)


def embedded(found: Plan) -> int:
    """Number of images that a plan embeds: all originals, and what fits of each candidate."""
    changed = (row.quantity - row.kept_sources for row in found.candidates if row.quality)
    return found.images + sum(changed)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--budget", default="5/class")
    parser.add_argument("--sample", nargs="+", type=int, default=[10, 20, 40])
    given = parser.parse_args()
    photos = given.photos or "textures"
    whole = plan(photos, given.budget)
    for count in given.sample:
        found = [plan(photos, given.budget, sample=count, seed=seed) for seed in SEEDS]
        same = [str(one.chosen) == str(whole.chosen) for one in found]
        sure = ["Too close" not in one.sentence() for one in found]
        lowest = [row for one in found for row in one.candidates if row.quality == 10]
        emit(
            "sample",
            label=given.label,
            budget=given.budget,
            classes=whole.classes,
            sample=count,
            runs=len(found),
            chosen=str(whole.chosen),
            same=sum(same),
            sure=sum(sure),
            sure_and_same=sum(a and b for a, b in zip(sure, same, strict=True)),
            error=mean(row.ratio_error for row in lowest),
            work=mean(map(embedded, found)) / embedded(whole),
            **machine(),
        )


if __name__ == "__main__":
    main()
