"""Fill the tables of the documents, marked by comments, from the result files."""

import re
from collections.abc import Callable
from statistics import mean

from adapter_tables import buffers, same_bytes, strategies
from arm_tables import (
    any_selector,
    arms,
    beside,
    both_relaxed,
    by_method,
    bytes_worth,
    candidate,
    curves,
    fading,
    headline,
    ladder,
    relaxed,
    remedy,
    selector,
)
from choice_tables import bounds, planned, plans, regret, samples, since
from codec_tables import avif_gains, codec_choices, codecs, lower, stored_as
from common import HERE, Row, read, table
from fade_tables import cuts, held
from peer_tables import peers, peers_in_short
from run_tables import (
    compared,
    grid,
    matched,
    pairs,
    ratios,
    scene_pairs,
    scenes,
    trials,
    with_error,
)
from speed_tables import (
    clusters,
    costs,
    embedding,
    large,
    plan_costs,
    ranks,
    ranks_runs,
    reservoirs,
    speed,
    steps,
    streaming,
    times,
)

RESULTS = ("choice", "replay", "detection", "built-in")
DOCS = ("adapters", "fading", "scale", "speed", *(f"results/{name}" for name in RESULTS))
NAMES = ("README.md", "REPRODUCTION.md", *(f"docs/{name}.md" for name in DOCS))
PAGES = [HERE.parent / name for name in NAMES]


def studies() -> str:
    """Every small study: its rows and its answer."""
    rows: list[list[object]] = [["study", "what", "averaged, %", "last, %", "images", "seconds"]]
    answers = []
    for study in read("studies"):
        for row in study["rows"]:
            spread = f" +- {row['deviation']:.2f}" if row["deviation"] else ""
            rows.append(
                [
                    study["study"],
                    row["what"],
                    f"{row['average_incremental_accuracy']:.2f}{spread}",
                    f"{row['last_accuracy']:.2f}",
                    f"{row['items']:,.0f}",
                    f"{row['seconds']:.0f}",
                ]
            )
        if study["answer"]:
            answers.append(f"* `{study['study']}`: {study['answer']}")
    return table(*rows) + "\n" + "\n".join(answers) + "\n"


def matching(runs: list[Row]) -> str:
    """Training that is not a run of mrdc, without and with matching, averaged over the phases."""
    head = ["quality", "images held", "runs", "averaged, %", "matched", "gain", "gain, last phase"]
    rows: list[list[object]] = [list(head)]
    for quality in dict.fromkeys(run["quality"] for run in runs):
        both = [(r["plain"], r["matched"], r["images"]) for r in runs if r["quality"] == quality]
        rows.append(
            [
                quality,
                f"{mean(images for _, _, images in both):.0f}",
                len(both),
                f"{mean(mean(plain) for plain, _, _ in both):.2f}",
                f"{mean(mean(shown) for _, shown, _ in both):.2f}",
                with_error([mean(shown) - mean(plain) for plain, shown, _ in both]),
                with_error([shown[-1] - plain[-1] for plain, shown, _ in both]),
            ]
        )
    return table(*rows)


WORTH = {
    "compressed, `lucir`": "tiny-bytes",
    "compressed, `lucir-relaxed`": "tiny-bytes-relaxed",
    "compressed, `lucir-relaxed`, matched": "tiny-bytes-match",
}
TINY = ("tiny", "tiny-match", "tiny-half", "tiny-arms")
LARGE = ("cub", "flowers", "cars", "caltech", "flowers-small")  # 48 classes first, or more
SMALL = (
    "cifar",
    "tiny",
    "tiny2",
    "imagenette",
    "scenes",
    "hands",
    "pets",
    "plants",
    "dtd",
    "fruits",
    "plankton",
    "trash",
    "food",
    "textures-grid",
)
GRIDS = (*LARGE, *SMALL)
RELAXED_GRIDS = ("cub-relaxed", "tiny-relaxed", "tiny2-relaxed")
PLAIN = ("imagenette-replay", "imagenette-default", "scenes-replay", "scenes-default")
METHODS_RUN = ("imagenette", "imagenette-default", "imagenette-replay", "imagenette-methods")
MATCHED = ("cub", "cub-2", "caltech", "cifar", "tiny", "tiny2", "imagenette", "scenes", "hands")
DEFAULT_GRIDS = tuple(f"{data}-default" for data in (*MATCHED, "dtd", "fruits", "textures"))
LOW = (
    "low",
    "cub-2-default",
    "caltech-default",
    "imagenette-default",
    "scenes-default",
    "plants-default",
    "dtd-default",
    "fruits-default",
)
HEADS = ("imagenette-head", "imagenette-head20", "scenes-head")
LADDER = ("replay", "replay-cosine", "lucir-relaxed")  # each differs in one thing
REPLAY_GRIDS = ("imagenette-replay", "scenes-replay")
PLANNED = {  # plans, and runs on the same images in the same bytes
    **{name: name for name in ("cub", "flowers", "cars", "caltech", "cifar", "tiny")},
    **{name: name for name in ("imagenette", "scenes", "hands", "plants")},
    **{name: name for name in ("dtd", "fruits", "plankton", "trash", "food")},
    "pets-small": "pets",
}


TABLES: dict[str, Callable[[], str]] = {
    "runs cub": lambda: compared("cub"),
    "runs cub-strong": lambda: compared("cub-strong"),
    "runs cub-default": lambda: compared("cub-default"),
    "pairs cub-default": lambda: pairs("cub-default"),
    "grid cub-default": lambda: grid("cub-default", "5/class"),
    "grid cub-relaxed": lambda: grid("cub-relaxed", "5/class"),
    "pairs cub": lambda: pairs("cub"),
    "grid cub": lambda: grid("cub", "5/class"),
    "grid flowers": lambda: grid("flowers", "5/class"),
    "grid flowers-1": lambda: grid("flowers-1", "5/class"),
    "grid cars": lambda: grid("cars", "5/class"),
    "grid caltech": lambda: grid("caltech", "5/class"),
    "grid caltech-default": lambda: grid("caltech-default", "5/class"),
    "grid cub-2-default": lambda: grid("cub-2-default", "2/class"),
    "grid cifar": lambda: grid("cifar", "5/class"),
    "grid tiny": lambda: grid("tiny", "5/class"),
    "grid tiny 20": lambda: grid("tiny", "20/class"),
    "grid hands": lambda: grid("hands", "5/class"),
    "grid flowers-small": lambda: grid("flowers-small", "8/class"),
    "grid imagenette": lambda: grid("imagenette", "5/class"),
    "grid scenes": lambda: grid("scenes", "5/class"),
    "grid pets": lambda: grid("pets", "5/class"),
    "grid plants": lambda: grid("plants", "5/class"),
    "grid dtd": lambda: grid("dtd", "5/class"),
    "grid fruits": lambda: grid("fruits", "5/class"),
    "grid plankton": lambda: grid("plankton", "5/class"),
    "grid trash": lambda: grid("trash", "5/class"),
    "grid food": lambda: grid("food", "5/class"),
    "match cub": lambda: matched("cub", "5/class"),
    "match cub-relaxed": lambda: matched("cub-relaxed", "5/class"),
    "match tiny": lambda: matched("tiny", "5/class"),
    "match strong 20": lambda: matched("tiny-strong", "20/class"),
    "match strong 5": lambda: matched("tiny-strong", "5/class"),
    "relaxed": lambda: relaxed("cub", "tiny", "tiny-bytes", "tiny2", "cifar-50"),
    "headline": lambda: headline(3, 4, 5),
    "plain replay": lambda: beside(("replay", "lucir-relaxed"), *PLAIN),
    "ladder": lambda: ladder(LADDER, ("head", "preservation"), *HEADS),
    "ladder cub": lambda: ladder(LADDER[1:], ("preservation",), "cub-head"),
    "replay cub": lambda: curves(3, "cub-replay", "cub-default"),
    "methods": lambda: by_method("5/class", 10, *METHODS_RUN),
    "match relaxed": lambda: both_relaxed(
        "and matched",
        ("tiny-relaxed", "tiny-relaxed-match"),
        ("tiny-bytes-relaxed", "tiny-bytes-match"),
    ),
    "power 2": lambda: both_relaxed("power=2", ("tiny-relaxed", "tiny-power2")),
    "power 4": lambda: both_relaxed("power=4", ("tiny-relaxed", "tiny-power4")),
    "power 4 matched": lambda: both_relaxed(
        "power=4",
        ("imagenette-head", "imagenette-power4"),
        ("imagenette-head20", "imagenette-power4"),
        ("scenes-head", "scenes-power4"),
        ("cub-head", "cub-power4"),
    ),
    "lower": lambda: lower(*LOW),
    "codecs": lambda: avif_gains("codecs"),
    "codecs lucir": lambda: stored_as("codecs-lucir"),
    "codecs unmatched": lambda: stored_as("codecs-unmatched"),
    "codecs cub": lambda: codecs("cub"),
    "codecs cub-avif": lambda: stored_as("cub-avif"),
    "codecs cub seed 6": lambda: curves(6, "cub-avif"),
    "codec choices": lambda: codec_choices("codecs", "cub-avif"),
    "bytes tiny": lambda: bytes_worth("tiny-bytes", WORTH),
    "bytes default": lambda: bytes_worth(
        "tiny-bytes-default", {"compressed": "tiny-bytes-default"}
    ),
    "selectors tiny": lambda: arms("`herding`", *TINY, of=selector),
    "selectors objects": lambda: arms("`herding`", "selectors-objects", of=any_selector),
    "selectors flowers": lambda: arms("`herding`", "selectors-flowers", of=any_selector),
    "candidates tiny": lambda: arms("jpeg 25", *TINY, of=candidate),
    "remedies tiny": lambda: arms("`lucir`", *TINY, of=remedy),
    "regret": lambda: regret(*GRIDS),
    "regret plan": lambda: planned("5/class", PLANNED),
    "regret since": lambda: since("dtd", "fruits", "plankton", "trash", "food"),
    "regret large": lambda: regret(*LARGE, by_grid=False),
    "regret replay": lambda: regret(*REPLAY_GRIDS, by_grid=False),
    "regret relaxed": lambda: regret(*RELAXED_GRIDS),
    "regret default": lambda: regret(*DEFAULT_GRIDS),
    "bounds default": lambda: bounds(*DEFAULT_GRIDS),
    "bounds relaxed": lambda: bounds(*RELAXED_GRIDS),
    "bounds": lambda: bounds(*GRIDS),
    "trials cub": lambda: trials("cub-trials"),
    "runs textures": lambda: compared("textures", "8/class"),
    "pairs textures": lambda: pairs("textures", "8/class"),
    "scenes road": lambda: scenes("road"),
    "pairs road": lambda: scene_pairs("road"),
    "scenes road-gentle": lambda: scenes("road-gentle"),
    "ratios road": lambda: ratios("road"),
    "times": times,
    "steps": steps,
    "costs": costs,
    "studies": studies,
    "speed": speed,
    "plans": plans,
    "samples": samples,
    "large": large,
    "adapters strategies": strategies,
    "adapters bytes": same_bytes,
    "adapters throughput": buffers,
    "fade cuts": cuts,
    "fade held": held,
    "fade trained cub": lambda: arms("drop", "cub-fade", of=fading),
    "fade trained tiny": lambda: arms("drop", "tiny-fade", of=fading),
    "clusters": clusters,
    "streaming": streaming,
    "ranks": ranks,
    "ranks runs": ranks_runs,
    "plan costs": plan_costs,
    "reservoirs": reservoirs,
    "embedding": embedding,
    "loops": lambda: matching(read("loop")),
    "adapters matched": lambda: matching(
        [row for row in read("adapters") if row["question"] == "matched"]
    ),
    "peers": peers,
    "peers in short": peers_in_short,
}


def filled(page: str) -> str:
    """A page with everything between `<!-- table X -->` and `<!-- end -->` regenerated."""
    places = re.compile(r"(<!-- table (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)
    return places.sub(lambda found: found[1] + TABLES[found[2]]() + found[3], page)


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(filled(page.read_text()))
