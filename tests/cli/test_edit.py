"""`add`, `remove`, `rebudget` and `merge`."""

import json
from pathlib import Path
from typing import IO

import numpy as np
import pytest
from PIL import Image, ImageOps

from mrdc._utils.files import try_lock
from mrdc.memory.replay import ReplayMemory
from tests.cli.conftest import FAST
from tests.conftest import jpeg
from tests.memory.test_scenes import road as road
from tests.processes import Cli, Moment, Running

RANDOM = ["--select", "random_choice"]


@pytest.fixture
def more(tmp_path: Path) -> Path:
    """More images of class1, and a new class."""
    for name, start in (("class1", 700), ("owl", 800)):
        folder = tmp_path / "more" / name
        folder.mkdir(parents=True)
        for number in range(6):
            (folder / f"{number}.jpg").write_bytes(jpeg(start + number))
    return tmp_path / "more"


def streams(path: Path) -> set[bytes]:
    memory = ReplayMemory.load(path)
    return {memory.encoded(index) for index in range(len(memory))}


def sound(path: Path, cli: Cli) -> None:
    assert cli.json("audit", path)["ok"] is True


def test_images_are_added(memory: Path, more: Path, cli: Cli) -> None:
    """Classes match by name; the memory's own encoding and budget apply."""
    before = cli.json("info", memory)
    found = cli.json("add", memory, more, *RANDOM)
    sound(memory, cli)
    after = ReplayMemory.load(memory)
    assert after.classes == ["class0", "class1", "class2", "owl"]
    assert (after.seen(1), after.seen(3)) == (14, 6)
    assert {"class1/0.jpg", "class1/00.jpg"} <= {*after.sources(1)}
    assert (found["items_before"], found["offered"]) == (before["items"], 12)
    assert found["items"] == len(after) > before["items"]
    assert found["file_bytes"] == memory.stat().st_size
    assert [e["quality"] for e in cli.json("info", memory)["encodings"]] == [50]


def test_new_images_are_ranked_like_those_packed(
    memory: Path, photos: Path, tmp_path: Path, cli: Cli
) -> None:
    """By herding; adding all to an empty memory gives the same result as packing."""
    flags = ["--budget", "4/class", "--quality", "50"]
    cli("pack", photos, *flags, "-o", tmp_path / "packed")
    cli("remove", memory, "class0", "class1", "class2")
    assert cli("add", memory, photos) == 0
    assert "24 images offered" in cli.out
    packed, added = (ReplayMemory.load(path) for path in (tmp_path / "packed", memory))
    assert [packed.sources(n) for n in range(3)] == [added.sources(n) for n in range(3)]


def test_bad_images_are_skipped_and_listed(memory: Path, more: Path, cli: Cli) -> None:
    """Without --skip-bad they are refused, and the file stays unchanged."""
    (more / "owl" / "bad.jpg").write_bytes(b"text")
    before = memory.read_bytes()
    assert cli("add", memory, more, *RANDOM) == 2
    assert "owl/bad.jpg: not an image file" in cli.err
    assert memory.read_bytes() == before
    found = cli.json("add", memory, more, *RANDOM, "--skip-bad")
    assert len(found["skipped"]) == 1 and found["offered"] == 12


def test_classes_are_removed(memory: Path, tmp_path: Path, cli: Cli) -> None:
    """By name or label, in place or into another file; other images are kept."""
    before, output = memory.read_bytes(), tmp_path / "b.mrdc"
    found = cli.json("remove", memory, "class0", "2", "-o", output)
    assert (found["removed"], found["classes"]) == (["class0", "class2"], 1)
    assert memory.read_bytes() == before
    assert streams(output) < streams(memory)
    assert cli("remove", memory, "class0") == 0
    assert "Removed class0" in cli.out
    for path in (memory, output):
        sound(path, cli)


def test_budgets_are_changed(memory: Path, cli: Cli) -> None:
    """The lowest ranks are dropped; a larger budget keeps everything."""
    before = streams(memory)
    found = cli.json("rebudget", memory, "1/class")
    assert 3 <= found["items"] < found["items_before"] == len(before)
    assert found["payload_bytes"] <= found["budget_bytes"]
    assert streams(memory) < before
    assert cli("rebudget", memory, "1MB") == 0
    sound(memory, cli)


def test_files_are_merged(memory: Path, more: Path, tmp_path: Path, cli: Cli) -> None:
    """Classes match by name; images of another quality or with values are kept as they are."""
    second = ReplayMemory("1MB", "jpeg", 20, class_names={0: "owl", 4: "class1"})
    for label in (0, 4):
        values = {"logits": np.eye(6), "task": [label] * 6}
        second.extend(label, [jpeg(800 + 10 * label + n) for n in range(6)], values=values)
    second.save(tmp_path / "b.mrdc")
    output = tmp_path / "m.mrdc"
    found = cli.json("merge", memory, tmp_path / "b.mrdc", "-o", output, "--budget", "1MB")
    merged = ReplayMemory.load(output)
    assert merged.classes == ["class0", "class1", "class2", "owl"]
    assert streams(output) == streams(memory) | streams(tmp_path / "b.mrdc")
    assert (merged.seen(1), merged.seen(3)) == (14, 6)
    assert merged.values(len(merged) - 1)["task"] == 0
    assert found["items"] == found["items_before"] == len(merged)
    sound(output, cli)
    small = cli.json("merge", memory, tmp_path / "b.mrdc", "-o", output, "--force")
    assert small["budget"]["text"] == "4/class"
    assert small["payload_bytes"] <= small["budget_bytes"]
    sound(output, cli)


def test_a_file_may_be_merged_into_itself(memory: Path, tmp_path: Path, cli: Cli) -> None:
    """Nothing is stored twice."""
    before = streams(memory)
    assert cli("merge", memory, memory, "-o", memory, "--force", "--budget", "1MB") == 0
    assert streams(memory) == before
    sound(memory, cli)


def test_links_stay_links(memory: Path, tmp_path: Path, cli: Cli) -> None:
    """The file that a link points to is changed."""
    link = tmp_path / "link.mrdc"
    link.symlink_to(memory)
    assert cli("remove", link, "class0") == 0
    assert link.is_symlink() and ReplayMemory.load(memory).classes == ["class1", "class2"]


def test_merged_files_sum_their_duplicates(memory: Path, tmp_path: Path, cli: Cli) -> None:
    """Those left out when a file was made, and those in both files."""
    for name in "cd":
        made = ReplayMemory("1MB", "jpeg", 50, class_names={0: "cat"})
        made.add({0: [jpeg(0), jpeg(0), jpeg(ord(name))]})
        made.save(tmp_path / name)
    cli("merge", tmp_path / "c", tmp_path / "d", "-o", tmp_path / "both")
    assert ReplayMemory.load(tmp_path / "both").duplicates() == {0: 3}
    sound(tmp_path / "both", cli)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("remove a.mrdc clas0", "a.mrdc: no class 'clas0'; did you mean 'class0'?"),
        ("remove a.mrdc 77", "a.mrdc: no class '77': it holds class0, class1, class2"),
        ("remove a.mrdc", "give at least one class, by name or label"),
        ("remove none.mrdc class0", "none.mrdc: no such memory file"),
        ("remove a.mrdc class0 -o photos", "photos: exists and is not a memory file"),
        ("remove a.mrdc class0 -o b.mrdc", "b.mrdc: exists; pass --force to replace it"),
        ("rebudget a.mrdc lots", "invalid budget 'lots'"),
        ("rebudget a.mrdc 900", "no image of class 'class0' fits"),
        (
            "rebudget a.mrdc 100kB --fade",
            "--fade cuts scans of codec jpeg-progressive, but it holds",
        ),
        ("remove twins.mrdc owl", "classes 0 and 1 are both called 'owl'; give a label"),
        ("rebudget twins.mrdc 20/class", "twins.mrdc: does not record the mean size of originals"),
        ("rebudget a.mrdc 9kB -o no/b.mrdc", "no/b.mrdc: there is no folder no"),
        ("merge a.mrdc -o c.mrdc", "merge needs two memory files or more, got 1"),
        ("merge a.mrdc photos -o c.mrdc", "photos: not a memory, as it has no manifest.json"),
        ("add a.mrdc nothing", "nothing: no such folder or file"),
        ("add a.mrdc photos --select hering", "unknown selector 'hering'"),
        ("add b.mrdc boxes.json", "its boxes have the classes cat, but the memory's none"),
    ],
)
def test_wrong_usage_changes_nothing(
    arguments: str, message: str, memory: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line and exit code 2."""
    monkeypatch.chdir(memory.parent)
    Path("b.mrdc").write_bytes(memory.read_bytes())
    twins = ReplayMemory("1MB", "jpeg", 50, class_names={0: "owl", 1: "owl"})
    twins.add({0: [jpeg(0)], 1: [jpeg(1)]})
    twins.save("twins.mrdc")
    Path("boxes.json").write_text(
        '{"images": [{"id": 1, "file_name": "photos/class0/00.jpg", "width": 32, "height": 24}], '
        '"categories": [{"id": 1, "name": "cat"}], '
        '"annotations": [{"image_id": 1, "category_id": 1, "bbox": [1, 1, 9, 9], "id": 1}]}'
    )
    files = {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}
    assert cli(*arguments.split()) == 2
    assert message in cli.err and cli.err.count("\n") == 1
    after = {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}
    assert {p: b for p, b in after.items() if "cache" not in p.parts} == files


def test_two_changes_at_a_time_lose_nothing(
    memory: Path, photos: Path, more: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second is refused, also if the first ended after the second had opened the file."""
    before, pack = memory.read_bytes(), ["pack", photos, "--budget", "1MB", *FAST, "-o"]
    changes = (["add", memory, more, *RANDOM], ["remove", memory, "class0"], [*pack, memory])
    with memory.open("rb") as file:
        assert try_lock(file)
        for change in (*changes[:2], ["rebudget", memory, "9kB"], [*changes[2], "--force"]):
            assert "another process is writing this memory; wait" in cli.refused(*change)
    assert memory.read_bytes() == before

    def late(file: IO[bytes]) -> bool:
        memory.rename(memory.with_suffix(".old"))
        memory.write_bytes(before)
        return True

    monkeypatch.setattr("mrdc.memory.edit.try_lock", late)
    assert "another process has just changed it; run" in cli.refused("remove", memory, "class0")
    assert memory.read_bytes() == before


@pytest.mark.parametrize("moment", ["half", "fsync", "replace", "replaced"])
@pytest.mark.parametrize("verb", ["add", "remove", "rebudget", "merge"])
def test_a_killed_change_leaves_the_old_file_or_the_new(
    verb: str, moment: Moment, memory: Path, more: Path, cli: Cli
) -> None:
    """Killed as by `kill -9`; running the same command again succeeds."""
    rest = {
        "add": [memory, more, *RANDOM],
        "remove": [memory, "class0"],
        "rebudget": [memory, "2/class"],
        "merge": [memory, memory, "-o", memory, "--force", "--budget", "9kB"],
    }[verb]
    before = memory.read_bytes()
    assert Running(verb, *rest, death=(moment, 1)).wait() == 9
    assert (memory.read_bytes() == before) == (moment != "replaced")
    sound(memory, cli)
    memory.write_bytes(before)
    assert cli(verb, *rest) == 0
    assert memory.read_bytes() != before


def renamed(road: Path, folder: Path) -> Path:
    """The same scenes, mirrored, under other names."""
    (folder / "images").mkdir(parents=True)
    scenes = json.loads((road / "train.json").read_text())
    for entry in scenes["images"]:
        with Image.open(road / "images" / entry["file_name"]) as image:
            entry["file_name"] = f"other-{entry['file_name']}"
            ImageOps.flip(image).save(folder / "images" / entry["file_name"])
    (folder / "train.json").write_text(json.dumps(scenes))
    return folder


def test_scenes_keep_their_boxes(road: Path, tmp_path: Path, cli: Cli) -> None:
    """When added or merged; an image that is already stored is refused."""
    other = renamed(road, tmp_path / "other")
    one, two, both = (tmp_path / f"{name}.mrdc" for name in ("one", "two", "both"))
    for source, path in ((road, one), (other, two)):
        assert cli("pack", source, "--budget", "1MB", *FAST, "-o", path) == 0
    assert cli("merge", one, two, "-o", both) == 0
    assert cli("add", one, other, *RANDOM) == 0
    for path in (one, both):
        sound(path, cli)
        found = ReplayMemory.load(path)
        names = found.sources(0)
        assert len(found) == 40 == len(found.boxes)
        for name in (name for name in names if not name.startswith("other-")):
            np.testing.assert_array_equal(found.boxes[name], found.boxes[f"other-{name}"])
    message = "is already in the memory; rename one of them"
    assert message in cli.refused("add", one, other, *RANDOM)
    assert message in cli.refused("merge", one, two, "-o", tmp_path / "new.mrdc")
