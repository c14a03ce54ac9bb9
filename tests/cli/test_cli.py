"""The command line as a stranger meets it."""

import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from mrdc._utils.text import count, span
from mrdc.cli.main import main
from mrdc.memory.replay import ReplayMemory
from tests.conftest import jpeg
from tests.processes import until

FAST = ["--select", "random_choice", "--quality", "50"]  # needs no network


def run(*arguments: object) -> int:
    """Exit code of a command; argument errors exit too."""
    try:
        return main([str(argument) for argument in arguments])
    except SystemExit as stop:
        return int(stop.code or 0)


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The one line that a refused command says."""
    assert run(*arguments) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("mrdc: ")
    assert said.err.count("\n") == 1
    return said.err


@pytest.fixture
def memory(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert run("pack", photos, "--budget", "4/class", "-o", tmp_path / "a.mrdc", *FAST) == 0
    capsys.readouterr()
    return tmp_path / "a.mrdc"


def said(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    """The JSON object that a command prints, alone."""
    assert run(*arguments, "--json") == 0
    out, err = capsys.readouterr()
    assert err == ""
    result: dict[str, Any] = json.loads(out)
    return result


# What works


def test_plan_tells_people(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A row a candidate, the budget three ways, the choice in a sentence."""
    assert run("plan", photos, "--budget", "4/class", "--quality", "80", "30") == 0
    out = capsys.readouterr().out
    assert "3 classes, 24 images" in out
    assert "12 originals" in out
    assert [line.split()[:2] for line in out.splitlines()[3:6]][1:] == [
        ["jpeg", "80"],
        ["jpeg", "30"],
    ]
    assert "images" in out.splitlines()[6]


def test_plan_and_pack_print_one_json_object(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And agree with each other; plan writes nothing."""
    plan = said(capsys, "plan", photos, "--budget", "4/class", "--quality", "80", "30")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "photos"]
    flags = ["--budget", "4/class", "--quality", "80", "30", "-o", tmp_path / "m"]
    packed = said(capsys, "pack", photos, *flags)
    assert packed["plan"]["chosen"] == plan["chosen"]
    assert packed["items"] == plan["chosen"]["quantity"]


def test_info_audit_and_list_print_json(memory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the fields of the design."""
    audit = said(capsys, "audit", memory)
    assert set(audit) == {"ok", "items", "payload_bytes", "budget_bytes", "file_bytes", "problems"}
    assert audit["ok"] is True
    info = said(capsys, "info", memory)
    assert (info["items"], info["codec"], info["quality"]) == (audit["items"], "jpeg", 50)
    assert info["payload_bytes"] == audit["payload_bytes"]
    names = said(capsys, "list")
    assert set(names) == {"methods", "codecs", "selectors", "datasets", "presets", "studies"}
    assert "jpeg" in names["codecs"]


def test_numbers_are_told_in_full() -> None:
    """And ranges of one number as that number."""
    assert count(11_435.7, "original") == "11,435.7 originals"
    assert count(1, "class") == "1 class" and count(2000, "box") == "2,000 boxes"
    assert span(8, 1000) == "8 to 1,000" and span(10, 10) == "10"


@pytest.mark.parametrize("command", ["info", "audit"])
def test_info_and_audit_tell_people(
    memory: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """In words."""
    assert run(command, memory) == 0
    assert "images" in capsys.readouterr().out


def test_export_to_a_folder_that_torchvision_reads(memory: Path, tmp_path: Path) -> None:
    """Class folders of image files, and a manifest."""
    from torchvision.datasets import ImageFolder

    assert run("export", memory, "-o", tmp_path / "out") == 0
    held = ReplayMemory.load(memory)
    folder = ImageFolder(tmp_path / "out")
    assert folder.classes == ["class0", "class1", "class2"]
    assert [label for _, label in folder.samples] == held.targets
    assert [Path(path).read_bytes() for path, _ in folder.samples] == [
        held.encoded(i) for i in range(len(held))
    ]
    lines = (tmp_path / "out" / "manifest.csv").read_text().splitlines()
    assert lines[0] == "file,label,class,rank,source"
    assert lines[1].startswith("class0/000000.jpg,0,class0,0,class0/")


def test_export_to_a_tar_that_pack_reads_again(
    memory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """WebDataset: image, .cls and .json by key."""
    assert run("export", memory, "-o", tmp_path / "out.tar", "--format", "webdataset") == 0
    capsys.readouterr()
    again = said(
        capsys, "pack", tmp_path / "out.tar", "--budget", "1MB", "-o", tmp_path / "b", *FAST
    )
    first, second = ReplayMemory.load(memory), ReplayMemory.load(tmp_path / "b")
    assert again["items"] == len(first) and again["ignored"] == []
    assert second.class_names == first.class_names


def test_a_pipe_has_room_for_long_names() -> None:
    """Names that are cut cannot be copied."""
    command = [sys.executable, "-m", "mrdc", "list", "presets"]
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    out = subprocess.run(command, capture_output=True, text=True, env=environment).stdout
    names = {line.split()[0] for line in out.splitlines()}
    assert {"textures-lucir-aanets-mrdc", "soda10m-unbiased-teacher-mrdc"} <= names


def test_help_names_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    """On the first screen."""
    assert run("--help") == 0
    out = capsys.readouterr().out
    assert all(name in out for name in ("plan", "pack", "info", "audit", "export", "list"))
    assert run("--version") == 0
    assert capsys.readouterr().out.startswith("mrdc 0.")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["plan", "--help"],
        ["list"],
        ["list", "presets"],
        ["run", "--help"],
        ["run", "lucir", "--help"],
        ["run", "cub-5-lucir-mrdc", "--help"],
        ["sweep", "--help"],
        ["sweep", "lucir", "--help"],
        ["info", "M"],
        ["audit", "M"],
        ["export", "M", "-o", "O"],
    ],
)
def test_what_needs_no_torch_does_not_import_it(
    memory: Path, arguments: list[str], tmp_path: Path
) -> None:
    """Quick answers stay quick."""
    given = [{"M": str(memory), "O": str(tmp_path / "o")}.get(a, a) for a in arguments]
    code = (
        "import sys, mrdc.cli.main\n"
        f"code = mrdc.cli.main.main({given!r})\n"
        "sys.exit(code or 'torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


# What is refused


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["NOWHERE", "--budget", "5/class"], "no such folder or file"),
        (["EMPTY", "--budget", "5/class"], "has no class folders"),
        (["PHOTOS", "--budget", "plenty"], "budget 'plenty' is not one"),
        (["PHOTOS", "--budget", "90B"], "that of class 'class"),
        (["PHOTOS", "--budget", "5/class", "--codec", "gif"], "unknown codec 'gif'"),
        (["PHOTOS", "--budget", "5/class", "--quality", "101"], "from 1 to 100, got 101"),
        (["PHOTOS", "--budget", "5/class", "--select", "x"], "unknown selector 'x'"),
        (["PHOTOS", "--budget", "5/class", "--embed", "x"], "unknown embed 'x'"),
        (["PHOTOS", "--budget", "5/class", "--exact", "--volume", "ridge"], "--exact goes with"),
        (["PHOTOS", "--budget", "5/class", "--epsilon", "0"], "epsilon must be a number above 0"),
    ],
)
def test_plan_refuses(
    arguments: list[str],
    message: str,
    photos: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One line, exit code 2, nothing on standard output."""
    (tmp_path / "empty").mkdir()
    places = {"PHOTOS": photos, "EMPTY": tmp_path / "empty", "NOWHERE": tmp_path / "nowhere"}
    assert message in refused(capsys, "plan", *(places.get(a, a) for a in arguments))


def damage(photos: Path, kind: str) -> str:
    """Spoil one file; its name."""
    file = photos / "class1" / "03.jpg"
    if kind == "text":
        file.write_text("not an image")
    elif kind == "empty":
        file.write_bytes(b"")
    elif kind == "cut":
        file.write_bytes(jpeg(103)[:450])
    elif kind == "bomb":
        Image.new("1", (30_000, 30_000)).save(file, "PNG")
    elif kind == "gone":
        file.unlink()
        file.symlink_to(photos / "nowhere")
    return "class1/03.jpg"


@pytest.mark.parametrize("flags", [[], FAST])
@pytest.mark.parametrize("kind", ["text", "empty", "cut", "bomb", "gone"])
def test_bad_files_are_refused_and_skipped(
    kind: str, flags: list[str], photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By name; with --skip-bad the rest is packed and the file is listed, also in the memory."""
    name = damage(photos, kind)
    command = ["pack", photos, "--budget", "1MB", "-o", tmp_path / "m", *flags]
    assert name in refused(capsys, *command)
    assert not (tmp_path / "m").exists()
    result = said(capsys, *command, "--skip-bad")
    assert len(result["skipped"]) == 1
    assert name in result["skipped"][0]
    assert ReplayMemory.load(tmp_path / "m").notes["skipped"] == result["skipped"]
    assert result["items"] == 23


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_files_without_permission(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Named like other bad files."""
    (photos / "class0" / "00.jpg").chmod(0)
    assert "class0/00.jpg: cannot be read" in refused(capsys, "plan", photos, "--budget", "1MB")


@pytest.mark.parametrize(
    "name", ["../../x", "<script>alert(1)</script>", "[red]x", "a\nb", "..", "COM1/x"]
)
def test_hostile_class_names_do_no_harm(
    name: str, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They stay inside the export folder, and keep their spelling in the manifest."""
    quoted = '"' + name + '"'
    rows = [f"class0/{n:02d}.jpg,{quoted}" for n in range(4)] + [
        f"class1/{n:02d}.jpg,b" for n in range(4)
    ]
    (photos / "list.csv").write_text("\n".join(rows))
    out = tmp_path / "safe" / "deep" / "out"
    out.parent.mkdir(parents=True)
    assert run("pack", photos / "list.csv", "--budget", "1MB", "-o", tmp_path / "m", *FAST) == 0
    for command in ("info", "audit"):
        assert run(command, tmp_path / "m") == 0
    assert run("export", tmp_path / "m", "-o", out) == 0
    files = [p for p in (tmp_path / "safe").rglob("*") if p.is_file()]
    assert len(files) == 9
    assert all(out in file.parents for file in files)
    assert len({file.parent for file in files}) == 3
    assert name in ReplayMemory.load(tmp_path / "m").class_names.values()


def test_a_damaged_memory_is_refused_and_audited(
    memory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A flipped byte in an image: audit finds it, export refuses it; cut: all refuse it."""
    data = bytearray(memory.read_bytes())
    data[-100] ^= 4
    memory.write_bytes(data)
    assert run("audit", memory) == 2
    assert "1 problem" in capsys.readouterr().out
    assert run("audit", memory, "--json") == 2
    assert json.loads(capsys.readouterr().out)["ok"] is False
    assert "does not match its SHA-256" in refused(capsys, "export", memory, "-o", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    memory.write_bytes(data[:-1])
    for command in ("info", "export"):
        flags = ["-o", tmp_path / "out"] if command == "export" else []
        assert "cut short or damaged" in refused(capsys, command, memory, *flags)


def test_missing_memory_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """For every command that reads one."""
    for command in ("info", "audit"):
        assert "no such memory file" in refused(capsys, command, tmp_path / "no.mrdc")


def test_export_does_not_overwrite(
    memory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nor write into a folder that is there."""
    (tmp_path / "out").mkdir()
    assert "exists already" in refused(capsys, "export", memory, "-o", tmp_path / "out")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_json_to_a_full_disk_is_no_traceback(memory: Path) -> None:
    """Standard output that cannot be written to."""
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "mrdc", "info", str(memory), "--json"],
            stdout=full,
            stderr=subprocess.PIPE,
        )
    assert done.returncode == 2
    assert b"Traceback" not in done.stderr


def test_class_names_do_not_collide_in_an_export(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A harmless name made of one class may be the name of another."""
    names = ["x?", "0000_x_", "0001_x_", "manifest.csv", "X?", "鳥" * 100]
    rows = [f"class0/{n:02d}.jpg,{name}" for n, name in enumerate(names)]
    (photos / "list.csv").write_text("\n".join(rows))
    pack = ["pack", photos / "list.csv", "--budget", "1MB", "-o", tmp_path / "m", *FAST]
    assert said(capsys, *pack)["items"] == 6
    assert run("export", tmp_path / "m", "-o", tmp_path / "out") == 0
    files = list((tmp_path / "out").rglob("*.jpg"))
    assert len({file.parent for file in files}) == 6


def test_force_replaces_memories_only(
    memory: Path, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Never an input, a folder or a device."""
    for victim in (photos / "class0" / "00.jpg", photos, Path(os.devnull)):
        command = ["pack", photos, "--budget", "1MB", "-o", victim, "--force", *FAST]
        assert "is no memory file; name another" in refused(capsys, *command)
    assert "exists already; pass --force" in refused(
        capsys, "pack", photos, "--budget", "1MB", "-o", memory, *FAST
    )


def test_plan_measures_whatever_the_selector(
    photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One quality and no need of features to rank: R_q is still asked for."""
    plan = said(capsys, "plan", photos, "--budget", "4/class", *FAST)
    assert plan["candidates"][1]["volume_ratio"] > 0


def test_readers_may_go_away(memory: Path) -> None:
    """`mrdc info | head -1`, and a closed standard output."""
    for shell in ("info M | true", "--help | true", "info M >&-", "list >&-"):
        line = f"set -o pipefail; {sys.executable} -m mrdc {shell.replace('M', str(memory), 1)}"
        done = subprocess.run(["bash", "-c", line], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, ""), shell


def test_odd_bytes_in_names_reach_neither_terminal_nor_crash(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Escape sequences, and bytes that are no UTF-8."""
    for name in (b"\x1b[31mred", b"caf\xe9"):
        os.rename(os.fsencode(photos) + b"/class0", os.fsencode(photos) + b"/" + name)
        out = tmp_path / f"m{len(name)}"
        assert run("pack", photos, "--budget", "1MB", "-o", out, *FAST) == 0
        assert run("info", out) == 0
        assert "\x1b[31m" not in capsys.readouterr().out
        assert run("export", out, "-o", tmp_path / f"e{len(name)}") == 0
        os.rename(os.fsencode(photos) + b"/" + name, os.fsencode(photos) + b"/class0")


def test_a_typo_in_a_flag_exits_with_2(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the argument parser's own words."""
    assert run("plan", photos, "--buget", "5/class") == 2
    assert "--budget" in capsys.readouterr().err


def test_an_unwritable_output_folder(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Said before any work where it can be seen before."""
    said = refused(capsys, "pack", photos, "--budget", "1MB", "-o", tmp_path / "no" / "m", *FAST)
    assert "there is no folder" in said


def test_ctrl_c_leaves_nothing_behind_and_says_so(tmp_path: Path) -> None:
    """In the middle of packing large images with a slow codec."""
    folder, out = tmp_path / "many" / "large", tmp_path / "out"
    folder.mkdir(parents=True)
    out.mkdir()
    for number in range(40):
        (folder / f"{number}.jpg").write_bytes(jpeg(number, 90, 1400, 1400))
    command = [sys.executable, "-m", "mrdc", "pack", str(folder.parent), "--budget", "1GB"]
    flags = ["-o", str(out / "m"), "--codec", "avif", *FAST]
    with subprocess.Popen([*command, *flags], stderr=subprocess.PIPE, text=True) as process:
        until(lambda: any(out.iterdir()))  # it packs
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.strip() == "mrdc: interrupted: nothing was written"
    assert list(out.iterdir()) == []


def test_files_have_ordinary_permissions(memory: Path) -> None:
    """Not the private ones of temporary files."""
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(memory.stat().st_mode) == 0o666 & ~mask


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--quality", "50"], "--report shows a choice"),
        (["--report", "nowhere/p.html"], "there is no folder nowhere"),
        (["--report", "p.txt"], "must end in .html"),
        (["-o", "same.html", "--report", "same.html"], "is the memory file; name another"),
    ],
)
def test_a_page_that_cannot_be_is_refused_before_packing(
    more: list[str], message: str, photos: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """No memory file stays behind."""
    monkeypatch.chdir(tmp_path)
    given_ = ["pack", str(photos), "--budget", "60kB", "-o", "a.mrdc", "--report", "p.html", *more]
    assert main(given_) == 2
    assert message in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} <= {"photos", "cache"}


def test_plan_refuses_threads_before_any_image_is_read(
    photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As `pack` does."""
    assert main(["plan", str(photos), "--budget", "60kB", "--threads", "-3"]) == 2
    assert "--threads must be 1 or more, got -3" in capsys.readouterr().err
