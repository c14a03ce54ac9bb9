"""How does the peak memory of `pack` grow with the number of images?

Each run is a separate process that reports its VmHWM, which, unlike ru_maxrss,
is reset when a program starts. `random_choice` runs the command line; `herding`
runs the Python API with a cheap embedder, so that its memory grows by the features
(WIDTH floats per image) and what selection does with them.
"""

import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from common import as_jpeg, emit, machine, options, sources
from mrdc.codec.image import Pixels, decode

COUNTS, CLASSES, QUALITY, WIDTH, BASE = (1000, 20_000), 100, 50, 192, 200
REPORT = """
from pathlib import Path
status = Path("/proc/self/status").read_text().splitlines()
print("peak", next(int(line.split()[1]) for line in status if line.startswith("VmHWM")))
"""
RANDOM = f"""
import sys
from mrdc.cli.main import main
code = main(["pack", sys.argv[1], "--budget", "100GB", "--quality", "{QUALITY}",
             "--select", "random_choice", "--output", sys.argv[2]])
assert not code, code
"""
HERDING = f"""
import sys
import mrdc
from mrdc.nn.embedder import Embedder
network = lambda images: images[:, :, ::4, ::4].flatten(1).float()  # (n, {WIDTH})
mrdc.pack(sys.argv[1], "100GB", sys.argv[2], qualities={QUALITY}, cache=False,
          embed=Embedder(network, size=32))
"""


def write_photos(folder: Path, base: list[Pixels], count: int) -> Path:
    """Write `count` distinct photos to class folders: the base images, shifted sideways."""

    def write(number: int) -> None:
        turn, which = divmod(number, len(base))
        path = folder / f"class_{number % CLASSES:03d}" / f"photo_{number:05d}.jpg"
        path.write_bytes(as_jpeg(np.roll(base[which], turn, axis=1)))

    for label in range(CLASSES):
        (folder / f"class_{label:03d}").mkdir(parents=True)
    with ThreadPoolExecutor() as pool:
        list(pool.map(write, range(count)))
    return folder


def peak(script: str, photos: Path) -> int:
    """Peak resident bytes of a script."""
    command = [sys.executable, "-c", script + REPORT, str(photos), str(photos / "memory.mrdc")]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    (photos / "memory.mrdc").unlink()
    return 1024 * int(run.stdout.split()[-1])


def main() -> None:
    args = options(__doc__).parse_args()
    base = [decode(data) for data in sources(args.photos, BASE)]
    with tempfile.TemporaryDirectory() as name:
        folders = [write_photos(Path(name, str(count)), base, count) for count in COUNTS]
        for select, script in (("random_choice", RANDOM), ("herding", HERDING)):
            few, many = (min(peak(script, folder) for _ in range(3)) for folder in folders)
            emit(
                "peak",
                bytes_per_extra_image=(many - few) / (COUNTS[1] - COUNTS[0]),
                feature_bytes=4 * WIDTH if select == "herding" else 0,
                few_images=COUNTS[0],
                few_mb=few / 1e6,
                label=args.label,
                many_images=COUNTS[1],
                many_mb=many / 1e6,
                select=select,
                **machine(),
            )


if __name__ == "__main__":
    main()
