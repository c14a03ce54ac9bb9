"""Which codec and quality does `plan` choose where new images are shown as they will be stored?

    python benchmarks/codec_choice.py --photos FLOWERS/train --label "ten flowers" --embed lite0:112

`--label` is the name of the data in the runs that the choice is compared with.
"""

from common import emit, machine, options
from mrdc import plan


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--budget", nargs="+", default=["5/class"])
    parser.add_argument("--codec", nargs="+", default=["jpeg", "avif"])
    parser.add_argument("--embed", default="lite0", help="features to measure on")
    parser.add_argument("--sample", type=int, help="classes to measure; by default all")
    given = parser.parse_args()
    for budget in given.budget:
        found = plan(
            given.photos or "textures",
            budget,
            codec=given.codec,
            matched=True,
            embed=given.embed,
            sample=given.sample,
            cache=False,
        ).to_json()
        for row in found["candidates"]:
            row.pop("excluded_classes")
        emit("codec_choice", label=given.label, embed=given.embed, **found, **machine())


if __name__ == "__main__":
    main()
