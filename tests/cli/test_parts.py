"""Commands with memories in parts."""

import json
from pathlib import Path

import pytest

from mrdc._utils.files import Opened, try_lock
from mrdc.memory.manifest import MANIFEST
from mrdc.memory.replay import ReplayMemory
from tests.cli.conftest import FAST
from tests.conftest import jpeg
from tests.processes import Cli

RANDOM = ["--select", "random_choice"]


@pytest.fixture
def folder(photos: Path, tmp_path: Path, cli: Cli) -> Path:
    """A memory of three classes in two parts or more."""
    for number in range(600):
        (photos / "class1" / f"more{number}.jpg").write_bytes(jpeg(5000 + number, 95, 12, 12))
    flags = ["--budget", "80kB", "--part-size", "25kB", *FAST]
    found = cli.json("pack", photos, *flags, "-o", tmp_path / "m")
    files = list((tmp_path / "m").iterdir())
    assert len(files) > 2 and found["file_bytes"] == sum(f.stat().st_size for f in files) <= 80_000
    return tmp_path / "m"


def test_every_command_takes_a_folder(folder: Path, tmp_path: Path, cli: Cli) -> None:
    """info, audit, export, merge, rebudget, add and remove, as JSON and in words."""
    info, audit = cli.json("info", folder), cli.json("audit", folder)
    assert (info["parts"], info["part_size"]) == (len(list(folder.glob("*.mrdc"))), 25_000)
    assert audit["ok"] and audit["file_bytes"] == info["file_bytes"] <= info["budget_bytes"]
    assert cli("info", folder) == 0 and f"{info['parts']} of at most 25" in cli.out
    assert cli.json("export", folder, "-o", tmp_path / "out.tar")["items"] == info["items"]
    one = cli.json("merge", folder, folder, "-o", tmp_path / "both", "--part-size", "30kB")
    assert cli.json("info", tmp_path / "both")["items"] == one["items"]
    assert cli.json("rebudget", folder, "60kB")["items"] < info["items"]
    assert cli.json("remove", folder, "class0")["removed"] == ["class0"]
    owls = tmp_path / "more" / "owl"
    owls.mkdir(parents=True)
    (owls / "0.jpg").write_bytes(jpeg(9))
    cli.json("add", folder, tmp_path / "more", *RANDOM)
    assert ReplayMemory.load(folder).classes == ["class1", "class2", "owl"]
    assert cli.json("audit", folder)["ok"]


def test_wrong_outputs_change_nothing(folder: Path, photos: Path, tmp_path: Path, cli: Cli) -> None:
    """A file and a folder do not replace each other, and neither replaces anything else."""
    pack = ["pack", photos, "--budget", "1MB", *FAST, "-o"]
    parts = ["--part-size", "1MB"]
    before = {file: file.read_bytes() for file in folder.iterdir()}
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.txt").touch()
    assert "pass --force to replace it" in cli.refused(*pack, folder, *parts)
    assert "would be one file (see --part-size)" in cli.refused(*pack, folder, "--force")
    assert "is not a memory file" in cli.refused(*pack, tmp_path / "other", *parts, "--force")
    assert "invalid size 'big'" in cli.refused(*pack, tmp_path / "n", "--part-size", "big")
    too_small = cli.refused(*pack, tmp_path / "n", "--part-size", "1kB")
    assert "part size 1,000 is too small" in too_small and not (tmp_path / "n").exists()
    held = Opened(folder)
    assert try_lock(held)
    refused = cli.refused(*pack, folder, *parts, "--force")
    assert "m: another process is writing this memory; wait for it to finish" in refused
    held.close()
    assert {file: file.read_bytes() for file in folder.iterdir()} == before


def test_an_interrupted_pack_is_repeated(photos: Path, tmp_path: Path, cli: Cli) -> None:
    """A folder with parts but no manifest is not a memory, and does not get in the way."""
    left = tmp_path / "m" / "part-00000-0123456789ab.mrdc"
    left.parent.mkdir()
    left.write_text("unfinished")
    assert "no manifest.json" in cli.refused("info", left.parent)
    flags = ["--budget", "4/class", "--part-size", "1MB", *FAST]
    assert cli("pack", photos, *flags, "-o", left.parent) == 0
    names = [part["file"] for part in json.loads((left.parent / MANIFEST).read_text())["parts"]]
    assert sorted(file.name for file in left.parent.iterdir()) == [MANIFEST, *names]
