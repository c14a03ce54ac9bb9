"""Flags, grids, budgets and TOML files with absurd values."""

from pathlib import Path
from random import Random

from tests.campaign.harness import Area, Case, command

VALUES = (
    "0", "-1", "1", "3", "1e308", "-1e308", "1e999", "nan", "inf", "9" * 400, "", " ", "x", "[b]",
    "é", "true", "[1, 2]", "[" * 3000, "{}", "a=b", "=", ",,,", "original", "50",
    "auto", "None", "../..", "x" * 3000,
)  # fmt: skip
FLAGS = (
    "train.lr", "train.epochs", "train.batch-size", "train.momentum", "memory.budget",
    "memory.quality", "memory.qualities", "memory.codec", "memory.select", "memory.epsilon",
    "phases", "seed", "size", "network", "stem", "first", "order", "set", "threads", "nothing",
)  # fmt: skip
PLAN = ("budget", "quality", "codec", "select", "embed", "epsilon", "rule", "threads", "seed")
TOMLS = (
    "recipe = {v}\n", "{f} = {v}\n", "[train]\nlr = {v}\n", "[memory]\nbudget = {q}\n", "[{f}]\n",
    "a = " + "[" * 3000 + "\n", "seed = {v}\nseed = 1\n", "x = {q}\n", "\0", "options = {v}\n",
)  # fmt: skip


def write_toml(path: Path, random: Random) -> Path:
    lines = ['recipe = "lucir"\n'] if random.random() < 0.7 else []
    for _ in range(random.randint(1, 3)):
        value, flag = random.choice(VALUES), random.choice(FLAGS).replace("-", "_")
        quoted = '"' + value.replace('"', "").replace("\x1b", "") + '"'
        lines.append(random.choice(TOMLS).replace("{v}", value).replace("{q}", quoted))
        lines[-1] = lines[-1].replace("{f}", flag.split(".")[-1])
    path.write_text("".join(lines), errors="replace")
    return path


def prepare(folder: Path) -> Case:
    nowhere = folder / "nowhere"

    def flags(names: tuple[str, ...], random: Random) -> list[str]:
        chosen = [
            (random.choice(names), random.choice(VALUES)) for _ in range(random.randint(1, 3))
        ]
        return [part for flag, value in chosen for part in (f"--{flag}", value)]

    def case(random: Random) -> None:
        kind = random.choice(("plan", "run", "toml", "sweep"))
        if kind == "plan":
            command("plan", nowhere, *flags(PLAN, random))
        elif kind == "run":
            command("run", "lucir-mrdc", "--data", nowhere, *flags(FLAGS, random))
        elif kind == "toml":
            command("run", write_toml(folder / "a.toml", random), "--data", nowhere)
        else:
            axis = f"{random.choice(FLAGS)}={random.choice(VALUES)},{random.choice(VALUES)}"
            grid = random.choice((axis, random.choice(VALUES), f"nothing={random.choice(VALUES)}"))
            command("sweep", "nothing", "--data", nowhere, "--grid", grid)

    return case


AREA = Area("settings", prepare)
