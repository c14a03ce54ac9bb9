"""`--memory.quality run:FOLDER`: the quality that an earlier run picks."""

from dataclasses import replace
from pathlib import Path

from mrdc._utils.errors import UsageError
from mrdc.experiments.folder import finished
from mrdc.experiments.settings import AnySettings
from mrdc.planning.search import search_space
from mrdc.training.exemplars import ORIGINAL


def with_picked_quality(settings: AnySettings) -> AnySettings:
    """Settings with run:FOLDER replaced by the quality that the criterion of that run picks.

    The criterion (in the paper R_q) is averaged over the phases of a run with originals.
    """
    quality = settings.memory.quality
    rule, _, folder = quality.partition(":")
    if rule != "run":
        return settings
    result = finished(Path(folder)) if folder else None
    if result is None:
        raise UsageError(f"--memory.quality {quality}: needs the folder of a finished run")
    measured = {row["codec"] for row in result.volume_ratios} - {ORIGINAL}
    if len(measured) > 1:
        raise UsageError(
            f"--memory.quality {quality}: that run compares several codecs or scales; give a number"
        )
    used = {codec.name for codec, _ in search_space(settings.memory)}
    if measured and measured != used:
        raise UsageError(
            f"--memory.quality {quality}: that run measured {', '.join(measured)}, but this one "
            f"uses {', '.join(used)}: set --memory.codec and --memory.scale, or give a number"
        )
    if result.mean_choice is None:
        why = "no candidate passes" if result.volume_ratios else "it measured none"
        raise UsageError(f"--memory.quality {quality}: that run picks no quality because {why}")
    memory = replace(settings.memory, quality=str(result.mean_choice))
    return replace(settings, memory=memory)
