"""A small part of the campaign; -m slow runs more of it."""

import pytest

from tests.campaign.areas import AREAS, FUZZED
from tests.campaign.harness import run_area

pytestmark = pytest.mark.filterwarnings("default")  # Pillow warns about damaged images


@pytest.mark.parametrize("area", [area.name for area in FUZZED])
def test_a_few_cases(area: str) -> None:
    """No case is a fault; `python -m tests.campaign` runs more."""
    tally = run_area(AREAS[area], cases=25, seed=0)
    assert not tally.failures, "\n".join(tally.failures)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("area", list(AREAS))
def test_more_cases(area: str) -> None:
    tally = run_area(AREAS[area], cases=300, seed=1000)
    assert not tally.failures, "\n".join(tally.failures)
