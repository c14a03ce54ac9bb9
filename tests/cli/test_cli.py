"""The command line as a new user sees it: help, lists, exit codes, pipes."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mrdc.cli.verbs import VERBS
from mrdc.detection.methods import SCENE_METHODS
from mrdc.experiments.presets import preset_names, recipe_names, scene_recipe_names
from mrdc.methods import METHODS
from tests.processes import Cli, until


def test_help_names_the_commands(cli: Cli) -> None:
    assert cli("--help") == 0
    names = ("plan", "pack", "info", "audit", "export", "run", "sweep", "study", "report", "list")
    assert all(name in cli.out for name in names)


@pytest.mark.parametrize("verb", ["run", "sweep"])
def test_help_of_runs(verb: str, cli: Cli) -> None:
    """The help lists the flags; after the name of a preset, with its defaults."""
    assert cli(verb, "--help") == 0
    assert f"mrdc {verb} NAME --data DATA" in " ".join(cli.out.split())
    flags = ("--phases", "--memory.quality", "--train.epochs", "--set", "--plugin", "--skip-bad")
    assert all(flag in cli.out for flag in flags)
    assert cli(verb, "cub-25-podnet-mrdc", "--help") == 0
    out = " ".join(cli.out.split())
    assert f"mrdc {verb} cub-25-podnet-mrdc" in out
    assert "(default: 25)" in out and "(default: 94)" in out


@pytest.mark.parametrize("where", ["--version", "run --version", "pack x --budget 3 --version"])
def test_version_anywhere(where: str, cli: Cli) -> None:
    assert cli(*where.split()) == 0
    assert cli.out.startswith("mrdc 0.") and cli.out.count("\n") == 1


@pytest.mark.parametrize("command", ["", "run lucir", "sweep lucir"])
def test_completion(command: str, cli: Cli) -> None:
    assert cli(*command.split(), "--tyro-print-completion", "bash") == 0
    assert "Bash completion for mrdc" in cli.out


QUICK = """--help; --version; plan --help; plan nope --budget 3/class; plan nope --budget plenty
    list; list presets; run --help; run lucir --help; run cub-5-lucir-mrdc --help; run lucyr
    sweep lucir --help; study --help; info M; audit M; export M -o O"""


def test_quick_answers_do_not_import_torch(memory: Path, tmp_path: Path) -> None:
    places = {"M": str(memory), "O": str(tmp_path / "o")}
    lines = re.split("[;\\n]", QUICK)
    given = [[places.get(word, word) for word in line.split()] for line in lines]
    code = (
        "import sys, mrdc.cli.main\n"
        f"for words in {given!r}:\n"
        "    code = mrdc.cli.main.main(words)\n"
        "    assert code == 2 * bool({'nope', 'lucyr'} & set(words)), words\n"
        "    assert 'torch' not in sys.modules, words\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# Lists


def test_list_names_methods_and_presets(cli: Cli) -> None:
    """Recipes come first; `list presets` shows all presets."""
    names = cli.json("list")
    assert set(names) == {"methods", "codecs", "selectors", "datasets", "presets", "studies"}
    assert names["methods"] == [*METHODS, *SCENE_METHODS]
    recipes = [*recipe_names(), *scene_recipe_names()]
    assert names["presets"] == [*recipes, *preset_names()]
    assert {"textures", "shapes"} <= set(names["datasets"]) and "jpeg" in names["codecs"]
    assert cli.json("list", "presets") == {"presets": names["presets"]}
    assert cli("list") == 0
    more = len(names["presets"]) - len(recipes)
    assert "lucir-mrdc" in cli.out
    assert f"and {more} with data and phases (`mrdc list presets`)" in " ".join(cli.out.split())
    assert "unknown list 'preset'" in cli.refused("list", "preset")


def test_list_presets(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line each, with the paper's number."""
    monkeypatch.setenv("COLUMNS", "200")
    assert cli("list", "presets") == 0
    rows = {line.split()[0]: line for line in cli.out.splitlines()}
    assert set(rows) == {"name", *recipe_names(), *scene_recipe_names(), *preset_names()}
    assert "46.68" in rows["cub-5-lucir-mrdc"] and "20/class, 94" in rows["cub-5-lucir-mrdc"]
    assert "none" in rows["finetune"]
    monkeypatch.delenv("COLUMNS")  # a pipe has room for long names
    assert cli("list", "presets") == 0
    names = {line.split()[0] for line in cli.out.splitlines()}
    assert {"textures-lucir-aanets-mrdc", "soda10m-unbiased-teacher-mrdc"} <= names


# Mistakes


@pytest.mark.parametrize("verb", ["run", "sweep"])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("", "takes a recipe or preset first"),
        (
            "--json",
            "takes a recipe or preset first, as in: mrdc {} lucir-relaxed-mrdc --data FOLDER",
        ),
        ("--data textures lucir", "takes a recipe or preset first"),
        ("lucyr", "did you mean 'lucir'?"),
        ("lucyr --help", "did you mean 'lucir'?"),
        ("cub-6-lucir --data x", "unknown preset 'cub-6-lucir': `mrdc list presets`"),
        ("gone.toml", "gone.toml: no such file"),
    ],
)
def test_unknown_names_are_refused(verb: str, arguments: str, message: str, cli: Cli) -> None:
    assert message.format(verb) in cli.refused(verb, *arguments.split())


# Output and interruptions


def test_readers_may_go_away(memory: Path) -> None:
    """`mrdc info | head -1`, a closed standard output, and a full disk."""
    for shell in ("info M | true", "--help | true", "info M >&-", "list >&-"):
        line = f"set -o pipefail; {sys.executable} -m mrdc {shell.replace('M', str(memory), 1)}"
        done = subprocess.run(["bash", "-c", line], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, ""), shell
    if Path("/dev/full").exists():
        line = f"{sys.executable} -m mrdc info {memory} --json >/dev/full"
        done = subprocess.run(["bash", "-c", line], capture_output=True, text=True)
        assert (done.returncode, "Traceback" in done.stderr) == (2, False)


SLOW = """
import time
from pathlib import Path
from mrdc.codec import CODECS, Jpeg

class Slow(Jpeg):
    name = "slow"

    def encode(self, image, quality=None):
        Path("encoding").touch()
        time.sleep(0.5)
        return super().encode(image, quality)

CODECS["slow"] = Slow()
"""


@pytest.mark.parametrize("signals", [["SIGINT"], ["SIGHUP"], ["SIGINT", "SIGTERM"]])
def test_ctrl_c_leaves_nothing_behind(signals: list[str], photos: Path, tmp_path: Path) -> None:
    """While packing with a slow codec; a second signal ends it without a message."""
    (tmp_path / "slow.py").write_text(SLOW)
    paths = [str(tmp_path), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    before = {path.name for path in tmp_path.iterdir()}
    command = [sys.executable, "-m", "mrdc", "pack", str(photos), "--budget", "1GB", "-o", "m"]
    flags = ["--plugin", "slow", "--codec", "slow", "--quality", "50"]
    with subprocess.Popen(
        [*command, *flags, "--select", "random_choice"],
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1"},
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # the tests may be nohup's
    ) as process:
        until((tmp_path / "encoding").exists)
        for name in signals:
            process.send_signal(getattr(signal, name))
            time.sleep(0.1)
        _, err = process.communicate(timeout=60)
    allowed = ["mrdc: interrupted: no file is half-written\n", ""][: len(signals)]
    codes = [130, -signal.SIGTERM][: len(signals)]  # Python has no handlers while it shuts down
    assert process.returncode in codes and err in allowed
    assert {path.name for path in tmp_path.iterdir()} == {*before, "encoding"}


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("can't start new thread"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
        ImportError("libtorch.so: failed to map segment from shared object"),
    ],
)
def test_too_little_memory_is_one_line(
    error: Exception, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds wherever the error occurs."""

    def fail(*arguments: object) -> int:
        raise error

    monkeypatch.setitem(VERBS, "list", fail)
    assert "not enough memory" in cli.refused("list")


def test_other_faults_are_not_hidden(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug of ours keeps its traceback."""

    def fail(*arguments: object) -> int:
        raise RuntimeError("a fault")

    monkeypatch.setitem(VERBS, "list", fail)
    with pytest.raises(RuntimeError, match="a fault"):
        cli("list")
