"""Wrong arguments get one line."""

import pytest

from mrdc.cli.usage import summary
from tests.processes import Cli

PLAN = "plan photos --budget 1MB"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("plan photos --bugdet 1MB", "unknown option --bugdet (did you mean --budget?)"),
        ("plan photos", "missing --budget"),
        ("plan", "missing PATH, --budget"),
        ("rebudget old.mrdc", "missing BUDGET"),
        ("merge", "missing --output"),
        ("plan photos --budget", "--budget needs a value"),
        (f"{PLAN} --fode", "unknown option --fode"),
        ("pack photos --budget 1MB --fode", "unknown option --fode (did you mean --fade?)"),
        ("rebudget old.mrdc 1MB --budget 3", "unknown option --budget"),
        (f"{PLAN} --quality high", "--quality: got 'high', but takes INT INT ..."),
        (f"{PLAN} --seed x --threads y", "--seed: got 'x', but takes INT"),
        (f"{PLAN} --columns a", "--columns: got 'a', but takes STR STR"),
        (f"{PLAN} --device gpu", "--device must be one of auto, cpu, cuda, got 'gpu'"),
        ("plan a b --budget 1MB", "unknown argument b"),
        ("plna photos", "unknown argument plna (did you mean plan?)"),
        ("", "give a command: plan, pack, info, "),
        ("run lucir --data x --train.epocs 3", "unknown option --train.epocs (did you mean --tra"),
        ("run lucir", "missing --data"),
        ("run lucir --data x --phases many", "--phases: got 'many', but takes INT"),
        ("sweep lucir --stem 5x5", "--stem must be one of auto, 7x7, 3x3, got '5x5'"),
    ],
)
def test_wrong_arguments_are_explained_in_one_line(arguments: str, said: str, cli: Cli) -> None:
    """And the help that shows what is allowed is named."""
    given = arguments.split()
    command = " ".join(["mrdc", *given[: 2 if given[:1] in (["run"], ["sweep"]) else 1]])
    command = "mrdc" if given[:1] in ([], ["plna"]) else command
    found = cli.refused(*given)
    assert found.startswith(f"mrdc: {said}") and found.endswith(f"; {command} --help shows all\n")
    assert found.count("\n") == 1


def test_pages_of_an_unknown_form_are_printed_as_they_are() -> None:
    assert summary("\u2502 Something else is wrong. \u2502\n", "mrdc plan") is None


@pytest.mark.parametrize(("side", "rule"), [("\u2502", "\u2500"), ("", "-")])
def test_pages_are_read_with_and_without_unicode(side: str, rule: str) -> None:
    lines = [
        "Required options",
        9 * rule,
        "Missing from mrdc plan:",
        "    --budget STR",
        "        in bytes (required)",
        9 * rule,
    ]
    lines += ["Unrecognized options:", "    --bugdet", "    1MB", 9 * rule, "For help:", "    mrdc"]
    page = "\n".join(f"{side} {line:40} {side}" for line in lines)
    assert summary(page, "mrdc plan") == "unknown option --bugdet (did you mean --budget?)"
