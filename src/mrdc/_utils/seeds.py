"""Seeds by name, so that runs that differ in one thing share all other draws."""

import hashlib


def named_seed(seed: int, name: str) -> int:
    """The seed of everything drawn under a name."""
    digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
    return int.from_bytes(digest[:4], "little") >> 1
