"""The tables of training speed compared with other libraries."""

from statistics import median

from common import Row, read, table

PATHS = {
    "usual": "on the card, bf16, compiled",
    "stream-bf16": "files, bf16, compiled",
    "resident": "on the card, fp32",
    "stream": "files, fp32",
}


def peers() -> str:
    """Images/s of each library without and with a teacher (median over epochs), and details."""
    head = ["library", "images come from", "second phase", "without teacher", "with teacher"]
    rows: list[list[object]] = [[*head, "first batch after", "version"]]
    for library, source, lines in kinds():
        waits = [line["first_batch"] for line in lines if "first_batch" in line]
        wait = f"{median(waits):.1f} s" if waits else ""
        last = lines[-1]
        rows.append([library, source, last["method"], *rates(lines), wait, last["version"] or ""])
    return table(*rows)


def peers_in_short() -> str:
    """Images/s of each library."""
    rows: list[list[object]] = [["library", "images come from", "without teacher", "with teacher"]]
    for name, source, lines in kinds():
        rows.append([name, source, *rates(lines)])
    return table(*rows)


def kinds() -> list[tuple[str, str, list[Row]]]:
    """Library, source of its images, and lines, with our own first."""
    found: dict[tuple[str, str], list[Row]] = {("mrdc", path): [] for path in PATHS}
    for line in read("peers"):
        found.setdefault((line["library"], line["path"]), []).append(line)
    return [(name, PATHS.get(path, path), lines) for (name, path), lines in found.items() if lines]


def rates(lines: list[Row]) -> list[str]:
    """Without and with a teacher."""
    found = []
    for teacher in (False, True):
        speeds = [line["images_per_second"] for line in lines if line["teacher"] is teacher]
        found.append(f"{median(speeds):,.0f}" if speeds else "")
    return found
