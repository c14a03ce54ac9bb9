"""Import from a clone whose packages have common names: utils, models, datasets."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

NAMES = ("utils", "models", "datasets", "convs", "backbone")


@contextmanager
def importing_from(clone: str | None) -> Iterator[None]:
    """Put a clone first on the path; afterwards forget what was imported from it."""
    assert clone is not None
    before = {name: sys.modules.pop(name) for name in list(sys.modules) if _theirs(name)}
    sys.path.insert(0, clone)
    try:
        yield
    finally:
        sys.path.remove(clone)
        for name in [name for name in sys.modules if _theirs(name)]:
            del sys.modules[name]
        sys.modules.update(before)


def _theirs(name: str) -> bool:
    return name.partition(".")[0] in NAMES
