"""Advice after a run, from the classes its test images were assigned to."""

from mrdc.training.results import RunResult

FEW_NEW = 15  # percent of new classes' images assigned to a new class, mean over the phases
FEW_OLD = 70  # percent of old classes' images assigned to an old class, after the last phase


def advice(run: RunResult) -> list[str]:
    """Known failures between old and new classes, and remedies; empty if there are none."""
    old = [share for share in run.old_as_old or [] if share is not None]
    new = [share for share in run.new_as_new or [] if share is not None]
    if not old or not new or not run.memory.items:
        return []
    stored = run.quality if isinstance(run.quality, list) else [run.quality]
    mean, said = sum(new) / len(new), []
    preserves = not run.method.startswith("replay") and "relaxed" not in run.method
    if mean < FEW_NEW and preserves:
        said.append(
            f"only {mean:.0f} % of the test images of new classes were assigned to a new class: "
            f"{run.method} preserves too much beside a memory of {run.memory.items:,} images; "
            "try lucir-relaxed"
        )
    compressed = any(quality is not None for quality in stored)
    if old[-1] < min(FEW_OLD, new[-1]) and compressed and run.match != 1:
        said.append(
            f"only {old[-1]:.0f} % of the test images of old classes were assigned to an old "
            f"class, but {new[-1]:.0f} % of new ones to a new class: the network may tell old "
            "from new by their compression; try a higher --memory.quality, or --train.match 1"
        )
    return said
