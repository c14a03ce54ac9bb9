"""One function per verb: do the work, print the result, return the exit code.

What needs torch is imported when it is needed: usage errors are reported at once, and `info`,
`audit`, `export` and `list` never load it.
"""

import json
import os
from collections.abc import Callable
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import tyro
from rich.console import Console

from mrdc._utils.errors import SweepError, UsageError
from mrdc._utils.ranks import rank, ranks
from mrdc._utils.registry import lookup
from mrdc._utils.text import count, printable
from mrdc.cli import commands, lists, memories, runs
from mrdc.cli.progress import RunProgress, SweepProgress, stages
from mrdc.cli.usage import one_line
from mrdc.data import check_source
from mrdc.detection.settings import DetectSettings
from mrdc.experiments.config import named
from mrdc.experiments.settings import AnySettings, check_out, decisive_settings
from mrdc.experiments.studies import find_study
from mrdc.memory import edit
from mrdc.memory.budget import parse_budget
from mrdc.memory.stored import open_memory
from mrdc.planning.add import run_add
from mrdc.training.settings import RunSettings


def answer(as_json: bool, result: dict[str, Any], show: Callable[[], None]) -> int:
    """Print the result as JSON, or show it to people; returns the exit code of success."""
    if as_json:
        print(json.dumps(result, allow_nan=False))
    else:
        show()
    return 0


def plan(command: commands.PlanCommand, console: Console) -> int:
    check_plan(command)
    from mrdc.planning.plan import run_plan

    with stages(command.json) as progress:
        found = run_plan(command, progress=progress)
    write_page(found, command.report)
    return answer(command.json, found.to_json(), lambda: memories.plan(console, found))


def pack(command: commands.PackCommand, console: Console) -> int:
    check_plan(command)
    if command.report is not None and command.report.resolve() == command.output.resolve():
        raise UsageError(f"--report {command.report}: is the memory file; choose another path")
    from mrdc.planning.pack import run_pack
    from mrdc.planning.search import search_space

    if command.report is not None and len(search_space(command)) < 2:
        raise UsageError("--report shows a choice: allow more than one --quality or --codec")
    with stages(command.json) as progress:
        packed = run_pack(command, progress=progress)
    write_page(packed.plan, command.report)
    return answer(command.json, packed.to_json(), lambda: memories.packed(console, packed))


def check_plan(command: commands.PlanCommand | commands.PackCommand) -> None:
    """Refuse a missing source or a page that could not be written, before torch is imported."""
    parse_budget(command.budget, original_bytes=1.0)
    check_source(command.photos)
    if command.report is not None:
        from mrdc.report.page import check_output

        check_output(command.report)


def write_page(plan: Any, output: Path | None) -> None:
    """Write the page about a plan, if one is wanted."""
    if output is not None:
        from mrdc.report.plans import write_plan

        write_plan(plan, output)


def info(command: commands.InfoCommand, console: Console) -> int:
    about = memories.about(open_memory(command.memory))
    return answer(command.json, about, lambda: memories.info(console, about))


def audit(command: commands.AuditCommand, console: Console) -> int:
    from mrdc.memory.audit import audit

    with stages(command.json) as progress:
        found = audit(command.memory, progress("auditing", 0))
    answer(command.json, found.as_json(), lambda: memories.audit(console, found))
    return 2 if found.problems else 0


def export(command: commands.ExportCommand, console: Console) -> int:
    from mrdc.memory.export import export

    memory = open_memory(command.memory)
    with stages(command.json) as progress:
        count_one = progress("exporting", len(memory))
        written = export(memory, command.output, command.format, count_one)
    line = f"Wrote {count(written, 'image')} to {printable(str(command.output))}"
    result = {"output": str(command.output), "items": written}
    return answer(command.json, result, lambda: console.print(line))


def add(command: commands.AddCommand, console: Console) -> int:
    check_source(command.photos)
    with stages(command.json) as progress:
        found = run_add(command, progress=progress)
    return answer(command.json, found.to_json(), lambda: memories.edited(console, found))


def remove(command: commands.RemoveCommand, console: Console) -> int:
    found = edit.remove(command.memory, command.classes, command.output, command.force)
    return answer(command.json, found.to_json(), lambda: memories.edited(console, found))


def rebudget(command: commands.RebudgetCommand, console: Console) -> int:
    found = edit.rebudget(
        command.memory, command.budget, command.output, command.force, command.fade
    )
    return answer(command.json, found.to_json(), lambda: memories.edited(console, found))


def merge(command: commands.MergeCommand, console: Console) -> int:
    found = edit.merge(
        command.memories, command.output, command.budget, command.force, command.part_size
    )

    def show() -> None:
        memories.edited(console, found)
        if command.budget is None and len(found.memory) < found.before:
            first = printable(str(command.memories[0]))
            console.print(f"The budget is that of {first}; with --budget more images may fit.")

    return answer(command.json, found.to_json(), show)


def report(command: commands.ReportCommand, console: Console) -> int:
    from mrdc.report import write_report

    found = write_report(command.runs, command.output, title=command.title)
    written = {"output": str(command.output), "runs": [str(one.path) for one in found]}
    line = f"Wrote {printable(str(command.output))} about {count(len(found), 'run')}"
    return answer(command.json, written, lambda: console.print(line))


def list_(command: commands.ListCommand, console: Console) -> int:
    names = lists.names()
    if command.what is not None:
        names = {command.what: lookup(names, command.what, "list")}
    return answer(command.json, names, lambda: lists.listing(console, names, command.what))


def study(command: commands.StudyCommand, console: Console) -> int:
    """Run the rest of a study, and write its page."""
    entry = find_study(command.name)
    check_out(command.out)
    from mrdc.experiments.study import run_study
    from mrdc.report import write_report

    phases = () if command.phases is None else (f"phases={command.phases}",)
    found = run_study(
        command.name,
        command.out,
        data=command.data,
        seeds=command.seeds,
        jobs=command.jobs,
        superclasses=command.superclasses,
        changes=(*command.set_all, *phases),
        report=SweepProgress(command.json),
    )
    write_report(
        [Path(folder) for folder in found["runs"]],
        Path(found["page"]),
        title=entry.title,
        question=entry.question,
        lead=found["answer"] or None,
        paper=entry.paper,
        sections=entry.sections,
    )
    return answer(command.json, found, lambda: runs.study(console, found))


VERBS: dict[str, Callable[[Any, Console], int]] = {
    "plan": plan,
    "pack": pack,
    "info": info,
    "audit": audit,
    "export": export,
    "add": add,
    "remove": remove,
    "rebudget": rebudget,
    "merge": merge,
    "report": report,
    "study": study,
    "list": list_,
}

# run and sweep: the name decides the defaults of the flags


def run(name: str, flags: list[str], console: Console) -> int:
    command = parse_experiment("run", name, flags)
    assert isinstance(command, commands.RunCommand | commands.DetectCommand)
    check_out(command.out)
    if command.nproc != 1 and ranks() == 1:
        return launched(command, ["run", name, *flags])
    if command.nproc not in (1, ranks()):
        raise UsageError(f"--nproc {command.nproc}: torchrun has started {ranks()} processes")
    label, _, preset = named(name)
    if not command.data.startswith(preset.prefix):
        command = replace(command, data=preset.prefix + command.data)
    settings = as_settings(command)
    paper = preset.paper if as_published(settings, preset.settings) else None
    with RunProgress(command.json or rank() > 0) as progress:
        from mrdc.distributed.group import world
        from mrdc.experiments.publish import check_publish, publish
        from mrdc.experiments.run import run as run_experiment
        from mrdc.experiments.run import run_path

        world()
        if command.publish is not None:
            check_publish(run_path(settings, label), command.publish)
        result = run_experiment(settings, name=label, paper=paper, listener=progress)
        world().leave()
    if rank() > 0:
        return 0
    if command.publish is not None:
        publish(Path(result.folder), command.publish)
    return answer(
        command.json, result.to_json(), lambda: runs.run(console, result, command.publish)
    )


def launched(command: commands.RunCommand | commands.DetectCommand, arguments: list[str]) -> int:
    """Run the same command in several processes."""
    if command.nproc < 1:
        raise UsageError(f"--nproc must be 1 or more, got {command.nproc}")
    from mrdc.distributed.launch import launch
    from mrdc.nn.embedder import pick_device

    if pick_device(command.device).type == "cuda":
        import torch

        gpus = torch.cuda.device_count()
        if command.nproc > gpus:
            raise UsageError(f"--nproc {command.nproc}: needs a GPU each, but there are {gpus}")
    return launch(command.nproc, ["-m", "mrdc.cli.worker", *arguments])


def sweep(name: str, flags: list[str], console: Console) -> int:
    command = parse_experiment("sweep", name, flags)
    assert isinstance(command, commands.SweepCommand | commands.DetectSweepCommand)
    check_out(command.out)
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
        reasons = {one["error"] for one in found["failed"]}
        if failed == total > 1 and len(reasons) == 1:
            raise SweepError(f"all {total} runs failed: {reasons.pop()}")
        raise SweepError(f"{failed} of {total} runs failed; run the same command to retry them")
    return 0


def parse_experiment(verb: str, name: str, flags: list[str]) -> commands.Experiment:
    """The flags applied to what a name stands for."""
    settings = named(name).preset.settings
    kind: type[commands.Experiment]
    if isinstance(settings, DetectSettings):
        kind = commands.DetectCommand if verb == "run" else commands.DetectSweepCommand
    else:
        kind = commands.RunCommand if verb == "run" else commands.SweepCommand
    values = {field.name: getattr(settings, field.name) for field in fields(settings)}
    if not values["data"] and verb == "run":  # a sweep may have it as an axis
        values["data"] = tyro.MISSING
    with open(os.devnull, "w") as nowhere, ExitStack() as quiet:
        if rank() > 0:  # rank 0 prints help, and what is wrong
            quiet.enter_context(redirect_stdout(nowhere))
            quiet.enter_context(redirect_stderr(nowhere))
        quiet.enter_context(one_line(f"mrdc {verb} {name}", flags))
        return tyro.cli(
            kind,
            args=flags,
            prog=f"mrdc {verb} {name}",
            default=kind(**values),
            config=(tyro.conf.FlagCreatePairsOff,),
        )


def as_settings(command: commands.Experiment) -> AnySettings:
    """The settings in a command."""
    kind = DetectSettings if isinstance(command, DetectSettings) else RunSettings
    return kind(**{field.name: getattr(command, field.name) for field in fields(kind)})


def as_published(settings: AnySettings, preset: AnySettings) -> bool:
    """Whether only the data, the seed, and where and how to run differ from a preset."""
    ours, theirs = decisive_settings(settings), decisive_settings(preset)
    return all(ours[name] == theirs[name] for name in theirs if name not in ("data", "seed"))
