"""One function per verb: do the work, print the result, return the exit code.

What needs torch is imported when it is needed: wrong usage is answered at once, and `info`,
`audit`, `export` and `list` never load it.
"""

import json
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import tyro
from rich.console import Console

from mrdc._utils.errors import SweepError, UsageError
from mrdc._utils.registry import lookup
from mrdc._utils.text import count
from mrdc.cli import lists, memories, runs
from mrdc.cli.commands import (
    AuditCommand,
    DetectCommand,
    DetectSweepCommand,
    Experiment,
    ExportCommand,
    InfoCommand,
    ListCommand,
    PackCommand,
    PlanCommand,
    ReportCommand,
    RunCommand,
    StudyCommand,
    SweepCommand,
)
from mrdc.cli.progress import RunProgress, SweepProgress, stages
from mrdc.cli.tables import clean
from mrdc.detection.settings import DetectSettings
from mrdc.experiments.settings import AnySettings
from mrdc.memory.file import MemoryFile
from mrdc.training.settings import RunSettings


def answer(as_json: bool, result: dict[str, Any], show: Callable[[], None]) -> None:
    """Print the result as JSON, or show it to people."""
    if as_json:
        print(json.dumps(result, allow_nan=False))
    else:
        show()


def plan(command: PlanCommand, console: Console) -> int:
    check_source(command)
    check_page(command.report)
    from mrdc.planning.plan import run_plan

    with stages(command.json) as progress:
        found = run_plan(command, progress=progress)
    write_page(found, command.report)
    answer(command.json, found.to_json(), lambda: memories.plan(console, found))
    return 0


def pack(command: PackCommand, console: Console) -> int:
    check_source(command)
    check_page(command.report)
    if command.report is not None and command.report.resolve() == command.output.resolve():
        raise UsageError(f"--report {command.report}: is the memory file; choose another path")
    from mrdc.planning.pack import run_pack
    from mrdc.planning.search import search_space

    if command.report is not None and len(search_space(command)) < 2:
        raise UsageError("--report shows a choice: allow more than one --quality or --codec")
    with stages(command.json) as progress:
        packed = run_pack(command, progress=progress)
    write_page(packed.plan, command.report)
    answer(command.json, packed.to_json(), lambda: memories.packed(console, packed))
    return 0


def check_source(command: PlanCommand | PackCommand) -> None:
    """Refuse a missing source before torch is imported."""
    from mrdc.data import check_source
    from mrdc.memory.budget import parse_budget

    parse_budget(command.budget, original_bytes=1.0)
    check_source(command.photos)


def check_page(output: Path | None) -> None:
    """Refuse a page that could not be written, before the work it shows."""
    if output is not None:
        from mrdc.report.page import check_output

        check_output(output)


def write_page(plan: Any, output: Path | None) -> None:
    """Write the page about a plan, if one is wanted."""
    if output is not None:
        from mrdc.report.plans import write_plan

        write_plan(plan, output)


def info(command: InfoCommand, console: Console) -> int:
    about = memories.about(MemoryFile(command.memory))
    answer(command.json, about, lambda: memories.info(console, about))
    return 0


def audit(command: AuditCommand, console: Console) -> int:
    from mrdc.memory.audit import audit

    with stages(command.json) as progress:
        found = audit(command.memory, progress("auditing", 0))
    answer(command.json, found.as_json(), lambda: memories.audit(console, found))
    return 2 if found.problems else 0


def export(command: ExportCommand, console: Console) -> int:
    from mrdc.memory.export import export

    file = MemoryFile(command.memory)
    with stages(command.json) as progress:
        written = export(file, command.output, command.format, progress("exporting", len(file)))
    line = f"Wrote {count(written, 'image')} to {clean(str(command.output))}"
    result = {"output": str(command.output), "items": written}
    answer(command.json, result, lambda: console.print(line))
    return 0


def report(command: ReportCommand, console: Console) -> int:
    from mrdc.report import write_report

    found = write_report(command.runs, command.output, title=command.title)
    written = {"output": str(command.output), "runs": [str(one.path) for one in found]}
    line = f"Wrote {clean(str(command.output))} about {count(len(found), 'run')}"
    answer(command.json, written, lambda: console.print(line))
    return 0


def list_(command: ListCommand, console: Console) -> int:
    names = lists.names()
    if command.what is not None:
        names = {command.what: lookup(names, command.what, "list")}
    answer(command.json, names, lambda: lists.listing(console, names, command.what))
    return 0


def study(command: StudyCommand, console: Console) -> int:
    """Run the rest of a study, and write its page."""
    from mrdc.experiments.studies import find_study

    entry = find_study(command.name)
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
        report=SweepProgress(command.json),
    )
    write_report(
        [Path(folder) for folder in found["runs"]],
        Path(found["page"]),
        title=entry.title,
        question=entry.question,
        paper=entry.paper,
        sections=entry.sections,
    )
    answer(command.json, found, lambda: runs.study(console, found))
    return 0


# run and sweep: the name decides the defaults of the flags


def run(name: str, flags: list[str], console: Console) -> int:
    from mrdc.experiments.config import named

    command = parse_experiment("run", name, flags)
    label, _, preset = named(name)
    if not command.data.startswith(preset.prefix):
        command = replace(command, data=preset.prefix + command.data)
    settings = as_settings(command)
    paper = preset.paper if as_published(settings, preset.settings) else None
    with RunProgress(command.json) as progress:
        from mrdc.experiments.run import run as run_experiment

        result = run_experiment(settings, name=label, paper=paper, listener=progress)
    answer(command.json, result.to_json(), lambda: runs.run(console, result))
    return 0


def sweep(name: str, flags: list[str], console: Console) -> int:
    command = parse_experiment("sweep", name, flags)
    assert isinstance(command, SweepCommand | DetectSweepCommand)
    from mrdc.experiments.sweep import run_sweep

    found = run_sweep(
        name,
        lambda recipe: as_settings(parse_experiment("sweep", recipe, flags)),
        command.grid,
        command.out or Path("runs") / f"sweep-{Path(name).stem}",
        command.jobs,
        SweepProgress(command.json),
    )
    answer(command.json, found, lambda: runs.sweep(console, found))
    failed, total = len(found["failed"]), len(found["failed"]) + len(found["runs"])
    if failed:
        raise SweepError(f"{failed} of {total} runs failed; run the same command to retry them")
    return 0


def parse_experiment(verb: str, name: str, flags: list[str]) -> Experiment:
    """The flags applied to what a name stands for."""
    from mrdc.experiments.config import named

    settings = named(name).preset.settings
    kinds: dict[tuple[str, bool], type[Experiment]] = {
        ("run", False): RunCommand,
        ("run", True): DetectCommand,
        ("sweep", False): SweepCommand,
        ("sweep", True): DetectSweepCommand,
    }
    kind = kinds[verb, isinstance(settings, DetectSettings)]
    values = {field.name: getattr(settings, field.name) for field in fields(settings)}
    if not values["data"] and verb == "run":  # a sweep may have it as an axis
        values["data"] = tyro.MISSING
    return tyro.cli(
        kind,
        args=flags,
        prog=f"mrdc {verb} {name}",
        default=kind(**values),
        config=(tyro.conf.FlagCreatePairsOff,),
    )


def as_settings(command: Experiment) -> AnySettings:
    """The settings in a command."""
    kind = DetectSettings if isinstance(command, DetectSettings) else RunSettings
    return kind(**{field.name: getattr(command, field.name) for field in fields(kind)})


def as_published(settings: AnySettings, preset: AnySettings) -> bool:
    """Whether only the data, the seed, and where and how to run differ from a preset."""
    from mrdc.experiments.settings import decisive_settings

    ours, theirs = decisive_settings(settings), decisive_settings(preset)
    return all(ours[name] == theirs[name] for name in theirs if name not in ("data", "seed"))
