"""RAM that this process may still use."""

from pathlib import Path

ROOT = Path("/")  # of the system's own files
GUESS = 4 << 30  # where the system does not say
GROUPS = (  # where versions 2 and 1 of control groups have their limit, use and cached files
    ("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    (
        "sys/fs/cgroup/memory",
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        "total_inactive_file",
    ),
)


def free_ram() -> int:
    """Bytes of RAM that are free, within the limit of a container if there is one."""
    known = [free for free in (_machine(), _control_group()) if free is not None]
    return max(0, min(known, default=GUESS))


def _machine() -> int | None:
    try:
        lines = (ROOT / "proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvail"))
    except (OSError, StopIteration):
        return None


def _control_group() -> int | None:
    """Free bytes under the limit of a control group; cached files count as free."""
    for folder, limit, used, cached in GROUPS:
        place = ROOT / folder
        try:
            most, now = int((place / limit).read_text()), int((place / used).read_text())
            lines = (place / "memory.stat").read_text().splitlines()
        except (OSError, ValueError):  # no such group, or "max": no limit
            continue
        cache = sum(int(line.split()[1]) for line in lines if line.split()[0] == cached)
        return most - now + cache
    return None
