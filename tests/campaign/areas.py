"""All areas of the campaign."""

from tests.campaign import folders, images, kills, load, memories, resources, settings, sources
from tests.campaign.harness import Tally, run_area

FUZZED = [module.AREA for module in (images, memories, sources, settings, folders)]
AREAS = {area.name: area for area in (*FUZZED, kills.AREA, resources.AREA, load.AREA)}


def run(name: str, cases: int, seed: int) -> Tally:
    """Run some cases of an area."""
    return run_area(AREAS[name], cases, seed)
