"""The exceptions of mrdc.

    MrdcError
    |- UsageError       an invalid argument or flag
    |- DataError        a folder, CSV or tar of images cannot be used
    |- ImageError       one image cannot be read
    |- BudgetError      a class would hold no image at all
    |- VolumeError      a volume that is zero by definition was asked for
    |- MemoryFileError  a file is damaged or not a memory file
    |- CheckpointError  a checkpoint is missing, damaged or of another kind
    |- TrainingError    training diverged or ran out of memory
    |- RanksError       another process of a run has ended
    |- OutputError      something could not be written
    |- StoreError       an object store cannot be used
    |- MissingError     a package of an extra is not installed
    `- SweepError       some runs of a sweep failed

The command line turns each into one line on standard error and exit code 2.
"""


class MrdcError(Exception):
    """Base of all errors that a user can cause and fix."""


class UsageError(MrdcError, ValueError):
    """An invalid argument or flag."""


class DataError(MrdcError, ValueError):
    """A folder, CSV or tar of images cannot be used."""


class ImageError(MrdcError, ValueError):
    """One image cannot be read."""


class BudgetError(MrdcError, ValueError):
    """The budget leaves a class without any image."""


class VolumeError(MrdcError, ValueError):
    """A volume that is zero by definition."""


class MemoryFileError(MrdcError, ValueError):
    """A file is damaged, or not a memory file."""


class CheckpointError(MrdcError, ValueError):
    """A checkpoint is missing, damaged or of another kind."""


class TrainingError(MrdcError, RuntimeError):
    """Training diverged or ran out of memory; it needs other settings."""


class RanksError(MrdcError, RuntimeError):
    """Another process of the run has ended, so this one must too."""


class OutputError(MrdcError, OSError):
    """Something could not be written; nothing was left behind."""


class StoreError(MrdcError, RuntimeError):
    """An object store cannot be used: no credentials, no access, no connection."""


class MissingError(MrdcError, ImportError):
    """A package of an extra is not installed."""


class SweepError(MrdcError, RuntimeError):
    """Some runs of a sweep failed; the others are kept."""


def lacks_memory(error: BaseException) -> bool:
    """Whether an error means too little memory for data, a thread or a library."""
    texts = ("allocate memory", "start new thread", "out of memory", "bad_alloc", "map segment")
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError | ImportError | SystemError)
        and any(text in str(error) for text in texts)
    )
