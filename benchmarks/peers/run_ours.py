"""Training speed of mrdc in images/s, without and with a teacher (iCaRL), on the same images.

`usual`: images on the GPU, bf16, compiled. `stream`: files decoded in every epoch, fp32, not
compiled, as in the other libraries.
"""

from typing import Any

from mrdc import __version__
from mrdc.data.stream import Stream, open_stream
from mrdc.methods.options import make_method
from mrdc.nn.settings import TrainSettings
from mrdc.training.architecture import make_architecture
from mrdc.training.classes import learn_classes
from mrdc.training.resume import Keeper
from mrdc.training.settings import LearnSettings, MemorySettings
from timing import PHASES, DoneError, Setup, options, report, require_resnet18, setup_of

PATHS: dict[str, dict[str, Any]] = {
    "usual": {"precision": "auto", "compile": "yes", "resident": "auto"},
    "resident": {"precision": "fp32", "compile": "no", "resident": "auto"},
    "stream": {"precision": "fp32", "compile": "no", "resident": "stream"},
    "stream-bf16": {"precision": "auto", "compile": "yes", "resident": "stream"},
}


class Watch(Keeper):
    """Reports every epoch except the first of a phase."""

    def __init__(self, setup: Setup, **facts: Any):
        self.setup, self.facts, self.images = setup, facts, 0

    def event(self, kind: str, fields: dict[str, Any]) -> None:
        if kind == "phase_start":
            self.images = fields["train_images"]
        if kind != "epoch":
            return
        phase, number = fields["phase"], fields["epoch"] - 1
        seconds = self.images / fields["images_per_second"]
        if number:
            report(self.setup, phase, number, self.images, seconds, **self.facts)
        if phase == PHASES - 1 and number == self.setup.epochs:
            raise DoneError


def stream_of(setup: Setup) -> Stream:
    """Two phases of the first classes of the folder."""
    whole = open_stream(setup.data, phases=1, order="sorted")
    labels = range(PHASES * setup.classes)
    return Stream(whole.train.pick(labels), whole.test.pick(labels), (setup.classes,) * PHASES)


def settings_of(setup: Setup, path: str) -> LearnSettings:
    return LearnSettings(
        size=224,
        stem="7x7",
        train=TrainSettings(epochs=setup.epochs + 1, batch_size=setup.batch),
        memory=MemorySettings(budget=f"{setup.kept}/class", quality="original"),
        device="cuda" if "cuda" in setup.device else "cpu",
        **PATHS[path],
    )


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--paths", nargs="+", choices=PATHS, default=["usual", "stream"])
    parser.set_defaults(epochs=4, repeat=1)
    given = parser.parse_args()
    setup = setup_of(given)
    for path in given.paths:
        facts = {"library": "mrdc", "version": __version__, "method": "icarl", "path": path}
        try:
            settings, method = settings_of(setup, path), make_method("icarl")
            require_resnet18(make_architecture(settings, method).build())
            learn_classes(method, stream_of(setup), settings, keeper=Watch(setup, **facts))
        except DoneError:
            pass


if __name__ == "__main__":
    main()
