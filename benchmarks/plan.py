"""Which quality does `plan` choose, what is R_q, and what does `pack` then write?"""

import tempfile
from pathlib import Path

from common import emit, machine, options
from mrdc import pack
from mrdc.memory.audit import audit


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--budget", nargs="+", default=["5/class", "10/class", "20/class"])
    parser.add_argument("--codec", nargs="+", default=["jpeg"])
    parser.add_argument("--pairing", default="paired")
    parser.add_argument("--exact", action="store_true")
    chosen = parser.parse_args()
    for budget in chosen.budget:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "memory.mrdc"
            packed = pack(
                chosen.photos or "textures",
                budget,
                path,
                codec=tuple(chosen.codec),
                pairing=chosen.pairing,
                exact=chosen.exact,
            )
            found, checked = packed.plan, audit(path)
        assert found is not None
        report = found.to_json()
        report["excluded"] = {str(row): len(row.excluded) for row in found.candidates}
        for row in report["candidates"]:
            row.pop("excluded_classes")
        report["audit"] = checked.as_json()
        emit("plan", label=chosen.label, pairing=chosen.pairing, **report, **machine())


if __name__ == "__main__":
    main()
