"""Free RAM, on a machine and in a container."""

from pathlib import Path

import pytest

from mrdc._utils import ram

MEMINFO = "MemTotal: 100 kB\nMemAvailable: 50 kB\n"


@pytest.mark.parametrize(
    ("group", "free"),
    [
        ({}, 50 << 10),
        ({"max": "max\n", "current": "900\n"}, 50 << 10),
        ({"max": "1000\n", "current": "900\n"}, 130),
        ({"max": "1000\n", "current": "1900\n"}, 0),
        ({"max": f"{1 << 60}\n", "current": "900\n"}, 50 << 10),
    ],
)
@pytest.mark.parametrize("version", [1, 2])
def test_a_container_may_have_less_than_the_machine(
    version: int,
    group: dict[str, str],
    free: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its limit counts, less what it uses; 30 bytes of files that are only cached are free."""
    monkeypatch.setattr(ram, "ROOT", tmp_path)
    assert ram.free_ram() == ram.GUESS
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "meminfo").write_text(MEMINFO)
    folder, limit, used, cached = ram.GROUPS[2 - version]
    place = tmp_path / folder
    place.mkdir(parents=True)
    if group:
        (place / limit).write_text(group["max"])
        (place / used).write_text(group["current"])
        (place / "memory.stat").write_text(f"anon 7\n{cached} 30\n")
    assert ram.free_ram() == free
