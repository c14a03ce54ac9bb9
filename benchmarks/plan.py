"""Which quality does `plan` choose, and what is R_q, at several budgets?"""

from common import emit, machine, options
from mrdc import plan


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--budget", nargs="+", default=["5/class", "10/class", "20/class"])
    parser.add_argument("--codec", nargs="+", default=["jpeg"])
    parser.add_argument("--pairing", default="paired")
    parser.add_argument("--exact", action="store_true")
    chosen = parser.parse_args()
    for budget in chosen.budget:
        found = plan(
            chosen.photos or "textures",
            budget,
            codec=tuple(chosen.codec),
            pairing=chosen.pairing,
            exact=chosen.exact,
        )
        report = found.as_json()
        report["excluded"] = {
            str(candidate): len(candidate.excluded) for candidate in found.candidates
        }
        for row in report["candidates"]:
            row.pop("excluded_classes")
        emit("plan", label=chosen.label, pairing=chosen.pairing, **report, **machine())


if __name__ == "__main__":
    main()
