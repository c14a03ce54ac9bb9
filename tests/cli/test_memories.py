"""`plan`, `pack`, `info`, `audit` and `export`."""

import json
import os
import stat
import time
from contextlib import suppress
from pathlib import Path

import pytest
from PIL import Image
from torchvision.datasets import ImageFolder

from mrdc._utils.files import sweep
from mrdc._utils.text import count, ratio, span
from mrdc.cli.main import Screen
from mrdc.data import open_images
from mrdc.memory.export import export, safe_names
from mrdc.memory.replay import ReplayMemory
from mrdc.memory.stored import open_memory
from tests.cli.conftest import FAST
from tests.conftest import jpeg
from tests.memory.test_scenes import road as road
from tests.processes import Cli


def test_plan_for_people(photos: Path, cli: Cli) -> None:
    """One row per candidate, the budget in originals, and the choice in a sentence."""
    assert cli("plan", photos, "--budget", "4/class", "--quality", "80", "30") == 0
    assert "3 classes, 24 images" in cli.out and "12 originals" in cli.out
    rows = [line for line in cli.out.splitlines() if line.startswith("jpeg ")]
    assert [row.split()[:2] for row in rows] == [["jpeg", "80"], ["jpeg", "30"]]
    assert "images" in cli.out.partition(rows[-1])[2]


def test_plan_and_pack_agree(photos: Path, tmp_path: Path, cli: Cli) -> None:
    """Plan writes nothing, and measures R_q with any selector."""
    flags = [photos, "--budget", "4/class", "--quality", "80", "30"]
    plan = cli.json("plan", *flags)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "photos"]
    packed = cli.json("pack", *flags, "-o", tmp_path / "m")
    assert packed["plan"]["chosen"] == plan["chosen"]
    assert packed["items"] == plan["chosen"]["quantity"]
    plan = cli.json("plan", photos, "--budget", "4/class", *FAST)
    assert plan["candidates"][1]["volume_ratio"] > 0


def test_info_and_audit(memory: Path, cli: Cli) -> None:
    """As JSON and as text; the file has ordinary permissions."""
    audit = cli.json("audit", memory)
    assert set(audit) == {"ok", "items", "payload_bytes", "budget_bytes", "file_bytes", "problems"}
    assert audit["ok"] is True
    info = cli.json("info", memory)
    assert (info["items"], info["codec"], info["quality"]) == (audit["items"], "jpeg", 50)
    assert info["payload_bytes"] == audit["payload_bytes"]
    for command in ("info", "audit"):
        assert cli(command, memory) == 0
        assert "images" in cli.out
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(memory.stat().st_mode) == 0o666 & ~mask


def test_numbers_for_people() -> None:
    assert count(11_435.7, "original") == "11,435.7 originals"
    assert count(1, "class") == "1 class" and count(2000, "box") == "2,000 boxes"
    assert span(8, 1000) == "8 to 1,000" and span(10, 10) == "10"
    assert (ratio(0.7661), ratio(100.5)) == ("0.766", "> 100")
    assert (ratio(1.02, 0.0041), ratio(1.02, float("nan"))) == ("1.020 +- 0.004", "1.020 +- ?")


def test_boxes(road: Path, tmp_path: Path, cli: Cli) -> None:
    """Their number, their classes, and the ones left out."""
    flags = ["--budget", "1MB", "--quality", "50"]
    assert cli("pack", road, *flags, "-o", tmp_path / "a") == 0
    assert "19 boxes of 2 classes; 1 below 1 pixel left out; 1 crowd region left out" in cli.out
    assert "19 boxes held" in cli.out
    assert cli("info", tmp_path / "a") == 0
    assert "19 of 2 classes (cat, dog)" in cli.out and "per class" not in cli.out
    about = cli.json("info", tmp_path / "a")
    assert (about["boxes"], about["box_classes"]) == (19, ["cat", "dog"])
    assert about["notes"]["select"] == "random_choice"
    assert cli.json("audit", tmp_path / "a")["ok"] is True
    packed = cli.json("pack", road / "train.json", *flags, "-o", tmp_path / "b")
    assert packed["boxes"]["held"] == 19


# Export


def test_export_to_a_folder_that_torchvision_reads(memory: Path, tmp_path: Path, cli: Cli) -> None:
    """Class folders of image files, and a manifest; it overwrites nothing."""
    assert cli("export", memory, "-o", tmp_path / "out") == 0
    held = ReplayMemory.load(memory)
    folder = ImageFolder(tmp_path / "out")
    assert folder.classes == ["class0", "class1", "class2"]
    assert [label for _, label in folder.samples] == held.targets.tolist()
    files = [Path(path).read_bytes() for path, _ in folder.samples]
    assert files == [held.encoded(i) for i in range(len(held))]
    lines = (tmp_path / "out" / "manifest.csv").read_text().splitlines()
    assert lines[0] == "file,label,class,rank,source,scale"
    assert lines[1].startswith("class0/000000.jpg,0,class0,0,class0/")
    assert "exists" in cli.refused("export", memory, "-o", tmp_path / "out")


def test_a_killed_export_is_swept_by_the_next(memory: Path, tmp_path: Path) -> None:
    """The unfinished folder of a live export and the user's files stay."""
    out, mine = tmp_path / "out", tmp_path / ".out.old.tmp"
    mine.mkdir()
    child = os.fork()
    if child == 0:
        with suppress(BaseException):
            export(open_memory(memory), out, progress=lambda count: os._exit(9))
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    (left,) = tmp_path.glob(".out.????????.tmp")
    for folder in (left, mine):
        os.utime(folder, (0, 0))

    def meanwhile(count: int) -> None:
        (live,) = tmp_path.glob(".out.????????.tmp")
        os.utime(live, (0, 0))
        sweep(out)
        assert live.exists() and live != left

    export(open_memory(memory), out, progress=meanwhile)
    assert {path.name for path in tmp_path.glob("*out*")} == {"out", mine.name}


def test_exported_files_of_every_kind_are_found_again(tmp_path: Path) -> None:
    """Grey and coloured netpbm files, too."""
    memory = ReplayMemory("100kB", "original")
    memory.add({0: [b"P5 2 1 255\n" + bytes(2), b"P6 2 1 255\n" + bytes(6), jpeg(1)]})
    memory.save(tmp_path / "m.mrdc")
    export(open_memory(tmp_path / "m.mrdc"), tmp_path / "out")
    assert len(open_images(tmp_path / "out").all_photos) == 3


def test_export_to_a_tar_that_pack_reads_again(memory: Path, tmp_path: Path, cli: Cli) -> None:
    """WebDataset: image, .cls and .json by key."""
    tar = tmp_path / "out.tar"
    assert cli("export", memory, "-o", tar, "--format", "webdataset") == 0
    again = cli.json("pack", tar, "--budget", "1MB", "-o", tmp_path / "b", *FAST)
    first, second = ReplayMemory.load(memory), ReplayMemory.load(tmp_path / "b")
    assert again["items"] == len(first) and again["ignored"] == []
    assert second.class_names == first.class_names


SEARCH = ["--quality", "50", "25"]  # needs a network
HOSTILE = ["../../x", "<script>alert(1)</script>", "[red]x", "a\nb", "..", "COM1/x"]
HOSTILE += ["x?", "0000_x_", "0001_x_", "manifest.csv", "X?", "鳥" * 100]


def test_hostile_class_names_do_no_harm(photos: Path, tmp_path: Path, cli: Cli) -> None:
    """They stay inside the export folder, do not collide, and are spelled in full in the file."""
    images = [f"class{n // 8}/{n % 8:02d}.jpg" for n in range(len(HOSTILE))]
    rows = [f'{image},"{name}"' for image, name in zip(images, HOSTILE, strict=True)]
    (photos / "list.csv").write_text("\n".join(rows))
    out, packed = tmp_path / "safe" / "deep" / "out", tmp_path / "m"
    out.parent.mkdir(parents=True)
    found = cli.json("pack", photos / "list.csv", "--budget", "1MB", "-o", packed, *FAST)
    assert found["items"] == len(HOSTILE)
    assert set(ReplayMemory.load(packed).class_names.values()) == set(HOSTILE)
    for command in (["info"], ["audit"], ["export", "-o", out]):
        assert cli(command[0], packed, *command[1:]) == 0
    files = [p for p in (tmp_path / "safe").rglob("*") if p.is_file()]
    assert all(out in file.parents for file in files)
    assert len({file.parent for file in files}) == len(HOSTILE) + 1
    assert len(files) == len(HOSTILE) + 1


def test_a_class_without_a_name_has_a_folder() -> None:
    assert safe_names(["a", "", "0001_"]) == ["a", "0001_", "0002_0001_"]


def test_odd_bytes_in_names_do_not_reach_the_terminal(
    photos: Path, tmp_path: Path, cli: Cli
) -> None:
    """Escape sequences, and bytes that are not UTF-8."""
    for name in (b"\x1b[31mred", b"caf\xe9"):
        os.rename(os.fsencode(photos) + b"/class0", os.fsencode(photos) + b"/" + name)
        out = tmp_path / f"m{len(name)}"
        assert cli("pack", photos, "--budget", "1MB", "-o", out, *FAST) == 0
        assert cli("info", out) == 0
        assert "\x1b[31m" not in cli.out
        assert cli("export", out, "-o", tmp_path / f"e{len(name)}") == 0
        os.rename(os.fsencode(photos) + b"/" + name, os.fsencode(photos) + b"/class0")


def test_brackets_in_names_are_printed_as_they_are(photos: Path, tmp_path: Path, cli: Cli) -> None:
    """Rich would take brackets, of one name or of two together, for markup or an emoji."""
    (photos / "class0").rename(photos / "a[")
    (photos / "class1").rename(photos / "[red]:smile:")
    for stray in ("n.txt", "].txt"):
        (photos / stray).touch()
    assert cli("pack", photos, "--budget", "1MB", "-o", tmp_path / "[m]", *FAST) == 0
    assert "Wrote" in cli.out and "[m]:" in cli.out and "].txt" in cli.out
    assert cli("info", tmp_path / "[m]") == 0
    assert "[red]:smile:  8 images" in cli.out
    assert cli("report", photos) == 2


def test_a_long_name_is_printed_at_once(cli: Cli) -> None:
    """Highlighting it would take half a minute."""
    start = time.monotonic()
    Screen().print("Ignored: " + "1" * 20_000)
    assert time.monotonic() - start < 5


# Refusals


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("NOWHERE --budget 5/class", "no such folder or file"),
        ("EMPTY --budget 5/class", "has no class folders"),
        ("PHOTOS --budget plenty", "invalid budget 'plenty'"),
        ("PHOTOS --budget 90B", "class 'class"),
        ("PHOTOS --budget 5/class --codec gif", "unknown codec 'gif'"),
        ("PHOTOS --budget 5/class --select x", "unknown selector 'x'"),
        ("PHOTOS --budget 5/class --embed x", "unknown embed 'x'"),
        ("PHOTOS --budget 5/class --exact --volume ridge", "--exact"),
        ("PHOTOS --budget 60kB --threads -3", "--threads must be 1 or more, got -3"),
    ],
)
def test_plan_refuses(arguments: str, message: str, photos: Path, tmp_path: Path, cli: Cli) -> None:
    """One line, exit code 2, and nothing on standard output."""
    (tmp_path / "empty").mkdir()
    places = {"PHOTOS": photos, "EMPTY": tmp_path / "empty", "NOWHERE": tmp_path / "nowhere"}
    assert message in cli.refused("plan", *(places.get(a, a) for a in arguments.split()))


def damage(photos: Path, kind: str) -> str:
    """Damage one file; returns its name."""
    file = photos / "class1" / "03.jpg"
    if kind == "bomb":
        Image.new("1", (30_000, 30_000)).save(file, "PNG")
    elif kind == "gone":
        file.unlink()
        file.symlink_to(photos / "nowhere")
    else:
        contents = {"text": b"not an image", "empty": b"", "cut": jpeg(103)[:450]}
        file.write_bytes(contents[kind])
    return "class1/03.jpg"


@pytest.mark.parametrize(
    ("kind", "flags"),
    [*((kind, FAST) for kind in ("text", "empty", "cut", "bomb", "gone")), ("cut", SEARCH)],
)
def test_bad_files_are_refused_or_skipped(
    kind: str, flags: list[str], photos: Path, tmp_path: Path, cli: Cli
) -> None:
    """They are named; with --skip-bad the rest is packed, and the memory lists them, too."""
    name = damage(photos, kind)
    command = ["pack", photos, "--budget", "1MB", "-o", tmp_path / "m", *flags]
    assert name in cli.refused(*command)
    assert not (tmp_path / "m").exists()
    result = cli.json(*command, "--skip-bad")
    assert len(result["skipped"]) == 1 and name in result["skipped"][0]
    assert ReplayMemory.load(tmp_path / "m").notes["skipped"] == result["skipped"]
    assert result["items"] == 23


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_files_without_permission(photos: Path, cli: Cli) -> None:
    (photos / "class0" / "00.jpg").chmod(0)
    assert "class0/00.jpg: cannot be read" in cli.refused("plan", photos, "--budget", "1MB")


def test_a_damaged_memory_is_refused_and_audited(memory: Path, tmp_path: Path, cli: Cli) -> None:
    """A flipped byte in an image: audit finds it, export refuses it. A cut file: all refuse it."""
    data = bytearray(memory.read_bytes())
    data[-100] ^= 4
    memory.write_bytes(data)
    assert cli("audit", memory) == 2
    assert "1 problem" in cli.out
    assert cli("audit", memory, "--json") == 2
    assert json.loads(cli.out)["ok"] is False
    export = ["export", memory, "-o", tmp_path / "out"]
    assert "does not match its SHA-256" in cli.refused(*export)
    memory.write_bytes(data[:-1])
    for command in (["info", memory], export):
        assert "cut short, as the arrays take" in cli.refused(*command)
    assert not (tmp_path / "out").exists()
    for verb in ("info", "audit"):
        assert "no such memory file" in cli.refused(verb, tmp_path / "no.mrdc")


def test_pack_replaces_memories_only(memory: Path, photos: Path, cli: Cli) -> None:
    """With --force; it never replaces an input, a folder or a device, nor creates a folder."""
    command = ["pack", photos, "--budget", "1MB", *FAST, "-o"]
    for victim in (photos / "class0" / "00.jpg", photos, Path(os.devnull)):
        err = cli.refused(*command, victim, "--force")
        assert "exists and is not a memory file; choose another path" in err
    assert "--force" in cli.refused(*command, memory)
    assert "no folder" in cli.refused(*command, memory.parent / "no" / "m")
    exact = cli.refused(*command, memory.parent / "new", "--exact")
    assert "--exact compares candidates: allow more than one --quality or --codec" in exact


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("--quality 50", "--report shows a choice"),
        ("--report nowhere/p.html", "no folder nowhere"),
        ("--report p.txt", "must end in .html"),
        ("-o same.html --report same.html", "is the memory file; choose another path"),
    ],
)
def test_an_impossible_page_is_refused_before_packing(
    more: str, message: str, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    monkeypatch.chdir(tmp_path)
    given = ["pack", photos, "--budget", "60kB", "-o", "a.mrdc", "--report", "p.html"]
    assert message in cli.refused(*given, *more.split())
    assert {path.name for path in tmp_path.iterdir()} <= {"photos", "cache"}


def test_fading(photos: Path, tmp_path: Path, cli: Cli) -> None:
    """`rebudget` cuts scans of a memory that fades, and `info` says how many are left."""
    memory, flags = tmp_path / "m", [photos, "--budget", "1MB", "--quality", "50"]
    progressive = ["--codec", "jpeg-progressive", "--select", "random_choice"]
    packed = cli.json("pack", *flags, *progressive, "-o", memory)
    assert cli.json("info", memory)["scans"] == {"10": packed["items"]}
    less = f"{packed['file_bytes'] * 4 // 5}"
    dropped = cli.json("rebudget", memory, less, "-o", tmp_path / "dropped")
    faded = cli.json("rebudget", memory, less, "--fade")
    assert dropped["items"] < faded["items"] == packed["items"]
    assert faded["file_bytes"] <= int(less)
    info = cli.json("info", memory)
    assert info["scans"] == faded["scans"] and info["fade"] is True
    assert cli("info", memory) == 0 and "of 10 on average" in cli.out
    for quality in (["50"], ["50", "40"]):  # given, or searched; the notes of a search need room
        share = ["--budget", f"{packed['file_bytes'] * 4 // 5 + 1000 * (len(quality) - 1)}"]
        made = [*share, "--quality", *quality, *progressive, "--epsilon", "9", "--fade"]
        found = cli.json("pack", photos, *made, "--force", "-o", memory)
        assert found["items"] == packed["items"]
        assert found["scans"] == cli.json("info", memory)["scans"]
        assert min(map(int, cli.json("info", memory)["scans"])) < 10
    assert cli("pack", *flags, "--fade", "-o", tmp_path / "plain") == 2
    assert "--fade cuts scans of codec jpeg-progressive, which jpeg does not have" in cli.err
    assert not (tmp_path / "plain").exists()
