"""Parse a command, run it, and turn errors into one line and an exit code."""

import errno
import io
import os
import sys
import warnings
from contextlib import suppress
from typing import Any

import tyro
from rich.console import Console

from mrdc import __version__
from mrdc._utils.errors import ImageError, MrdcError, RanksError, UsageError, lacks_memory
from mrdc._utils.extras import missing
from mrdc._utils.ranks import FAILED, LOST, ranks
from mrdc._utils.registry import import_plugins
from mrdc._utils.text import printable
from mrdc.cli import verbs
from mrdc.cli.commands import COMMANDS
from mrdc.cli.tables import plain
from mrdc.cli.usage import one_line

PIPE_WIDTH = 160  # columns of output to a file or a pipe
NO_MEMORY = "not enough memory, or too many threads: lower --threads, or free some memory"
NO_WRITING = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)


class Screen(Console):
    """A console for plain text, whose reader may go away; long names get room in files and pipes.

    Strings are printed as they are: no markup, and no highlighting, which is slow for long names.
    """

    def __init__(self) -> None:
        super().__init__(markup=False, highlight=False, emoji=False)
        if not self.is_terminal and "COLUMNS" not in os.environ:
            self.width = PIPE_WIDTH

    def print(self, *objects: Any, **options: Any) -> None:
        super().print(*(plain(o) if isinstance(o, str) else o for o in objects), **options)

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def main(arguments: list[str] | None = None) -> int:
    """The command `mrdc`; returns its exit code."""
    warnings.filterwarnings("ignore", module=r"PIL\.")  # they do not name the file
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        code = _run(arguments)
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except ImageError as error:
        return _fail(f"{error} (--skip-bad leaves such files out)", 2)
    except RanksError as error:
        return _fail(str(error), 2, LOST)
    except MrdcError as error:
        return _fail(str(error), 2)
    except ModuleNotFoundError as error:
        instead = missing(error, f"mrdc {' '.join(arguments[:1])}")
        if instead is None:
            raise
        return _fail(str(instead), 2)
    except KeyboardInterrupt:
        resumes = arguments[:1] in (["run"], ["sweep"], ["study"])
        kept = "run the same command to resume" if resumes else "no file is half-written"
        return _fail(f"interrupted: {kept}", 130, LOST)
    except BrokenPipeError:  # the reader of our output has gone
        _silence()
        return 0
    except (MemoryError, RuntimeError, ImportError, SystemError) as error:
        if not lacks_memory(error):
            raise
        return _fail(NO_MEMORY, 2)
    except OSError as error:
        _silence()
        unnamed = "standard output" if error.errno in NO_WRITING else "the system"
        return _fail(f"{error.filename or unnamed}: {error.strerror}", 2)


def _run(arguments: list[str]) -> int:
    if "--version" in arguments:
        print(f"mrdc {__version__}")
        return 0
    import_plugins(plugins(arguments))
    verb, rest = arguments[:1], arguments[1:]
    if ranks() > 1 and verb != ["run"]:
        raise UsageError("torchrun is for `mrdc run`, which trains with several processes")
    try:
        if verb in (["run"], ["sweep"]) and rest[:1] not in (["-h"], ["--help"]):
            name = rest[0] if rest else ""
            if not name or name.startswith("-"):
                raise UsageError(
                    f"{verb[0]} takes a recipe or preset first, as in: mrdc {verb[0]} "
                    "lucir-relaxed-mrdc --data FOLDER; `mrdc list` shows all"
                )
            experiment = verbs.run if verb == ["run"] else verbs.sweep
            return experiment(name, rest[1:], Screen())
        with one_line(f"mrdc {verb[0]}" if verb and verb[0] in COMMANDS else "mrdc", arguments):
            command = tyro.extras.subcommand_cli_from_dict(
                COMMANDS,
                args=arguments,
                prog="mrdc",
                config=(tyro.conf.FlagCreatePairsOff,),
                description=f"mrdc {__version__}: replay compressed images under a byte budget.",
            )
    except SystemExit as stop:  # help was asked for, or the arguments were wrong
        return 0 if stop.code is None else stop.code if isinstance(stop.code, int) else 2
    return verbs.VERBS[verb[0]](command, Screen())


def plugins(arguments: list[str]) -> list[str]:
    """Modules after `--plugin`, which may define what the other arguments name."""
    found, following = list[str](), False
    for argument in arguments:
        if argument.startswith("-"):
            flag, _, value = argument.partition("=")
            following = flag == "--plugin"
            found += [value] if following and value else []
        elif following:
            found.append(argument)
    return found


def _silence() -> None:
    """Let Python's own flush at exit go nowhere."""
    with suppress(OSError, AttributeError), open(os.devnull, "wb") as nowhere:  # no real output
        os.dup2(nowhere.fileno(), sys.stdout.fileno())


def _fail(message: str, code: int, report: str = FAILED) -> int:
    """Print one line on standard error; of several processes, the first to fail does."""
    if ranks() == 1 or _first_to(report):
        print(f"mrdc: {printable(message)}", file=sys.stderr)
    return code


def _first_to(report: str) -> bool:
    from mrdc.distributed.group import world

    with suppress(RanksError):
        return world().first_to(report)
    return False
