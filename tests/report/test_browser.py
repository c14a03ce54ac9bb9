"""Pages in a real browser: headless Chromium, as wide as a desktop and a phone."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from mrdc.report import write_report
from tests.report.folders import grid, with_memory

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium here: ./scripts/test --browser installs it"
)
WIDTHS = pytest.mark.parametrize("width", [1200, 360])

# Looks at the page from inside, sorts a table, and logs what it saw.
PROBE = """
<script>
window.addEventListener("load", () => {
  const is = head => head.textContent === "averaged %";
  const of = table => [...table.querySelectorAll("th button")];
  const table = [...document.querySelectorAll("table")].find(table => of(table).some(is));
  const heads = of(table), place = heads.findIndex(is);
  const number = row => parseFloat(row.cells[place].textContent);
  const column = () => [...table.tBodies[0].rows].map(number);
  heads[place].click(); const up = column();
  heads[place].click(); const down = column();
  const images = [...document.images], drawings = [...document.querySelectorAll("svg")];
  const wide = document.documentElement;
  console.log("PROBE " + JSON.stringify({
    overflow: wide.scrollWidth - wide.clientWidth,
    images: images.length, broken: images.filter(i => !i.complete || !i.naturalWidth).length,
    unnamed: images.filter(i => !i.alt).length
      + drawings.filter(s => !s.closest("[role=img][aria-label]")).length,
    figures: drawings.length,
    tiny: [...document.querySelectorAll("svg text")]
      .filter(t => t.getBoundingClientRect().height < 8).length,
    cut: [...document.querySelectorAll("h1, h2, h3, p, figcaption")]
      .filter(e => e.getBoundingClientRect().right > innerWidth).length,
    blank: drawings.filter(s => s.getBoundingClientRect().height < 50).length,
    asked: performance.getEntriesByType("resource").map(e => e.name)
      .filter(name => !name.startsWith("data:")),
    sort: table.querySelector("[aria-sort]").getAttribute("aria-sort"), up, down,
  }));
});
</script>
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with every kind of part that needs no training."""
    folder = tmp_path_factory.mktemp("page")
    name = "a-rather-long-name-of-a-run"
    scores = {"original": [40.0, 41.0], "90": [55.0, 54.0], "50": [62.0, 63.0], "10": [9.5, 9.0]}
    runs = grid(folder, scores, name=name)
    write_report([*runs, with_memory(folder / "memory")], folder / "report.html")
    return folder / "report.html"


def opened(page: Path, width: int, tmp_path: Path) -> tuple[dict[str, Any], str]:
    """What the probe saw in a frame as wide as the screen, and the console's output."""
    assert CHROMIUM is not None
    (tmp_path / "probed.html").write_text(page.read_text().replace("</body>", PROBE + "</body>"))
    frame = tmp_path / "frame.html"  # windows cannot be as narrow as a phone
    style = f"border:0;width:{width}px;height:4000px"
    frame.write_text(f'<body style="margin:0"><iframe src="probed.html" style="{style}"></iframe>')
    shot = Path(os.environ.get("MRDC_SCREENSHOTS", tmp_path)) / f"report-{width}.png"
    shot.parent.mkdir(exist_ok=True, parents=True)
    flags = "--headless --no-sandbox --disable-gpu --disable-background-networking --no-first-run"
    flags += " --disable-component-update --enable-logging=stderr --virtual-time-budget=3000"
    flags += " --allow-file-access-from-files --hide-scrollbars"
    where = [f"--window-size={max(500, width)},4000", f"--user-data-dir={tmp_path / 'profile'}"]
    command = [CHROMIUM, *flags.split(), *where, f"--screenshot={shot}", frame.as_uri()]
    said = subprocess.run(command, capture_output=True, text=True, timeout=120).stderr
    assert shot.stat().st_size > 10_000
    found = re.search(r"PROBE (\{.*\})", said)
    assert found is not None, said[-2000:]
    return json.loads(found[1].replace(r"\"", '"')), said


@WIDTHS
def test_a_page_in_a_browser(page: Path, width: int, tmp_path: Path) -> None:
    """No error, no request, no sideways scrolling, images decode, tables sort."""
    saw, said = opened(page, width, tmp_path)
    assert said.count("CONSOLE") == 1, said[-2000:]  # ours
    assert saw["asked"] == []
    assert saw["overflow"] <= 0 and saw["cut"] == 0 and saw["tiny"] == 0
    assert saw["images"] == 9 and saw["broken"] == 0
    assert saw["unnamed"] == 0
    assert saw["figures"] >= 6 and saw["blank"] == 0
    assert saw["up"] == sorted(saw["up"]) and saw["down"] == saw["up"][::-1]
    assert saw["sort"] == "descending"
