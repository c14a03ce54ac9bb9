"""Tables for docs/fading.md: the quality of cut files, and what a fading memory holds."""

from common import Row, read, table


def _rows(what: str) -> list[Row]:
    return [row for row in read("fade") if row["what"] == what]


def cuts() -> str:
    """Bytes and PSNR of files cut after each scan, with the nearest direct encodes."""
    direct = [row for row in _rows("direct") if row["codec"] == "jpeg-optimised"]
    speed = {row["scans"]: row["ratio_median"] for row in _rows("decode")}
    like = "direct encode of about these bytes"
    rows: list[list[object]] = [["cut after scan", "bytes", "PSNR, dB", like, "time to decode"]]
    for cut in _rows("cut"):
        near = min(direct, key=lambda row: abs(row["mean_bytes"] - cut["mean_bytes"]))
        other = f"quality {near['quality']}: {near['mean_bytes']:,.0f} bytes, {near['psnr']:.2f} dB"
        time = f"{speed[cut['scans']]:.2f} x" if cut["scans"] in speed else ""
        rows.append([cut["scans"], f"{cut['mean_bytes']:,.0f}", f"{cut['psnr']:.2f}", other, time])
    for row in _rows("again"):
        again = f"none, but encoded again at {row['quality']}"
        rows.append([again, f"{row['mean_bytes']:,.0f}", f"{row['psnr']:.2f}", "", ""])
    return table(*rows)


def held() -> str:
    """Images, scans and PSNR after each step, by policy."""
    found = _rows("held")
    policies = list(dict.fromkeys((r["policy"], r["codec"], r["quality"]) for r in found))
    names = [f"{policy}: {codec} {quality}" for policy, codec, quality in policies]
    rows: list[list[object]] = [["classes", *names]]
    for classes in sorted({row["classes"] for row in found}):
        cells: list[object] = [classes]
        for row in (row for row in found if row["classes"] == classes):
            scans = "" if row["scans"] is None else f"{row['scans']:.1f} scans, "
            cells.append(f"{row['items']} images, {scans}{row['psnr']:.1f} dB")
        rows.append(cells)
    return table(*rows)
