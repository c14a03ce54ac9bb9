"""The network of a run embeds images for `plan` and `pack`."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from mrdc.experiments.folder import RESULTS
from mrdc.memory.audit import audit
from mrdc.nn.checkpoint import read_checkpoint
from mrdc.nn.embedder import load_embedder
from tests.experiments.conftest import Unbroken
from tests.processes import Cli, contents


def test_plan_and_pack_embed_with_a_run(
    finished: Path, photos: Path, tmp_path: Path, cli: Cli
) -> None:
    """With its last network or, if that is missing, the one before, whose features differ."""
    flags = [photos, "--budget", "4/class", "--embed", f"run:{finished}"]
    before = contents(finished)
    plan = cli.json("plan", *flags)
    packed = cli.json("pack", *flags, "-o", tmp_path / "m")
    assert packed["plan"]["chosen"] == plan["chosen"]
    assert audit(tmp_path / "m").problems == []
    assert contents(finished) == before
    (finished / "phase-02.safetensors").unlink()
    other = cli.json("plan", *flags)
    ratios = [[c["volume_ratio"] for c in found["candidates"]] for found in (plan, other)]
    assert len(ratios[0]) == 6
    assert all(one != two for one, two in zip(*(r[1:] for r in ratios), strict=True))


def test_the_network_of_a_run_is_that_of_its_last_phase(unbroken: Unbroken) -> None:
    """It comes with its image size."""
    embedder = load_embedder(f"run:{unbroken.folder}")
    assert embedder.size == 40
    checkpoint = read_checkpoint(unbroken.folder / "phase-02.safetensors")
    images = torch.randint(0, 256, (3, 3, 40, 40), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        expected = checkpoint.network().features(images)
        torch.testing.assert_close(embedder.network(images), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("missing", "not a run folder with a finished phase"),
        ("empty", "not a run folder with a finished phase"),
        ("photos", "not a run folder with a finished phase"),
        ("file", "not a run folder with a finished phase"),
        ("cut", "cannot be read as a checkpoint"),
        ("foreign", "not a checkpoint of mrdc"),
        ("weights", "--weights needs --embed torchvision:NAME"),
    ],
)
def test_other_folders_are_refused(
    kind: str, message: str, finished: Path, photos: Path, tmp_path: Path, cli: Cli
) -> None:
    """By both plan and pack."""
    last = finished / "phase-02.safetensors"
    (tmp_path / "empty").mkdir()
    places = {"photos": photos, "file": finished / RESULTS}
    places |= {name: tmp_path / name for name in ("missing", "empty")}
    flags = ["--weights", last] if kind == "weights" else []
    if kind == "cut":
        last.write_bytes(last.read_bytes()[:1000])
    elif kind == "foreign":
        save_file({"x": torch.zeros(1)}, last)
    given = [photos, "--budget", "4/class", "--embed", f"run:{places.get(kind, finished)}", *flags]
    assert message in cli.refused("plan", *given)
    assert message in cli.refused("pack", *given, "-o", tmp_path / "m")
    assert not (tmp_path / "m").exists()
