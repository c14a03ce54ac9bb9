"""Everything mrdc raises on purpose.

    MrdcError
    |- UsageError       an argument or a flag is not what is allowed
    |- DataError        a folder, CSV or tar of images cannot be used
    |- ImageError       one image cannot be read
    |- BudgetError      a class would hold no image at all
    |- VolumeError      a volume that is zero by definition was asked for
    |- MemoryFileError  a memory file is damaged or is not one
    |- CheckpointError  a checkpoint is missing, damaged or is not one
    |- TrainingError    training went astray
    |- OutputError      something could not be written
    `- SweepError       some runs of a sweep failed

The command line turns each into one line on standard error and exit code 2.
"""


class MrdcError(Exception):
    """Base of all errors that a user can cause and mend."""


class UsageError(MrdcError, ValueError):
    """An argument or a flag is not what is allowed."""


class DataError(MrdcError, ValueError):
    """A folder, CSV or tar of images cannot be used."""


class ImageError(MrdcError, ValueError):
    """One image cannot be read."""


class BudgetError(MrdcError, ValueError):
    """The budget leaves a class without any image."""


class VolumeError(MrdcError, ValueError):
    """The volume asked for is zero by definition."""


class MemoryFileError(MrdcError, ValueError):
    """A memory file is damaged, or is not one."""


class CheckpointError(MrdcError, ValueError):
    """A checkpoint is missing, damaged, or is not one."""


class TrainingError(MrdcError, RuntimeError):
    """Training went astray; other settings are needed."""


class OutputError(MrdcError, OSError):
    """Something could not be written; nothing was kept of it."""


class SweepError(MrdcError, RuntimeError):
    """Some runs of a sweep failed; the others are kept."""
