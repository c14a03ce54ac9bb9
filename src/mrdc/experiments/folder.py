"""A run folder: config, events, checkpoints and the memory, consistent at any moment.

config.json            settings, commit, versions
results.jsonl          one line per event; the last line of a finished run is its result
phase-00.safetensors   the network after a phase
memory-00.mrdc         the memory after the last phase
partial.safetensors    the network in the middle of a phase
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypedDict

from mrdc._utils.errors import CheckpointError, DataError, MrdcError, OutputError, UsageError
from mrdc._utils.files import cache_folder, output_errors, try_lock, whole_file
from mrdc._utils.typed import fits
from mrdc.experiments.check import Checked, Listener
from mrdc.experiments.settings import flat
from mrdc.memory.audit import audit
from mrdc.memory.replay import ReplayMemory
from mrdc.nn.checkpoint import Checkpoint, last_checkpoint, read_checkpoint, write_checkpoint
from mrdc.nn.feature_cache import CACHE_BYTES
from mrdc.training.results import RunResult
from mrdc.training.resume import Keeper, Partial, Saved, Share

CONFIG, RESULTS, PARTIAL = "config.json", "results.jsonl", "partial.safetensors"


class PartialAbout(TypedDict):
    """Metadata of a checkpoint in the middle of a phase."""

    phase: int
    epoch: int


class FirstPhase(TypedDict):
    """Metadata of a shared first phase."""

    first_phase_seconds: float
    first_phase_images: int


@dataclass(frozen=True)
class Kept:
    """The config of a run folder: its settings, and what was found when it was started."""

    settings: dict[str, Any]
    checked: Checked

    @staticmethod
    def about(checked: Checked) -> dict[str, Any]:
        """The part of a config that `checked` is read from."""
        return {
            "in_training": checked.in_training,
            "skipped": checked.skipped,
            "skipped_train": checked.train_ids,
            "skipped_test": checked.test_ids,
        }


class RunFolder(Keeper):
    """Opens or creates a run folder, for one process at a time.

    Args:
        settings: what decides the numbers; the same as when the folder was created.
        about: what else to record about this process, such as versions.
        every: minimum seconds between two checkpoints inside a phase.
        cache: share the first phase with other runs.
        listener: called with every event.

    Raises:
        UsageError: the settings differ, or another process uses the folder.
        OutputError: it cannot be written.
    """

    keeps = True

    def __init__(
        self,
        path: Path,
        settings: Mapping[str, Any],
        about: Mapping[str, Any],
        *,
        every: float = 60.0,
        cache: bool = True,
        listener: Listener = lambda kind, fields: None,
    ):
        self.path, self.every, self.cache, self.listener = path, every, cache, listener
        self._last = time.monotonic()
        with output_errors(path):
            if path.exists() and not path.is_dir():
                raise OutputError(f"{path}: exists and is not a folder; choose another --out")
            path.mkdir(parents=True, exist_ok=True)
            names = [child.name for child in path.iterdir() if child.name != "lock"]
            if names and CONFIG not in names and not all(n.startswith(".") for n in names):
                raise OutputError(
                    f"{path}: has files but no {CONFIG}, so it is not a run folder; choose another "
                    "--out"
                )
            read_kept(path)  # refuse a foreign folder before anything is written there
            self._lock = lock(path / "lock", f"{path}: another process is using it")
        try:
            if (known := read_kept(path)) is not None:  # maybe written just before the lock
                refuse_changes(path, known.settings, settings)
            else:
                with whole_file(path / CONFIG) as file:
                    file.write(json.dumps({"settings": dict(settings), **about}, indent=2).encode())
            with output_errors(path):
                for left in path.glob(".*.tmp"):  # left by killed processes
                    left.unlink(missing_ok=True)
                self._events = open_events(path / RESULTS)
        except BaseException:
            self._lock.close()
            raise
        self.event("start", dict(about))

    def close(self) -> None:
        """Release the folder."""
        with suppress(OSError):  # a full disk was reported when the line was written
            self._events.close()
        self._lock.close()

    def event(self, kind: str, fields: dict[str, Any]) -> None:
        self.write_line({"event": kind, **fields})
        self.listener(kind, fields)

    def write_line(self, value: dict[str, Any]) -> None:
        """Append a line to the results, as one write."""
        with output_errors(self.path / RESULTS):
            self._events.write((json.dumps(rounded(value), allow_nan=False) + "\n").encode())
            self._events.flush()

    # Checkpoints

    def load(self) -> Saved | None:
        path = last_checkpoint(self.path)
        if path is None:
            return None
        checkpoint, phase = read_checkpoint(path), int(path.stem.removeprefix("phase-"))
        if checkpoint.about.get("phase") != phase:
            raise CheckpointError(f"{path}: not the checkpoint of phase {phase}")
        if not checkpoint.about.get("memory"):
            return Saved(phase, checkpoint, None)
        held = self.path / f"memory-{phase:02d}.mrdc"
        problems = audit(held).problems
        if problems:
            raise CheckpointError(f"{held}: damaged ({problems[0]}); choose another --out")
        return Saved(phase, checkpoint, ReplayMemory.load(held))

    def save(self, saved: Saved) -> None:
        """Write the memory first: a phase counts once its checkpoint exists."""
        saved.checkpoint.about["memory"] = saved.memory is not None
        if saved.memory is not None:
            saved.memory.save(self.path / f"memory-{saved.phase:02d}.mrdc")
        write_checkpoint(self.path / f"phase-{saved.phase:02d}.safetensors", saved.checkpoint)
        for old in [self.path / PARTIAL, *self.path.glob("memory-*.mrdc")]:
            if old.name != f"memory-{saved.phase:02d}.mrdc":
                old.unlink(missing_ok=True)
        self._last = time.monotonic()

    def load_partial(self, phase: int) -> Partial | None:
        path = self.path / PARTIAL
        if not path.exists():
            return None
        try:
            checkpoint = read_checkpoint(path)
        except CheckpointError as error:
            print(f"mrdc: {error}: phase {phase} starts again", file=sys.stderr)
            return None
        about = checkpoint.about
        known = fits(about, PartialAbout) and about["phase"] == phase
        return Partial(phase, about["epoch"], checkpoint) if known else None

    def save_partial(self, partial: Callable[[], Partial], now: bool = False) -> None:
        if not now and time.monotonic() - self._last < self.every:
            return
        made = partial()
        made.checkpoint.about["epoch"] = made.epoch
        write_checkpoint(self.path / PARTIAL, made.checkpoint)
        self._last = time.monotonic()

    # The first phase, shared between runs

    @contextmanager
    def shared(self, key: Callable[[], str]) -> Iterator[tuple[Checkpoint | None, Share]]:
        """One process trains it; the others wait and reuse it."""
        folder = self._shared_folder()
        if folder is None:
            yield None, lambda checkpoint: None
            return
        file = folder / f"{key()}.safetensors"
        with file.with_suffix(".lock").open("wb") as held:
            if not try_lock(held, wait=True):
                yield None, lambda checkpoint: None
                return
            for left in folder.glob(f".{file.name}.*.tmp"):  # left by killed processes
                left.unlink(missing_ok=True)
            found = None
            with suppress(CheckpointError):
                found = read_checkpoint(file) if file.exists() else None
            if found is not None and not fits(found.about, FirstPhase):
                found = None

            def share(checkpoint: Checkpoint) -> None:
                try:
                    write_checkpoint(file, checkpoint)
                    drop_oldest(folder)
                except MrdcError as error:
                    print(f"mrdc: the first phase is not shared ({error})", file=sys.stderr)

            yield found, share

    def _shared_folder(self) -> Path | None:
        if not self.cache:
            return None
        try:
            folder = cache_folder() / "first-phase"
            folder.mkdir(parents=True, exist_ok=True)
            return folder if os.access(folder, os.W_OK) else None
        except (OSError, RuntimeError):  # RuntimeError: no home folder
            return None


def lock(path: Path, why: str) -> IO[bytes]:
    """Lock a file until it is closed or this process ends."""
    file = path.open("wb")
    locked = try_lock(file)
    if locked is False:
        file.close()
        raise UsageError(why)
    if locked is None:
        print(f"mrdc: {path}: cannot be locked here: run one process at a time", file=sys.stderr)
    return file


def open_events(path: Path) -> IO[bytes]:
    """Open the results for appending; a line that a crash cut short is removed."""
    file = path.open("ab+")
    file.seek(0)
    file.truncate(file.read().rfind(b"\n") + 1)
    return file


def last_line(path: Path) -> dict[str, Any] | None:
    """The last whole line of a results file."""
    if not path.exists():
        return None
    lines = path.read_bytes().splitlines(keepends=True)
    whole = [line for line in lines if line.endswith(b"\n")]
    return parse_line(whole[-1]) if whole else None


def parse_line(line: bytes) -> dict[str, Any] | None:
    """A line of a results file; None if it is damaged."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def commits(path: Path) -> str | None:
    """Commits the run was started and resumed with; None if unknown."""
    events = [parse_line(line) or {} for line in path.read_bytes().splitlines()]
    found = [event.get("commit") for event in events if event.get("event") == "start"]
    return ", then ".join(dict.fromkeys(c for c in found if c and isinstance(c, str))) or None


def finished(path: Path) -> RunResult | None:
    """The result of a run folder; None if the run is unfinished, or its result damaged."""
    line = last_line(path / RESULTS)
    if line is None or "average_incremental_accuracy" not in line:
        return None
    try:
        return RunResult.from_json(line)
    except DataError:  # the run writes it again
        return None


def read_kept(path: Path) -> Kept | None:
    """The config of a run folder; None if there is none yet."""
    file = path / CONFIG
    if not file.exists():
        return None
    try:
        config = json.loads(file.read_text())
        names = ("skipped", "skipped_train", "skipped_test", "in_training")
        lists = [config.get(name, []) for name in names]
        if not fits(lists, list[list[str]]):
            raise ValueError("not lists of names")
        return Kept(dict(config["settings"]), Checked(*lists))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OSError):
        raise OutputError(f"{file}: not the config of a run; choose another --out") from None


def refuse_changes(path: Path, then: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse settings that differ from those the folder was started with."""
    before, after = flat(dict(then)), flat(dict(now))
    flags = {"stream": "images, classes or phases", "options": "--set"}
    changes = [
        f"{flags.get(name, '--' + name.replace('_', '-'))}: "
        f"{before.get(name)} there, {after.get(name)} now"
        for name in dict.fromkeys([*before, *after])
        if before.get(name) != after.get(name)
    ]
    if changes:
        raise UsageError(
            f"{path}: was started with other settings ({'; '.join(changes)}); use them, or choose "
            "another --out"
        )


def rounded(value: Any) -> Any:
    """Floats rounded to six digits, so that lines stay readable."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {name: rounded(entry) for name, entry in value.items()}
    return [rounded(entry) for entry in value] if isinstance(value, list) else value


def drop_oldest(folder: Path) -> None:
    """Drop the oldest shared first phases beyond the size limit of the cache."""
    with suppress(FileNotFoundError):  # another process may be dropping them as well
        total = 0
        for file in sorted(folder.glob("*.safetensors"), key=lambda file: -file.stat().st_mtime):
            total += file.stat().st_size
            if total > CACHE_BYTES:
                file.unlink(missing_ok=True)
