"""Runs on classes."""

from contextlib import suppress
from dataclasses import replace
from functools import partial

from mrdc._utils.errors import ImageError
from mrdc.codec import CODECS, Codec
from mrdc.codec.image import Pixels
from mrdc.data.photo import Photo
from mrdc.data.stream import Stream, open_stream
from mrdc.data.textures import SIDE
from mrdc.experiments.check import Checked, Listener, check_photos
from mrdc.experiments.presets import published
from mrdc.experiments.settings import built_in
from mrdc.memory.encode import as_stored
from mrdc.methods.options import make_method
from mrdc.training.architecture import extra_bytes, make_architecture
from mrdc.training.classes import learn_classes
from mrdc.training.learner import make_exemplars
from mrdc.training.results import RunResult
from mrdc.training.resume import Keeper
from mrdc.training.settings import RunSettings


class ClassExperiment:
    """A run on classes, without the unreadable images that `kept`, from its folder, lists."""

    def __init__(self, settings: RunSettings, name: str, kept: Checked | None = None):
        self.name = name
        self.settings = replace(settings, size=settings.size or usual_size(settings.data))
        self.stream: Stream = open_stream(
            settings.data,
            phases=settings.phases,
            first=settings.first,
            order=settings.order,
            superclasses=settings.superclasses,
            holdout=settings.holdout,
            missing=settings.skip_bad,
            columns=settings.columns,
        )
        if kept is not None:
            self.stream = self.stream.without(train_ids=kept.train_ids, test_ids=kept.test_ids)
        self.method = make_method(settings.method, settings.options)

    def fingerprint(self) -> str:
        """Hash of the images and their phases."""
        return self.stream.fingerprint()[:16]

    def check(self, listener: Listener) -> Checked:
        """Read every image, and refuse a budget that is too small."""
        with suppress(ImageError):  # reported below, with all others
            self._check_budget()
        train, test, settings = self.stream.train, self.stream.test, self.settings
        found = check_photos(
            train.all_photos, test.all_photos, settings.threads, listener, settings.skip_bad
        )
        if found.skipped:
            ClassExperiment(self.settings, self.name, found)._check_budget()
        return found

    def _check_budget(self) -> None:
        """Refuse a budget that is too small for one image of every class."""
        added = extra_bytes(make_architecture(self.settings, self.method), self.method)
        stream = compressed(self.stream, self.settings)
        exemplars = make_exemplars(self.settings, stream, self.method, added)
        if exemplars is not None:
            exemplars.check()

    def learn(self, keeper: Keeper) -> RunResult:
        settings = self.settings
        stream = compressed(self.stream, settings)
        result = learn_classes(self.method, stream, settings, keeper=keeper)
        return replace(
            result,
            order=settings.order,
            synthetic=built_in(settings.data),
            paper=published(self.name, settings, self.stream.train.classes),
        )


def compressed(stream: Stream, settings: RunSettings) -> Stream:
    """The stream with training images compressed as `--compress` asks, when they are read.

    Sizes stay those of the source files, so that budgets in originals do not change.
    """
    if settings.compress is None:
        return stream
    load = partial(_load, CODECS.find(settings.memory.codec[0]), settings.compress)
    photos = tuple(
        [photo._replace(load=partial(load, photo)) for photo in of_class]
        for of_class in stream.train.photos
    )
    return replace(stream, train=replace(stream.train, photos=photos))


def _load(codec: Codec, quality: int, photo: Photo) -> bytes | Pixels:
    return as_stored(photo, codec, quality).load()


def usual_size(data: str) -> int:
    """Side of the network's input: 224, or the data set's own."""
    if built_in(data):
        return SIDE
    return 32 if data.startswith("cifar100:") else 224
