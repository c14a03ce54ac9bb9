"""Refuse settings and images that cannot be used, before any training."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import Any

from mrdc._utils.errors import ImageError, UsageError
from mrdc._utils.forked import Forked, crew
from mrdc._utils.ranks import cores
from mrdc._utils.typed import check_words
from mrdc.codec import CODECS
from mrdc.data.photo import Photo, digest, to_pixels
from mrdc.detection.settings import DetectSettings
from mrdc.experiments.settings import AnySettings
from mrdc.memory.budget import parse_budget
from mrdc.methods.options import make_method
from mrdc.nn.embedder import pick_device
from mrdc.training.architecture import make_architecture
from mrdc.training.check import check_common, check_learning, check_numbers, check_ranks
from mrdc.training.settings import MemorySettings

Listener = Callable[[str, dict[str, Any]], None]
GROUP = 16  # images that a process reads before it answers
NAMED = 5  # unreadable images that an error lists


def check(settings: AnySettings) -> None:
    """Refuse invalid settings before any image is read."""
    check_numbers(("--phases", settings.phases, 1))
    if isinstance(settings, DetectSettings):
        check_words(settings)
        check_common(settings.train, settings.memory, settings.seed, settings.threads)
        pick_device(settings.device)
    else:
        check_learning(settings)
        if settings.precision == "bf16" and pick_device(settings.device).type != "cuda":
            raise UsageError("--precision bf16 needs a CUDA device; use auto or fp32")
    if settings.tensorboard and find_spec("tensorboard") is None:
        raise UsageError("--tensorboard needs tensorboard: pip install 'mrdc[tensorboard]'")
    if isinstance(settings, DetectSettings):
        check_scenes(settings)
        return
    if settings.compress is not None:
        check_compress(settings.compress, settings.memory)
    make_architecture(settings, make_method(settings.method, settings.options))


def check_compress(quality: int, memory: MemorySettings) -> None:
    """Refuse several codecs, scales, and a quality that the codec does not have."""
    if len(memory.codec) != 1:
        raise UsageError(f"--compress {quality}: give one --memory.codec with it")
    if memory.scale != (1.0,):
        raise UsageError(f"--compress {quality}: images keep their size; leave out --memory.scale")
    try:
        CODECS.find(memory.codec[0]).check_quality(quality)
    except UsageError as error:
        raise UsageError(f"--compress {quality}: {error}") from None


def check_scenes(settings: DetectSettings) -> None:
    """Check the settings of a run on scenes."""
    from mrdc.detection.evaluate import NEEDS  # imports torchvision, which takes seconds
    from mrdc.detection.learner import make_scene_method

    train = settings.train
    check_numbers(
        ("--labelled", settings.labelled, 1),
        ("--unlabelled", settings.unlabelled, 0),
        ("--short", settings.short, 32),
        ("--long", settings.long, settings.short),
        ("--train.steps", train.steps, 1),
        ("--train.unlabelled-batch", train.unlabelled_batch, 1),
        ("--train.warmup", train.warmup, 0),
    )
    check_ranks("--train.unlabelled-batch", train.unlabelled_batch)
    if train.warmup > 1:
        raise UsageError(f"--train.warmup must be at most 1, got {train.warmup}")
    if parse_budget(settings.memory.budget, original_bytes=1.0).unit == "class":
        raise UsageError(
            f"--memory.budget {settings.memory.budget}: counts classes, but scenes come in "
            "phases; write 100/phase, '2000 originals' or bytes"
        )
    if make_scene_method(settings).wants_unlabelled and not settings.unlabelled:
        raise UsageError(f"{settings.method} needs --unlabelled of 1 or more, got 0")
    if settings.weights is not None and not settings.weights.is_file():
        raise UsageError(f"--weights {settings.weights}: no such file")
    if find_spec("pycocotools") is None:
        raise UsageError(NEEDS)


@dataclass(frozen=True)
class Checked:
    """Images that a run leaves out, and test images that it also trains on."""

    skipped: list[str]  # the error of each unreadable image
    train_ids: list[str]  # ids of those images
    test_ids: list[str]
    in_training: list[str]  # test images identical to training images, byte for byte
    twins: dict[str, set[str]] = field(default_factory=dict)  # those training images, by test image

    def training_on(self, photos: Iterable[Photo]) -> "Checked":
        """The same, if only these photos are trained on."""
        ids = {photo.id for photo in photos}
        both = [name for name, same in self.twins.items() if ids & same]
        return replace(self, in_training=both)


def check_photos(
    train: Sequence[Photo],
    test: Sequence[Photo],
    threads: int | None,
    listener: Listener = lambda kind, fields: None,
    skip: bool = False,
) -> Checked:
    """Read every photo once; unreadable ones raise an ImageError, or are left out if `skip`."""
    sides = (("training", train), ("test", test))  # may hold files of the same name
    photos = [p._replace(id=f"{side} image {p.id}") for side, of in sides for p in of]
    found: list[bytes | ImageError] = []

    def look_at(start: int) -> list[bytes | ImageError]:
        return list(map(look, photos[start : start + GROUP]))

    with Forked(look_at, crew(threads, len(photos))) as pool:
        for results in pool.ordered(range(0, len(photos), GROUP), 4 * cores()):
            for result in results:
                found.append(result)
                listener("check", {"images": len(found), "of": len(photos)})
    errors = [str(result) for result in found if isinstance(result, ImageError)]
    if errors and not skip:
        more = [f"and {len(errors) - NAMED:,} more"] if len(errors) > NAMED else []
        raise ImageError("; ".join([*errors[:NAMED], *more]))
    n = len(train)
    learned = defaultdict[bytes | ImageError, set[str]](set)
    for photo, result in zip(train, found[:n], strict=True):
        learned[result].add(photo.id)
    twins = {p.id: learned[r] for p, r in zip(test, found[n:], strict=True) if r in learned}
    return Checked(
        errors,
        [p.id for p, r in zip(train, found[:n], strict=True) if isinstance(r, ImageError)],
        [p.id for p, r in zip(test, found[n:], strict=True) if isinstance(r, ImageError)],
        list(twins),
        twins,
    )


def look(photo: Photo) -> bytes | ImageError:
    """A digest of a photo, or why it cannot be read."""
    try:
        data = photo.load()
        to_pixels(data, photo.id)
    except ImageError as error:
        return error
    return digest(data)
