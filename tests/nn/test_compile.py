"""Compiled code is kept for other processes, and only one of them compiles it."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch

from mrdc._utils.files import try_lock
from mrdc.nn.compile import FOLDER, code_folder, compiling, keep_code
from mrdc.nn.heads import Linear
from tests.helpers import tiny


def test_code_is_kept_by_version_of_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In our cache folder, unless the user has set another one for torch."""
    monkeypatch.delenv(FOLDER, raising=False)
    expected = str(tmp_path / "cache/compiled" / f"torch-{torch.__version__}")
    keep_code()
    assert os.environ[FOLDER] == expected
    own = f"{tempfile.gettempdir()}/torchinductor_somebody"  # torch's
    for given, found in (("chosen", "chosen"), (own, expected)):
        monkeypatch.setenv(FOLDER, given)
        keep_code()
        assert os.environ[FOLDER] == found


def test_a_folder_that_cannot_be_used_is_no_reason_to_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("MRDC_CACHE", str(tmp_path / "file"))
    assert code_folder() is None
    assert "compiled code is not kept" in capsys.readouterr().err
    with compiling([tiny("plain", Linear, classes=2)], 8):
        pass


def test_one_process_compiles_while_others_with_the_same_network_wait() -> None:
    """Processes with another network or batch size do not wait."""
    net = tiny("plain", Linear, classes=2)
    with compiling([net], 8):
        (file,) = (code_folder() or Path()).glob("*.lock")
        with compiling([net], 16), compiling([net, net], 8):
            pass
        with file.open("wb") as second:
            assert try_lock(second) is False
    with file.open("wb") as second:
        assert try_lock(second)


@pytest.mark.slow
def test_a_run_does_not_import_what_it_may_not_need() -> None:
    """Modules for scenes and for compiling take seconds each."""
    late = ("torchvision", "torch._inductor")
    code = f"import sys, mrdc.experiments.run, mrdc.cli.runs; print(set({late}) & {{*sys.modules}})"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "set()\n"
