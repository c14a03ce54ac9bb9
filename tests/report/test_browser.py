"""Pages in a real browser: headless Chromium, at the width of a desk and of a phone."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from mrdc.report import write_report
from tests.report.test_report import kept, made

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium here: ./scripts/test --browser installs it"
)
WIDTHS = pytest.mark.parametrize("width", [1200, 390])

# Looks at the page from inside, sorts a table, and leaves what it saw in the page.
PROBE = """
<pre id="probe"></pre><script>
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
  document.getElementById("probe").textContent = JSON.stringify({
    overflow: wide.scrollWidth - wide.clientWidth,
    images: images.length, broken: images.filter(i => !i.complete || !i.naturalWidth).length,
    unnamed: images.filter(i => !i.alt).length
      + drawings.filter(s => !s.closest("[role=img][aria-label]")).length,
    figures: drawings.length,
    blank: drawings.filter(s => s.getBoundingClientRect().height < 50).length,
    asked: performance.getEntriesByType("resource").map(e => e.name)
      .filter(name => !name.startsWith("data:")),
    sort: table.querySelector("[aria-sort]").getAttribute("aria-sort"), up, down,
  });
});
</script>
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with every kind of part that needs no training."""
    folder = tmp_path_factory.mktemp("page")
    runs = []
    for number, quality in enumerate((None, 90, 50, 10)):
        value = (40.0, 55.0, 62.0, 9.5)[number]
        memory = {"quality": str(quality or "original")}
        name = f"a-rather-long-name-of-a-run-{number}"
        runs.append(made(folder / name, (70.0, value), quality=quality, memory=memory, name=name))
    write_report([*runs, kept(folder / "kept")], folder / "report.html")
    return folder / "report.html"


def opened(page: Path, width: int, tmp_path: Path) -> tuple[dict[str, Any], str]:
    """What the probe saw, and what the console said."""
    assert CHROMIUM is not None
    probed = tmp_path / "probed.html"
    probed.write_text(page.read_text().replace("</body>", PROBE + "</body>"))
    common = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--window-size={width},900",
              f"--user-data-dir={tmp_path / 'profile'}", "--disable-background-networking",
              "--disable-component-update", "--no-first-run"]  # fmt: skip
    seen = subprocess.run(
        [*common, "--enable-logging=stderr", "--virtual-time-budget=3000", "--dump-dom",
         probed.as_uri()], capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    kept_at = Path(os.environ.get("MRDC_SCREENSHOTS", tmp_path))
    kept_at.mkdir(exist_ok=True, parents=True)
    shot = kept_at / f"report-{width}.png"
    subprocess.run(
        [*common, "--hide-scrollbars", f"--window-size={width},4000", f"--screenshot={shot}",
         page.as_uri()], capture_output=True, timeout=120,
    )  # fmt: skip
    assert shot.stat().st_size > 10_000
    found = re.search(r'<pre id="probe">(.*?)</pre>', seen.stdout, re.DOTALL)
    assert found is not None, seen.stderr[-2000:]
    return json.loads(found[1].replace("&quot;", '"')), seen.stderr


@WIDTHS
def test_a_page_in_a_browser(page: Path, width: int, tmp_path: Path) -> None:
    """No error, no request, no sideways scrolling, images decode, tables sort."""
    saw, said = opened(page, width, tmp_path)
    assert "CONSOLE" not in said, said[-2000:]
    assert saw["asked"] == []
    assert saw["overflow"] <= 0
    assert saw["images"] == 9 and saw["broken"] == 0
    assert saw["unnamed"] == 0
    assert saw["figures"] >= 6 and saw["blank"] == 0
    assert saw["up"] == sorted(saw["up"]) and saw["down"] == saw["up"][::-1]
    assert saw["sort"] == "descending"
