"""The commands and their flags."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from mrdc.cli import show
from mrdc.detection.settings import DetectSettings
from mrdc.memory.export import Format
from mrdc.planning.settings import PackSettings, PlanSettings
from mrdc.training.settings import RunSettings

Json = Annotated[bool, tyro.conf.arg(help="Print one JSON object and nothing else.")]
Page = Annotated[
    Path | None,
    tyro.conf.arg(
        help="Also write a page (.html): the trade-off, the choice, what the images look like."
    ),
]


@dataclass(frozen=True)
class Plan(PlanSettings):
    """Which quality, how many images, R_q of each candidate; writes nothing."""

    report: Page = None
    json: Json = False


@dataclass(frozen=True)
class Pack(PackSettings):
    """Choose quality and images, and write one memory file."""

    report: Page = None
    json: Json = False


@dataclass(frozen=True)
class Info:
    """What a memory file holds."""

    memory: tyro.conf.Positional[Path]
    """A memory file."""
    json: Json = False


@dataclass(frozen=True)
class Audit:
    """Recompute every byte and checksum of a memory file."""

    memory: tyro.conf.Positional[Path]
    """A memory file."""
    json: Json = False


@dataclass(frozen=True)
class Export:
    """Write the images of a memory file where other tools can read them."""

    memory: tyro.conf.Positional[Path]
    """A memory file."""
    output: Annotated[Path, tyro.conf.arg(aliases=["-o"])]
    """The folder, or the tar, to make."""
    format: Format | None = None
    """folder: one sub-folder a class; webdataset: a tar of image, class and details; coco: images
    with boxes, and annotations.json. By default webdataset where the output ends in .tar, and
    coco where there are boxes."""
    json: Json = False


@dataclass(frozen=True, kw_only=True)
class Run(RunSettings):
    """Learn classes phase by phase; the same command again goes on where it stopped.

    mrdc run NAME --data DATA, where NAME is a recipe such as lucir or lucir-mrdc, a preset such
    as cub-5-lucir-mrdc (`mrdc list` has all), or a TOML file with recipe = "..." and settings.
    """

    json: Json = False


@dataclass(frozen=True, kw_only=True)
class Detect(DetectSettings):
    """Learn a detector phase by phase; the same command again goes on where it stopped."""

    json: Json = False


@dataclass(frozen=True, kw_only=True)
class Sweep(RunSettings):
    """A grid of runs, in parallel, with means over seeds; goes on where it stopped.

    mrdc sweep NAME --data DATA --grid memory.quality=10,50,original seed=0,1,2. The axis
    `recipe` goes through recipes; any flag of `run` can be an axis, such as data=A,B for --data.
    """

    out: Path | None = None
    """Folder of all runs; by default runs/sweep-NAME."""
    grid: tuple[str, ...] = ()
    """Axes: setting=value,value,..."""
    jobs: int | None = None
    """Runs at once; by default what the memory of a GPU allows, or one."""
    json: Json = False


@dataclass(frozen=True, kw_only=True)
class DetectSweep(DetectSettings):
    """A grid of detectors' runs, with means over seeds; goes on where it stopped."""

    out: Path | None = None
    """Folder of all runs; by default runs/sweep-NAME."""
    grid: tuple[str, ...] = ()
    """Axes: setting=value,value,..."""
    jobs: int | None = None
    """Runs at once; by default what the memory of a GPU allows, or one."""
    json: Json = False


Experiment = Run | Detect | Sweep | DetectSweep


@dataclass(frozen=True)
class Report:
    """One self-contained page about runs: tables, curves, R_q, what the memory holds."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Folders that `run`, `sweep` or `study` made; folders in them are found, too."""
    output: Annotated[Path, tyro.conf.arg(aliases=["-o"])] = Path("report.html")
    """The page to write; figures also go into a folder beside it, as SVG and CSV."""
    title: str | None = None
    """Of the page; by default what was run."""
    json: Json = False


@dataclass(frozen=True, kw_only=True)
class Study:
    """Run a study and write its page; small on built-in data, in full on your own. Goes on where
    it stopped; studies in one folder share runs."""

    name: Annotated[
        tyro.conf.Positional[str], tyro.conf.arg(metavar="NAME", help=show.study_lines())
    ]
    data: str | None = None
    """As for `run`; by default built-in data, in minutes without a GPU."""
    out: Path = Path("studies")
    """Holds the page, NAME.html, and the runs."""
    seeds: tuple[int, ...] = (0,)
    """Every run is done with each of these."""
    phases: int | None = None
    """As for `run`, in place of what the study says."""
    superclasses: Path | None = None
    """CSV of class,superclass, for the study superclasses."""
    set_all: tuple[str, ...] = ()
    """Settings of all runs, such as train.epochs=30."""
    jobs: int | None = None
    """Runs at once; by default what the memory of a GPU allows, or one."""
    json: Json = False


@dataclass(frozen=True)
class List:
    """Methods, codecs, selectors, data sets, presets and studies by name."""

    what: tyro.conf.Positional[str | None] = None
    """One of these, in detail."""
    json: Json = False


Command = Plan | Pack | Info | Audit | Export | Run | Sweep | Study | Report | List
COMMANDS: dict[str, Callable[..., Command]] = {
    "plan": Plan,
    "pack": Pack,
    "info": Info,
    "audit": Audit,
    "export": Export,
    "run": Run,
    "sweep": Sweep,
    "study": Study,
    "report": Report,
    "list": List,
}
