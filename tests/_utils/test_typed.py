"""JSON values against type hints."""

from typing import Any, Literal, NotRequired, TypedDict

import pytest

from mrdc._utils.typed import fits


class Row(TypedDict):
    name: str
    size: int | None
    note: NotRequired[str]


@pytest.mark.parametrize(
    ("value", "hint", "right"),
    [
        (3, int, True),
        (True, int, False),
        (3, float, True),
        (3.0, int, False),
        (float("nan"), float, False),
        (float("inf"), float, False),
        (10**400, int, True),
        (None, int | None, True),
        ("x", int | None, False),
        ([1, 2], list[int], True),
        ([1, "2"], list[int], False),
        ([1, 2], tuple[int, ...], True),
        ({"a": 1.5}, dict[str, float], True),
        ({"a": None}, dict[str, float], False),
        ([{"name": "a", "size": None, "more": 1}], list[Row], True),
        ([{"name": "a", "size": 1, "note": "b"}], list[Row], True),
        ([{"name": "a", "size": 1, "note": 2}], list[Row], False),
        ([{"name": "a"}], list[Row], False),
        ([3], list[Row], False),
        ("a", Literal["a", "b"], True),
        ([], Literal["a", "b"], False),
        (object(), Any, True),
    ],
)
def test_values_fit_their_types(value: Any, hint: Any, right: bool) -> None:
    assert fits(value, hint) is right
