"""Numbers and names as people read them."""

MORE = 5  # names listed before "and so many more"


def size(count: float) -> str:
    """Bytes for people: 999 B, 17.9 kB, 200.0 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 999.5:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def ratio(value: float) -> str:
    """R_q for people: 0.766, 4e+05 or nan."""
    return f"{value:.3f}" if value < 100 else f"{value:.0e}"


def printable(text: str) -> str:
    """Control characters and odd bytes spelled out."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def count(number: float, what: str) -> str:
    """1 class, 2 classes."""
    plural = what if number == 1 else what + ("es" if what.endswith(("s", "x")) else "s")
    return f"{number:,.1f} {plural}" if number != int(number) else f"{int(number):,} {plural}"


def span(fewest: int, most: int) -> str:
    """8 to 10, or 10 where both are."""
    return f"{fewest:,}" if fewest == most else f"{fewest:,} to {most:,}"


def learned(ids: list[str]) -> str:
    """A warning of test images that are training images, too."""
    which = f"{count(len(ids), 'test image')} {'is' if len(ids) == 1 else 'are'} among the images"
    more = f" and {len(ids) - MORE:,} more" if len(ids) > MORE else ""
    return f"{which} learned from: {', '.join(map(printable, ids[:MORE]))}{more}"
