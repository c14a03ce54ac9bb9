"""The section on bytes against accuracy."""

from pathlib import Path

from mrdc.report.figures import Figure, Grid
from mrdc.report.runs import find_runs
from mrdc.report.worth import bytes_against_accuracy
from mrdc.training.results import MemorySummary
from tests.report.folders import made


def run(folder: Path, kind: str, originals: int, score: float) -> None:
    """A run within the bytes of some originals of 100 bytes, with two networks of 1,000."""
    held = MemorySummary(originals * 100, originals * 100, originals)
    memory = {"budget": f"{originals}/class", "quality": kind}
    result = {"memory": held, "networks_bytes": 2000}
    made(folder / f"{kind}-{originals}", (score, score), memory=memory, result=result)


def test_compressed_images_are_worth_more_bytes(tmp_path: Path) -> None:
    """35 % takes 100 bytes compressed; originals have 30 % with 100 bytes and 40 % with 400."""
    for kind, originals, score in (
        ("original", 1, 30.0),
        ("original", 4, 40.0),
        ("50", 1, 35.0),
        ("50", 4, 41.0),
    ):
        run(tmp_path, kind, originals, score)
    figure, table = bytes_against_accuracy(find_runs([tmp_path])).parts
    assert isinstance(table, Grid) and isinstance(figure, Figure)
    head, *rows = table.rows
    factors = {(row[head.index("memory")], row[head.index("budget")]): row[-1] for row in rows}
    assert factors["lucir-mrdc, quality 50", "1/class"] == "2.0"
    assert factors["lucir-mrdc, quality 50", "4/class"] == "more than tried"
    assert factors["lucir-mrdc, quality original", "1/class"] == ""
    assert [100, 2100] in [row[2:4] for row in figure.data[1:]]


def test_one_budget_is_no_curve(tmp_path: Path) -> None:
    run(tmp_path, "original", 1, 30.0)
    run(tmp_path, "50", 1, 35.0)
    assert bytes_against_accuracy(find_runs([tmp_path])).parts == []
