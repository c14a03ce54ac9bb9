"""How much faster do several threads prepare images for a network than one?"""

from functools import partial
from statistics import median

from torch import Tensor

from common import emit, machine, options, race, sources
from mrdc.data.photo import Photo
from mrdc.nn.embed import embed
from mrdc.nn.embedder import Embedder

IMAGES, REPEATS, THREADS = 2000, 3, (1, 2, 4, 8, 16)


def no_network(images: Tensor) -> Tensor:
    """Takes no time, so that only the preparation of images is measured."""
    return images[:, :, 0, 0].float()


def main() -> None:
    args = options(__doc__).parse_args()
    files = sources(args.photos, IMAGES)
    photos = [Photo(str(place), partial(bytes, data)) for place, data in enumerate(files)]
    embedder = Embedder(no_network, batch_size=128)
    runs = {str(count): partial(embed, photos, embedder, threads=count) for count in THREADS}
    seconds = {count: median(times) for count, times in race(REPEATS, **runs).items()}
    for count in THREADS:
        emit(
            "threads",
            threads=count,
            images=len(photos),
            label=args.label,
            images_per_second=len(photos) / seconds[str(count)],
            ratio=seconds["1"] / seconds[str(count)],
            **machine(),
        )


if __name__ == "__main__":
    main()
