"""The commands and their flags."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from mrdc.cli.lists import study_lines
from mrdc.detection.settings import DetectSettings
from mrdc.memory.export import Format
from mrdc.planning.add import AddSettings
from mrdc.planning.settings import Location, PackSettings, PlanSettings
from mrdc.training.settings import RunSettings

Json = Annotated[bool, tyro.conf.arg(help="Print one JSON object and nothing else.")]
Processes = Annotated[
    int, tyro.conf.arg(help="Processes that train together, one per GPU; see docs/scale.md.")
]
Publish = Annotated[
    str | None,
    tyro.conf.arg(
        help="URL such as s3://bucket/run that gets the config, the network, the memory and the "
        "results of the finished run."
    ),
]
Page = Annotated[
    Path | None,
    tyro.conf.arg(help="Also write a page (.html): the trade-off, the choice, and sample images."),
]
Plugins = Annotated[
    tuple[str, ...],
    tyro.conf.arg(help="Modules to import first, which may register methods, codecs, ..."),
]


@dataclass(frozen=True)
class PlanCommand(PlanSettings):
    """Find the quality and number of images for a budget, and say why; writes nothing."""

    report: Page = None
    json: Json = False


@dataclass(frozen=True)
class PackCommand(PackSettings):
    """Choose quality and images, and write one memory file, or a folder of parts."""

    report: Page = None
    json: Json = False


@dataclass(frozen=True)
class InfoCommand:
    """Show the contents of a memory file."""

    memory: tyro.conf.Positional[Location]
    """A memory file or a folder of parts, a path or a URL."""
    json: Json = False


@dataclass(frozen=True)
class AuditCommand:
    """Check all byte counts and checksums of a memory file."""

    memory: tyro.conf.Positional[Location]
    """A memory file or a folder of parts, a path or a URL."""
    json: Json = False


@dataclass(frozen=True)
class ExportCommand:
    """Write the images of a memory file for other tools."""

    memory: tyro.conf.Positional[Location]
    """A memory file or a folder of parts, a path or a URL."""
    output: Annotated[Location, tyro.conf.arg(aliases=["-o"])]
    """Folder or tar to create, a path or a URL."""
    format: Format | None = None
    """folder: a sub-folder per class; webdataset: a tar of images, classes and details; coco:
    images with boxes, and annotations.json. By default webdataset if the output ends in .tar, coco
    if there are boxes."""
    json: Json = False


Changed = Annotated[
    Location | None,
    tyro.conf.arg(
        aliases=["-o"], help="Memory to write, a path or a URL; by default changed in place."
    ),
]
Force = Annotated[bool, tyro.conf.arg(help="Replace the output if it exists.")]


@dataclass(frozen=True)
class AddCommand(AddSettings):
    """Add images to a memory file: new classes, or more images of classes in it."""

    json: Json = False


@dataclass(frozen=True)
class RemoveCommand:
    """Remove classes from a memory file."""

    memory: tyro.conf.Positional[Location]
    """A memory file or a folder of parts, a path or a URL."""
    classes: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="CLASS...")]
    """Names or labels of classes."""
    output: Changed = None
    force: Force = False
    plugin: Plugins = ()
    json: Json = False


@dataclass(frozen=True)
class RebudgetCommand:
    """Change the budget of a memory file; cuts scans or drops the lowest ranks to fit."""

    memory: tyro.conf.Positional[Location]
    """A memory file or a folder of parts, a path or a URL."""
    budget: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="BUDGET")]
    """20/class, "2000 originals", or bytes such as 200MB (which bound the whole file)."""
    fade: bool = False
    """Cut scans of all images (codec jpeg-progressive), down to 5 of 10, before dropping images;
    from now on also when classes are added."""
    output: Changed = None
    force: Force = False
    plugin: Plugins = ()
    json: Json = False


@dataclass(frozen=True)
class MergeCommand:
    """Merge memory files into one; classes with the same name become one."""

    memories: Annotated[
        tyro.conf.Positional[tuple[Location, ...]], tyro.conf.arg(metavar="MEMORY...")
    ]
    """Two memory files or more, or folders of parts; paths or URLs."""
    output: Annotated[Location, tyro.conf.arg(aliases=["-o"])]
    """Memory to write, a path or a URL."""
    budget: str | None = None
    """As for `pack`; by default that of the first memory."""
    part_size: str | None = None
    """As for `pack`; by default that of the first memory."""
    force: Force = False
    plugin: Plugins = ()
    json: Json = False


@dataclass(frozen=True, kw_only=True)
class RunCommand(RunSettings):
    """Learn classes phase by phase; run the same command to resume.

    mrdc run NAME --data DATA, where NAME is a recipe such as lucir-relaxed-mrdc, a preset such as
    cub-5-lucir-mrdc (`mrdc list` shows all), or a TOML file with recipe = "..." and settings.
    """

    nproc: Processes = 1
    publish: Publish = None
    json: Json = False


@dataclass(frozen=True, kw_only=True)
class DetectCommand(DetectSettings):
    """Learn a detector phase by phase; run the same command to resume."""

    nproc: Processes = 1
    publish: Publish = None
    json: Json = False


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Flags of a sweep."""

    out: Path | None = None
    """Folder of all runs; by default runs/sweep-NAME."""
    grid: tuple[str, ...] = ()
    """Axes: setting=value,value,..."""
    jobs: int | None = None
    """Runs at a time; by default what GPU memory allows, or one."""
    json: Json = False


@dataclass(frozen=True, kw_only=True)
class SweepCommand(Grid, RunSettings):
    """Run a grid in parallel, with means over seeds; run the same command to resume.

    mrdc sweep NAME --data DATA --grid memory.quality=10,50,original seed=0,1,2. The axis
    `recipe` takes recipes; any flag of `run` can be an axis, such as data=A,B for --data.
    """


@dataclass(frozen=True, kw_only=True)
class DetectSweepCommand(Grid, DetectSettings):
    """Run a grid of detectors, with means over seeds; run the same command to resume."""


Experiment = RunCommand | DetectCommand | SweepCommand | DetectSweepCommand


@dataclass(frozen=True)
class ReportCommand:
    """Write one self-contained page about runs: tables, curves, R_q, memory contents."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Folders made by `run`, `sweep` or `study`; their sub-folders are searched."""
    output: Annotated[Path, tyro.conf.arg(aliases=["-o"])] = Path("report.html")
    """Page to write; figures also go into a folder next to it, as SVG and CSV."""
    title: str | None = None
    """Title of the page; by default what was run."""
    json: Json = False


@dataclass(frozen=True, kw_only=True)
class StudyCommand:
    """Run a study and write its page: small on built-in data, in full on your own. Run the same
    command to resume; studies in one folder share runs."""

    name: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="NAME", help=study_lines())]
    data: str | None = None
    """As for `run`; by default built-in data, in minutes without a GPU."""
    out: Path = Path("studies")
    """Folder for the page, NAME.html, and the runs."""
    seeds: tuple[int, ...] = (0,)
    """Seeds that every run is repeated with."""
    phases: int | None = None
    """As for `run`, instead of the study's own."""
    superclasses: Path | None = None
    """CSV of class,superclass, for the study superclasses."""
    set_all: tuple[str, ...] = ()
    """Settings of all runs, such as train.epochs=30."""
    jobs: int | None = None
    """Runs at a time; by default what GPU memory allows, or one."""
    plugin: Plugins = ()
    json: Json = False


@dataclass(frozen=True)
class ListCommand:
    """List methods, codecs, selectors, data sets, presets and studies."""

    what: tyro.conf.Positional[str | None] = None
    """One of these, in detail."""
    plugin: Plugins = ()
    json: Json = False


COMMANDS: dict[str, Callable[..., Any]] = {
    "plan": PlanCommand,
    "pack": PackCommand,
    "info": InfoCommand,
    "audit": AuditCommand,
    "export": ExportCommand,
    "add": AddCommand,
    "remove": RemoveCommand,
    "rebudget": RebudgetCommand,
    "merge": MergeCommand,
    "run": RunCommand,
    "sweep": SweepCommand,
    "study": StudyCommand,
    "report": ReportCommand,
    "list": ListCommand,
}
