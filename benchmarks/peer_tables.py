"""The table of training speed compared with other libraries."""

from statistics import median

from common import Row, read, table

PATHS = {
    "usual": "on the card, bf16, compiled",
    "resident": "on the card, fp32",
    "stream": "files, fp32",
    "stream-bf16": "files, bf16, compiled",
}


def peers() -> str:
    """Images/s of each library without and with a teacher (median over epochs)."""
    head = ["library", "images come from", "second phase", "without teacher", "with teacher"]
    rows: list[list[object]] = [[*head, "first batch after", "version"]]
    lines = read("peers")
    kinds = dict.fromkeys((line["library"], line["path"], line["version"]) for line in lines)
    for library, path, version in kinds:
        same = [
            line
            for line in lines
            if (line["library"], line["path"], line["version"]) == (library, path, version)
        ]
        rates = [_rate([line for line in same if line["teacher"] is old]) for old in (False, True)]
        waits = [line["first_batch"] for line in same if "first_batch" in line]
        wait = f"{median(waits):.1f} s" if waits else ""
        source, method = PATHS.get(path, path), same[-1]["method"]
        rows.append([library, source, method, *rates, wait, version or ""])
    return table(*rows)


def _rate(lines: list[Row]) -> str:
    return f"{median(line['images_per_second'] for line in lines):,.0f}" if lines else ""
