"""The command line."""

import errno
import io
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import tyro
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from mrdc import __version__
from mrdc._utils.errors import ImageError, MrdcError, SweepError, UsageError
from mrdc._utils.registry import lookup
from mrdc.cli import show
from mrdc.cli.commands import (
    COMMANDS,
    Audit,
    Command,
    Detect,
    DetectSweep,
    Experiment,
    Export,
    Info,
    List,
    Pack,
    Plan,
    Report,
    Run,
    Study,
    Sweep,
)
from mrdc.cli.progress import Progress, SweepProgress
from mrdc.detection.settings import DetectSettings
from mrdc.experiments.settings import AnySettings
from mrdc.training.settings import RunSettings

PAPER = 160  # columns of what is written to a file or a pipe
NO_WRITING = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)


def run(command: Command, console: Console) -> int:
    """Carry a command out; its exit code."""
    if isinstance(command, Plan):
        from mrdc.planning.plan import plan

        check_page(command.report)
        with bars(command.json) as progress:
            found = plan(command, progress=progress)
        page(found, command.report)
        answer(command.json, found.as_json(), lambda: show.plan(console, found))
    elif isinstance(command, Pack):
        from mrdc.planning.pack import pack
        from mrdc.planning.scan import search_space

        if command.report is not None and len(search_space(command)) < 2:
            raise UsageError("--report shows a choice: allow more than one --quality or --codec")
        if command.report is not None and command.report.resolve() == command.output.resolve():
            raise UsageError(f"--report {command.report}: is the memory file; name another")
        check_page(command.report)
        with bars(command.json) as progress:
            packed = pack(command, progress=progress)
        page(packed.plan, command.report)
        answer(command.json, packed.as_json(), lambda: show.packed(console, packed))
    elif isinstance(command, Info):
        from mrdc.memory.file import MemoryFile

        about = show.about(MemoryFile(command.memory))
        answer(command.json, about, lambda: show.info(console, about))
    elif isinstance(command, Audit):
        from mrdc.memory.audit import audit

        with bars(command.json) as progress:
            found_out = audit(command.memory, progress("auditing", 0))
        answer(command.json, found_out.as_json(), lambda: show.audit(console, found_out))
        return 2 if found_out.problems else 0
    elif isinstance(command, Export):
        from mrdc.memory.export import export
        from mrdc.memory.file import MemoryFile

        file = MemoryFile(command.memory)
        with bars(command.json) as progress:
            count = export(file, command.output, command.format, progress("exporting", len(file)))
        result = {"output": str(command.output), "items": count}
        line = f"Wrote {show.count(count, 'image')} to {show.clean(str(command.output))}"
        answer(command.json, result, lambda: console.print(line))
    elif isinstance(command, Study):
        studied = study(command)
        answer(command.json, studied, lambda: show.study(console, studied))
    elif isinstance(command, Report):
        from mrdc.report import write_report

        runs = write_report(command.runs, command.output, title=command.title)
        written = {"output": str(command.output), "runs": [str(one.path) for one in runs]}
        line = f"Wrote {show.clean(str(command.output))} about {show.count(len(runs), 'run')}"
        answer(command.json, written, lambda: console.print(line))
    else:
        assert isinstance(command, List)
        names = show.names()
        if command.what is not None:
            names = {command.what: lookup(names, command.what, "list")}
        answer(command.json, names, lambda: show.listing(console, names, command.what))
    return 0


def study(command: Study) -> dict[str, Any]:
    """Run what is left of a study, and write its page."""
    from mrdc.experiments.studies import STUDIES
    from mrdc.experiments.study import run_study
    from mrdc.report import write_report

    changes = command.set_all
    if command.phases is not None:
        changes = (*changes, f"phases={command.phases}")
    found = run_study(
        command.name,
        command.out,
        data=command.data,
        seeds=command.seeds,
        jobs=command.jobs,
        superclasses=command.superclasses,
        changes=changes,
        tell=SweepProgress(command.json),
    )
    entry = STUDIES[command.name]
    write_report(
        [Path(folder) for folder in found["runs"]],
        Path(found["page"]),
        title=entry.title,
        question=f"{entry.question} {found['answer']}".strip(),
        paper=entry.paper,
        sections=entry.sections,
    )
    return found


def as_published(settings: AnySettings, preset: AnySettings) -> bool:
    """Whether nothing but the data, the seed, and where and how to run is otherwise."""
    from mrdc.experiments.common import decisive_settings

    ours, theirs = decisive_settings(settings), decisive_settings(preset)
    return all(ours[name] == theirs[name] for name in theirs if name not in ("data", "seed"))


def page(plan: Any, output: Path | None) -> None:
    """Write the page about a plan, where one is wanted."""
    if output is not None:
        from mrdc.report.plans import write_plan

        write_plan(plan, output)


def check_page(output: Path | None) -> None:
    """Refuse a page that could not be written, before the work that it shows."""
    if output is not None:
        from mrdc.report.page import check_output

        check_output(output)


def answer(as_json: bool, result: dict[str, Any], tell: Callable[[], None]) -> None:
    """Print the result for programs, or tell people."""
    if as_json:
        print(json.dumps(result, allow_nan=False))
    else:
        tell()


@contextmanager
def bars(silent: bool) -> Iterator[Callable[[str, int], Callable[[int], None]]]:
    """A progress bar for each stage, on standard error, where that is a terminal."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    )  # fmt: skip
    with Bars(
        *columns, console=console, disable=silent or not console.is_terminal, transient=True
    ) as progress:

        def stage(name: str, total: int) -> Callable[[int], None]:
            task = progress.add_task(name, total=total or None)
            return lambda count: progress.advance(task, count)

        yield stage


class Screen(Console):
    """A console whose reader may go away; what is no terminal has room for long names."""

    def __init__(self) -> None:
        super().__init__()
        if not self.is_terminal and "COLUMNS" not in os.environ:
            self.width = PAPER

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def main(arguments: list[str] | None = None) -> int:
    """The command `mrdc`; returns its exit code."""
    warnings.filterwarnings("ignore", message="Image size .* exceeds limit")  # we refuse it
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        code = _run(arguments)
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except ImageError as error:
        return _fail(f"{error} (plan and pack go on without such files with --skip-bad)", 2)
    except MrdcError as error:
        return _fail(str(error), 2)
    except KeyboardInterrupt:
        going_on = arguments[:1] in (["run"], ["sweep"], ["study"])
        kept = "the same command again goes on from here" if going_on else "nothing was written"
        return _fail(f"interrupted: {kept}", 130)
    except BrokenPipeError:  # the reader of our output has gone
        _silence()
        return 0
    except OSError as error:
        _silence()
        unnamed = "standard output" if error.errno in NO_WRITING else "the system"
        return _fail(f"{error.filename or unnamed}: {error.strerror}", 2)


def _run(arguments: list[str]) -> int:
    if arguments == ["--version"]:
        print(f"mrdc {__version__}")
        return 0
    try:
        if arguments[:1] in (["run"], ["sweep"]) and arguments[1:2] not in (["-h"], ["--help"]):
            return _experiment(arguments[0], arguments[1:], Screen())
        command: Command = tyro.extras.subcommand_cli_from_dict(
            COMMANDS,
            args=arguments,
            prog="mrdc",
            config=(tyro.conf.FlagCreatePairsOff,),
            description=f"mrdc {__version__}: replay compressed images under a byte budget.",
        )
    except SystemExit as stop:  # help was asked for, or the arguments were wrong
        return stop.code if isinstance(stop.code, int) else 2
    return run(command, Screen())


def _experiment(verb: str, arguments: list[str], console: Console) -> int:
    """`run` and `sweep`: the name decides what the flags' defaults are."""
    from mrdc.experiments.config import named

    name, *flags = arguments or [""]
    if not name or name.startswith("-"):
        raise UsageError(
            f"{verb} takes a recipe or preset first, as in: mrdc {verb} lucir-mrdc --data FOLDER; "
            "`mrdc list` has all"
        )

    def parsed(recipe: str) -> Experiment:
        """The flags on top of what a name stands for."""
        preset = named(recipe).preset
        scenes = isinstance(preset.settings, DetectSettings)
        kind: type[Experiment] = Detect if scenes else Run
        if verb == "sweep":
            kind = DetectSweep if scenes else Sweep
        settings = {field.name: getattr(preset.settings, field.name) for field in
                    fields(preset.settings)}  # fmt: skip
        if not settings["data"] and verb == "run":  # a sweep may have it as an axis
            settings["data"] = tyro.MISSING
        return tyro.cli(
            kind,
            args=flags,
            prog=f"mrdc {verb} {recipe}",
            default=kind(**settings),
            config=(tyro.conf.FlagCreatePairsOff,),
        )

    command = parsed(name)
    if isinstance(command, Run | Detect):
        label, _, preset = named(name)
        if not command.data.startswith(preset.prefix):
            command = replace(command, data=preset.prefix + command.data)
        with Progress(command.json) as progress:
            settings = as_settings(command)
            paper = preset.paper if as_published(settings, preset.settings) else None
            about: dict[str, Any] = {"name": label, "paper": paper, "listener": progress}
            if isinstance(settings, DetectSettings):
                from mrdc.experiments.scenes import detect

                found = detect(settings, **about)
            else:
                from mrdc.experiments.run import run as run_one

                found = run_one(settings, **about)
        answer(command.json, found, lambda: show.run(console, found))
        return 0
    from mrdc.experiments.sweep import run_sweep

    out = command.out or Path("runs") / f"sweep-{Path(name).stem}"
    tell = SweepProgress(command.json)
    swept = run_sweep(
        name, lambda recipe: as_settings(parsed(recipe)), command.grid, out, command.jobs, tell
    )
    answer(command.json, swept, lambda: show.sweep(console, swept))
    failed, total = len(swept["failed"]), len(swept["failed"]) + len(swept["runs"])
    if failed:
        raise SweepError(
            f"{failed} of {total} runs failed; the same command again runs only what is missing"
        )
    return 0


def as_settings(command: Experiment) -> AnySettings:
    """What a command says of the experiment."""
    kind = DetectSettings if isinstance(command, DetectSettings) else RunSettings
    return kind(**{field.name: getattr(command, field.name) for field in fields(kind)})


def _silence() -> None:
    """Let Python's own flush at exit go nowhere."""
    with suppress(OSError, AttributeError), open(os.devnull, "wb") as nowhere:  # no real output
        os.dup2(nowhere.fileno(), sys.stdout.fileno())


def _fail(message: str, code: int) -> int:
    """Say one line on standard error."""
    print(f"mrdc: {show.printable(message)}", file=sys.stderr)
    return code
