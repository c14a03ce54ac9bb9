"""Images that callers may pass: files, bytes, PIL images, arrays and tensors."""

import os
import sys
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image as Pillow

from mrdc._utils.errors import UsageError
from mrdc._utils.extras import Tensor
from mrdc.codec.image import Pixels, from_pillow
from mrdc.data.photo import Photo, file_photo

AnyImage: TypeAlias = Photo | str | os.PathLike[str] | bytes | Pillow.Image | Pixels | Tensor

ALLOWED = (
    "pass a path, the bytes of a file, a PIL image, a uint8 array (height, width, 3) or "
    "(height, width), a uint8 tensor (3, height, width), or a Photo"
)


def as_photo(image: Any, name: str, where: str) -> Photo:
    """Any allowed image as a Photo; a path is its own name."""
    torch = sys.modules.get("torch")
    if isinstance(image, Photo):
        check_name(image.id, where)
        return image
    if isinstance(image, bytes):
        return Photo(name, lambda: image)
    if isinstance(image, str | os.PathLike):
        path = os.fspath(image)
        return file_photo(path, path)
    if isinstance(image, Pillow.Image):
        return Photo(name, partial(from_pillow, image, name))
    if isinstance(image, np.ndarray):
        kind, array = "array", image
    elif torch is not None and isinstance(image, torch.Tensor):
        kind, array = "tensor", image.detach().cpu().numpy()
    else:
        raise UsageError(f"{where}: got {type(image).__name__}; {ALLOWED}")
    if array.dtype != np.uint8:
        raise UsageError(f"{where}: got {array.dtype} {kind}; {ALLOWED}")
    last = np.moveaxis(array, 0, -1) if kind == "tensor" and array.ndim == 3 else array
    if not array.size or last.ndim not in (2, 3) or last.shape[2:] not in ((), (1,), (3,)):
        raise UsageError(f"{where}: got {kind} of shape {array.shape}; {ALLOWED}")
    return Photo(name, partial(_pixels, last))


def check_name(name: str, where: str) -> None:
    """Refuse a name that a memory file cannot hold: one that no file could have either."""
    try:
        fits = b"\0" not in os.fsencode(name)
    except UnicodeEncodeError:
        fits = False
    if not fits:
        raise UsageError(f"{where}: {name!r} cannot be the name of an image")


def _pixels(array: NDArray[Any]) -> Pixels:
    """RGB pixels (height, width, 3); grey is repeated."""
    grey = array[:, :, None] if array.ndim == 2 else array
    return np.repeat(grey, 3, axis=2) if grey.shape[2] == 1 else np.ascontiguousarray(grey)
