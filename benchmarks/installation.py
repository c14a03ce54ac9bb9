"""What does an installation cost: its size, its import time, and the RAM of a reader?

    python benchmarks/installation.py --python VENV/bin/python --name light

The environment holds pip and what `pip install .` (light) or `pip install '.[train]'` installs.
"""

import subprocess
import tempfile
from pathlib import Path

from common import emit, machine, options, sources
from mrdc.memory.replay import ReplayMemory

IMAGES, REPEATS = 2000, 5
IMPORT = """
import time
start = time.perf_counter()
from mrdc import ReplayMemory
print(time.perf_counter() - start)
"""
READ = """
import sys
from mrdc import ReplayMemory
memory = ReplayMemory.load(sys.argv[1])
for image, label in (memory[index] for index in range(len(memory))):
    pass
lines = open("/proc/self/status").read().splitlines()
print(1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")))
"""


def run(python: Path, code: str, *arguments: object) -> float:
    """The number that the code prints in a new process."""
    command = [str(python), "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={})
    if done.returncode:
        raise SystemExit(done.stderr)
    return float(done.stdout)


def packages(python: Path) -> int:
    """Bytes of all installed packages."""
    where = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    files = Path(where.stdout.strip()).rglob("*")
    return sum(path.lstat().st_size for path in files if path.is_file() and not path.is_symlink())


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--python", type=Path, required=True, help="Python interpreter to measure")
    parser.add_argument("--name", required=True, help="name of the environment in the results")
    args = parser.parse_args()
    memory = ReplayMemory("1GB", quality=50)
    memory.add({0: sources(args.photos, IMAGES)})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.mrdc"
        memory.save(path)
        emit(
            "installation",
            environment=args.name,
            label=args.label,
            images=len(memory),
            memory_file_bytes=path.stat().st_size,
            packages_bytes=packages(args.python),
            import_s=min(run(args.python, IMPORT) for _ in range(REPEATS)),
            reader_peak_bytes=int(run(args.python, READ, path)),
            **machine(),
        )


if __name__ == "__main__":
    main()
