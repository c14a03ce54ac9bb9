"""Headers that images share: taken off before an image is stored, put back when it is read."""

from mrdc.codec import avif, jpeg


def split(stream: bytes) -> tuple[bytes, bytes]:
    """Split a file into (header, body); (b"", stream) if its header cannot be shared."""
    return avif.split(stream) if _is_avif(stream) else jpeg.split(stream)


def join(header: bytes, body: bytes) -> bytes:
    """Restore the file of a body stored without its header, if it has one."""
    if not header:
        return body
    return avif.join(header, body) if _is_avif(header) else jpeg.join(header, body)


def is_header(header: bytes) -> bool:
    """Whether `join` can use these bytes."""
    return avif.fields(header) is not None if _is_avif(header) else jpeg.is_header(header)


def _is_avif(data: bytes) -> bool:
    return data[4:8] == b"ftyp"
