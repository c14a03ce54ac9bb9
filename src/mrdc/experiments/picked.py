"""`--memory.quality run:FOLDER`: the quality that R_q picks along an earlier run."""

from dataclasses import replace
from pathlib import Path

from mrdc._utils.errors import UsageError
from mrdc.experiments.folder import finished
from mrdc.experiments.settings import AnySettings


def with_picked_quality(settings: AnySettings) -> AnySettings:
    """Settings with run:FOLDER replaced by the quality that the run's R_q picks.

    R_q is averaged over the phases of that run, usually one with originals (Sec. 5.1 and 5.2).
    """
    quality = settings.memory.quality
    rule, _, folder = quality.partition(":")
    if rule != "run":
        return settings
    result = finished(Path(folder))
    if result is None:
        raise UsageError(f"--memory.quality {quality}: {folder or 'nothing'} is no finished run")
    if result.mean_choice is None:
        why = "no candidate passes there" if result.volume_ratios else "it measured no R_q"
        raise UsageError(f"--memory.quality {quality}: R_q picks nothing, as {why}")
    memory = replace(settings.memory, quality=str(result.mean_choice))
    return replace(settings, memory=memory)
