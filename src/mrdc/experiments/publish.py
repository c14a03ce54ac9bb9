"""Put a finished run into an object store."""

from pathlib import Path

from mrdc._utils import stores
from mrdc._utils.errors import MrdcError, OutputError, UsageError
from mrdc._utils.store_path import StorePath
from mrdc.experiments.folder import CONFIG, RESULTS
from mrdc.nn.checkpoint import last_checkpoint


def check_publish(folder: Path, url: str) -> None:
    """Refuse, before a run, a URL that its results cannot be written to.

    Raises:
        UsageError: it is not a URL.
        OutputError: there is no such bucket, or another run is there.
    """
    if not stores.is_url(url):
        raise UsageError(f"--publish {url}: must be a URL such as s3://bucket/run; --out is local")
    stores.check_bucket(f"{url}/{RESULTS}")
    if (StorePath(url) / RESULTS).is_file() and not _is_there(folder, url):
        raise OutputError(f"{url}: holds another run; choose another --publish")


def publish(folder: Path, url: str) -> None:
    """Put config, last checkpoint and memory there, and the results last."""
    if _is_there(folder, url):
        return
    last = last_checkpoint(folder)
    files = [folder / CONFIG, *([last] if last else []), *sorted(folder.glob("memory-*.mrdc"))]
    try:
        stores.put_files(folder, [*(file.name for file in files), RESULTS], url)
    except MrdcError as error:
        raise OutputError(f"{error}; run the same command to publish {folder} again") from error


def _is_there(folder: Path, url: str) -> bool:
    """Whether the results of this run are at a URL."""
    ours, theirs = folder / RESULTS, StorePath(url) / RESULTS
    return ours.is_file() and theirs.is_file() and ours.read_bytes() == theirs.read_bytes()
