"""Commands with URLs."""

import json
from pathlib import Path

import pytest

from mrdc._utils import stores
from mrdc._utils.errors import OutputError
from mrdc._utils.store_path import as_path
from mrdc.experiments.publish import check_publish, publish
from tests.cli.conftest import FAST
from tests.conftest import jpeg
from tests.planning.commands import planned
from tests.processes import SMALL, Cli
from tests.stores import break_store, objects, upload
from tests.stores import bucket as bucket


def test_from_a_bucket_to_a_bucket(photos: Path, tmp_path: Path, bucket: str, cli: Cli) -> None:
    """Every command gives the same results as for files."""
    source, url, path = upload(photos, f"{bucket}/photos"), f"{bucket}/a.mrdc", tmp_path / "a.mrdc"
    here, there = (planned(as_path(one)).to_json() for one in (photos, source))
    assert here | {"seconds": 0} == there | {"seconds": 0}
    for one, output in ((photos, path), (source, url)):
        cli.json("pack", one, "--budget", "4/class", *FAST, "-o", output)
    assert as_path(url).read_bytes() == path.read_bytes()
    for command in (["info"], ["audit"]):
        here, there = (cli.json(*command, one) for one in (path, url))
        assert here | {"path": ""} == there | {"path": ""}
    for output in ("out", "out.tar"):
        cli.json("export", url, "-o", f"{bucket}/{output}")
        cli.json("export", path, "-o", tmp_path / output)
    assert as_path(f"{bucket}/out.tar").read_bytes() == (tmp_path / "out.tar").read_bytes()
    files = [file for file in (tmp_path / "out").rglob("*") if file.is_file()]
    listed = stores.listing(f"{bucket}/out")
    assert listed == {f.relative_to(tmp_path / "out").as_posix(): f.stat().st_size for f in files}


def test_changes(photos: Path, tmp_path: Path, bucket: str, cli: Cli) -> None:
    """In place and into another object."""
    url = f"{bucket}/a.mrdc"
    cli.json("pack", photos, "--budget", "4/class", *FAST, "-o", url)
    assert cli.json("remove", url, "class1")["classes"] == 2
    assert cli.json("add", url, photos, "--select", "random_choice")["classes"] == 3
    assert cli.json("rebudget", url, "2/class", "-o", f"{bucket}/b.mrdc")["path"].endswith("b.mrdc")
    merged = cli.json("merge", url, f"{bucket}/b.mrdc", "-o", f"{bucket}/c.mrdc")
    assert merged["items"] == cli.json("audit", url)["items"]
    assert objects() == ["/bucket/a.mrdc", "/bucket/b.mrdc", "/bucket/c.mrdc"]


def test_what_exists_is_not_replaced(photos: Path, tmp_path: Path, bucket: str, cli: Cli) -> None:
    """The same rules apply as for files."""
    url, flags = f"{bucket}/a.mrdc", ["--budget", "4/class", *FAST]
    cli.json("pack", photos, *flags, "-o", url)
    assert "a.mrdc: exists; pass --force" in cli.refused("pack", photos, *flags, "-o", url)
    cli.json("pack", photos, *flags, "-o", url, "--force")
    other = upload(photos / "class0" / "00.jpg", f"{bucket}/x.jpg")
    line = cli.refused("pack", photos, *flags, "-o", other, "--force")
    assert "x.jpg: exists and is not a memory file" in line
    cli.json("export", url, "-o", f"{bucket}/out")
    assert "out: exists already" in cli.refused("export", url, "-o", f"{bucket}/out")
    assert as_path(other).read_bytes() == jpeg(0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("plan nfs://x/y --budget 9kB", "unknown scheme nfs://; give s3://, gs://, memory://"),
        ("pack photos --budget 9kB -o ftp://x/y", "unknown scheme ftp://"),
        ("plan memory://bucket/none --budget 9kB", "memory://bucket/none: no such folder or file"),
        ("info memory://bucket/none", "memory://bucket/none: no such memory file"),
        ("audit memory://bucket/none", "memory://bucket/none: no such memory file"),
        ("pack photos --budget 9kB -o memory://bucket", "names no object"),
        ("run lucir --data photos --out s3://b/run", "--out s3://b/run: must be a local folder"),
        ("sweep lucir --data photos --out s3://b/x --grid seed=0", "mrdc run --publish s3://b/x"),
        ("study trade-off --out s3://b/x", "--out s3://b/x: must be a local folder"),
        ("run lucir --data photos --publish here", "--publish here: must be a URL such as s3://"),
    ],
)
def test_what_is_refused(
    arguments: str,
    message: str,
    photos: Path,
    bucket: str,
    cli: Cli,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One line, and nothing is written."""
    monkeypatch.chdir(photos.parent)
    before = sorted(photos.parent.iterdir())
    assert message in cli.refused(*arguments.split())
    assert sorted(photos.parent.iterdir()) == before and objects() == []


def test_a_lost_connection(
    photos: Path, bucket: str, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stops a pack, even one that skips bad images, and nothing is written."""
    source = upload(photos, f"{bucket}/photos")
    before = objects()
    break_store(monkeypatch, "cat_file", after=7)
    flags = ["--budget", "4/class", *FAST, "--skip-bad", "-o", f"{bucket}/a.mrdc"]
    assert "jpg: the store cannot be used (Connection" in cli.refused("pack", source, *flags)
    assert objects() == before


@pytest.mark.slow
def test_a_run_is_published(
    tmp_path: Path, bucket: str, cli: Cli, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its results come last; the same command publishes it again, another run does not."""
    flags = ["textures-lucir-mrdc", *SMALL, "--train.epochs", "1", "--phases", "1"]
    flags += ["--out", str(tmp_path / "run"), "--publish", f"{bucket}/run"]
    with monkeypatch.context() as patch:
        break_store(patch, "pipe_file", after=2)
        assert cli("run", *flags) == 2
        assert f"run the same command to publish {tmp_path / 'run'} again" in cli.err
        assert "/bucket/run/results.jsonl" not in objects()
    found = cli.json("run", *flags)
    names = ["config.json", "memory-01.mrdc", "phase-01.safetensors", "results.jsonl"]
    assert objects() == [f"/bucket/run/{name}" for name in names]
    last = as_path(f"{bucket}/run/results.jsonl").read_text().splitlines()[-1]
    assert json.loads(last)["accuracy"] == found["accuracy"]
    assert cli("run", *flags) == 0
    flags[flags.index("--out") + 1] = str(tmp_path / "other")
    assert f"{bucket}/run: holds another run" in cli.refused("run", *flags)
    assert not (tmp_path / "other").exists()


def test_what_is_published(tmp_path: Path, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Config, last checkpoint, memory, then results; repeating is harmless, another run refused."""
    names = ["config.json", "memory-02.mrdc", "phase-02.safetensors", "results.jsonl"]
    for name in [*names, "phase-01.safetensors", "lock", ".x.tmp"]:
        (tmp_path / name).write_text(name)
    url = f"{bucket}/run"
    check_publish(tmp_path, url)
    with monkeypatch.context() as patch:
        break_store(patch, "pipe_file", after=3)
        with pytest.raises(OutputError, match=r"run the same command to publish .* again"):
            publish(tmp_path, url)
    assert stores.listing(url).keys() == {*names[:3]}
    check_publish(tmp_path, url)
    publish(tmp_path, url)
    assert stores.listing(url).keys() == {*names}
    break_store(monkeypatch, "pipe_file")
    check_publish(tmp_path, url)
    publish(tmp_path, url)
    (tmp_path / "results.jsonl").write_text("other")
    with pytest.raises(OutputError, match="bucket/run: holds another run; choose another"):
        check_publish(tmp_path, url)
