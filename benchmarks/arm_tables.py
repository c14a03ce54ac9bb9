"""Tables of runs that differ in one thing and share the network of phase 0, seed by seed."""

from collections.abc import Callable
from itertools import pairwise
from statistics import mean

from common import Row, table
from mrdc.experiments.worth import Point, worth
from run_tables import spread, with_error
from runs import results, runs_of

RELAXED = ("lucir", "lucir-relaxed")
LUCIR_20 = ("lucir", "20/class")
TRAINING = {"cub": 5_994, "tiny": 1_500, "tiny2": 1_500, "hands": 1_500, "cifar": 5_000}  # images
TRAINING |= {"imagenette": 1_000, "scenes": 600}
Labels = tuple[str, str]
SCORE = "average_incremental_accuracy"


def pairs_of(labels: Labels, methods: Labels) -> list[tuple[Row, Row]]:
    """Runs of two labels with equal phases, budget, quality and seed, after one phase 0."""
    runs = [
        {
            (len(r["sizes"]), r["budget"], r["quality"], r["seed"]): r
            for r in results(label)
            if r["method"] == method
        }
        for label, method in zip(labels, methods, strict=True)
    ]
    both = [(runs[0][key], runs[1][key]) for key in runs[0] if key in runs[1]]
    return [(a, b) for a, b in both if a["head_accuracy"][0] == b["head_accuracy"][0]]


def paired(names: Labels, methods: Labels, *labels: Labels) -> str:
    """Two ways to train, by data, budget and quality; the runs of a pair share phase 0."""
    head = ["data", "budget", "quality", "pairs", "images held", "share", *names, "gain"]
    rows: list[list[object]] = [[*head, "new as new, %", names[1]]]
    groups: dict[tuple[str, int, int], list[tuple[Row, Row]]] = {}
    for pair in (pair for two in labels for pair in pairs_of(two, methods)):
        run = pair[0]
        budget, quality = int(run["budget"].split("/")[0]), -(run["quality"] or 100)
        groups.setdefault((run["data"], budget, quality), []).append(pair)
    order = list(dict.fromkeys(data for data, _, _ in groups))
    for data, budget, quality in sorted(groups, key=lambda key: (order.index(key[0]), *key[1:])):
        pairs = groups[data, budget, quality]
        held = mean(a["memory"]["items"] for a, _ in pairs)
        rows.append(
            [
                data,
                f"{budget}/class",
                "original" if quality == -100 else -quality,
                len(pairs),
                f"{held:,.0f}",
                f"{100 * held / TRAINING[data]:.0f} %",
                *(f"{mean(pair[n][SCORE] for pair in pairs):.2f}" for n in (0, 1)),
                with_error([b[SCORE] - a[SCORE] for a, b in pairs]),
                *(f"{mean(mean(p[n]['new_as_new'][1:]) for p in pairs):.0f}" for n in (0, 1)),
            ]
        )
    return table(*rows)


def relaxed(*labels: str) -> str:
    """LUCIR beside `lucir-relaxed`."""
    return paired(("LUCIR", "relaxed"), RELAXED, *((name, f"{name}-relaxed") for name in labels))


def both_relaxed(second: str, *labels: Labels) -> str:
    """`lucir-relaxed` as it is, and with something added."""
    return paired(("relaxed", second), (RELAXED[1], RELAXED[1]), *labels)


def headline(*seeds: int) -> str:
    """The paper's method and the one we recommend on CUB: the best codec setting in each budget."""
    found: dict[tuple[str, str], dict[tuple[str, int | None], list[Row]]] = {}
    for run in results("cub", "cub-default", "cub-avif"):
        wanted = run["label"] != "cub" or (run["method"], run["budget"]) == LUCIR_20
        if run["seed"] in seeds and wanted and len(run["sizes"]) == 6:
            stored = run["codecs"][0] if run["quality"] else "original", run["quality"]
            found.setdefault((run["method"], run["budget"]), {}).setdefault(stored, []).append(run)
    codecs = ("original", "jpeg", "avif")
    rows: list[list[object]] = [["method", "bytes of", "original files", "JPEG", "AVIF"]]
    for (method, budget), arms in sorted(found.items(), key=lambda item: budget_of(*item[0])):
        plenty, _, number = budget_of(method, budget)  # joint trains on all images so far
        rows.append(
            [
                f"`{method}`",
                "all originals" if plenty else f"{number} original{'s'[: number != 1]} per class",
                *(
                    best_arm([runs for (name, _), runs in arms.items() if name == c])
                    for c in codecs
                ),
            ]
        )
    return table(*rows)


def budget_of(method: str, budget: str) -> tuple[bool, str, int]:
    """Whether the method is `joint`, which comes last, its name, and originals per class."""
    return method == "joint", method, int(budget.split("/")[0])


def best_arm(arms: list[list[Row]]) -> str:
    """Accuracy, quality and images held of the best of some arms; empty without any."""
    if not arms:
        return ""
    runs = max(arms, key=score)
    quality = f"quality {runs[0]['quality']}, " if runs[0]["quality"] else ""
    held = mean(run["memory"]["items"] for run in runs)
    return f"{score(runs):.1f} ({quality}{held:,.0f} images)" if held else f"{score(runs):.1f}"


def score(runs: list[Row]) -> float:
    """Averaged incremental accuracy, mean over runs."""
    return mean(float(run[SCORE]) for run in runs)


def arms(base: str, *labels: str, of: Callable[[Row], str | None]) -> str:
    """Every arm seed by seed, and its mean difference from the arm `base`; `of` names the arm."""
    found: dict[str, dict[int, Row]] = {}
    for label in labels:
        for run in runs_of(label):
            settings = run["config"]["settings"]
            arm = of(settings)
            if arm is not None and run["result"]:
                found.setdefault(arm, {})[settings["seed"]] = run["result"]
    rows: list[list[object]] = [["", "images held", "averaged, %, by seed", "mean", "difference"]]
    for arm in sorted(found, key=lambda arm: (arm != base, arm)):
        keys = sorted(found[arm].keys() & found[base].keys())
        scores = [found[arm][key][SCORE] for key in keys]
        gains = [score - found[base][key][SCORE] for key, score in zip(keys, scores, strict=True)]
        rows.append(
            [
                arm,
                f"{mean(found[arm][key]['memory']['items'] for key in keys):,.0f}",
                ", ".join(f"{score:.2f}" for score in scores),
                f"{mean(scores):.2f}",
                "" if arm == base else with_error(gains),
            ]
        )
    return table(*rows)


def by_method(budget: str, quality: int, *labels: str) -> str:
    """Gain of JPEG of one quality over originals with each method, over pairs of one seed."""
    found: dict[str, dict[int | None, dict[int, Row]]] = {}
    for run in results(*labels):
        if run["budget"] == budget:
            arms = found.setdefault(run["method"], {})
            arms.setdefault(run["quality"], {})[run["seed"]] = run
    head = ["method", "seeds", "originals, %", f"JPEG {quality}, %", "gain", "after the last phase"]
    rows: list[list[object]] = [[*head, "new as new, %", f"with JPEG {quality}"]]
    for method, arms in sorted(found.items(), key=lambda item: score([*item[1][None].values()])):
        both = [(run, arms[quality][seed]) for seed, run in sorted(arms[None].items())]
        taken = [f"{mean(mean(p[n]['new_as_new'][1:]) for p in both):.0f}" for n in (0, 1)]
        rows.append(
            [
                f"`{method}`",
                ", ".join(str(run["seed"]) for run, _ in both),
                *(spread([pair[n][SCORE] for pair in both]) for n in (0, 1)),
                with_error([b[SCORE] - a[SCORE] for a, b in both]),
                with_error([b["accuracy"][-1] - a["accuracy"][-1] for a, b in both]),
                *taken,
            ]
        )
    return table(*rows)


def beside(methods: Labels, *labels: str) -> str:
    """Two methods by data, budget and quality, over the seeds that both have."""
    rows: list[list[object]] = [["data", "budget", "quality", "images held"]]
    rows[0] += [*(f"`{method}`" for method in methods), "difference", "after the last phase"]
    arms: dict[tuple[str, int, int], dict[str, dict[int, Row]]] = {}
    for run in results(*labels):
        if run["method"] in methods:
            key = run["data"], int(run["budget"].split("/")[0]), -(run["quality"] or 100)
            arms.setdefault(key, {}).setdefault(run["method"], {})[run["seed"]] = run
    for (data, budget, quality), found in sorted(arms.items()):
        one, other = (found.get(method, {}) for method in methods)
        both = [(one[seed], other[seed]) for seed in sorted(one.keys() & other.keys())]
        if both:
            rows.append(
                [
                    data,
                    f"{budget}/class",
                    "original" if quality == -100 else -quality,
                    f"{mean(a['memory']['items'] for a, _ in both):,.0f}",
                    *(spread([pair[n][SCORE] for pair in both]) for n in (0, 1)),
                    with_error([b[SCORE] - a[SCORE] for a, b in both]),
                    with_error([b["accuracy"][-1] - a["accuracy"][-1] for a, b in both]),
                ]
            )
    return table(*rows)


def ladder(methods: tuple[str, ...], steps: tuple[str, ...], *labels: str) -> str:
    """Methods by data and quality, and what each step from one to the next gains; same seeds."""
    head = ["data", "budget", "stored as", "images held", "seeds"]
    head += [f"`{method}`" for method in methods]
    last = [f"{step}, last phase" for step in steps]
    rows: list[list[object]] = [[*head, *steps, *last]]
    arms: dict[tuple[str, int, int], dict[str, dict[int, Row]]] = {}
    for run in results(*labels):
        key = run["data"], int(run["budget"].split("/")[0]), -(run["quality"] or 100)
        arms.setdefault(key, {}).setdefault(run["method"], {})[run["seed"]] = run
    for (data, budget, quality), found in sorted(arms.items()):
        seeds = sorted(set.intersection(*(set(found.get(method, {})) for method in methods)))
        by_method = [[found[method][seed] for seed in seeds] for method in methods]
        averaged = [[run[SCORE] for run in runs] for runs in by_method]
        ends = [[run["accuracy"][-1] for run in runs] for runs in by_method]
        held = mean(run["memory"]["items"] for runs in by_method for run in runs)
        rows.append(
            [
                data,
                f"{budget}/class",
                "original" if quality == -100 else f"jpeg {-quality}",
                f"{held:,.0f}",
                ", ".join(map(str, seeds)),
                *map(spread, averaged),
                *(with_error(gains) for values in (averaged, ends) for gains in stepwise(values)),
            ]
        )
    return table(*rows)


def stepwise(values: list[list[float]]) -> list[list[float]]:
    """Differences of each list from the one before, place by place."""
    return [[b - a for a, b in zip(one, other, strict=True)] for one, other in pairwise(values)]


def curves(seed: int, *labels: str) -> str:
    """Accuracy after each phase, also of runs that were stopped; one seed."""
    runs = [run for label in labels for run in runs_of(label)]
    runs = [run for run in runs if run["config"]["settings"]["seed"] == seed]

    def place(run: Row) -> tuple[int, int, str]:
        settings, last = run["config"]["settings"], run["phases"][-1]
        budget = int(settings["memory"]["budget"].split("/")[0])
        return -budget, -(last["quality"] or 100), settings["method"]

    rows: list[list[object]] = [["bytes of", "stored as", "method", "after each phase, %"]]
    for run in sorted(runs, key=place):
        budget, quality, method = place(run)
        stored = "original" if quality == -100 else f"{run['phases'][-1]['codec']} {-quality}"
        curve = ", ".join(f"{phase['accuracy']:.1f}" for phase in run["phases"])
        rows.append([f"{-budget}/class", stored, f"`{method}`", curve])
    return table(*rows)


def plain(settings: Row) -> bool:
    """LUCIR with 5 originals per class and nothing else changed but the memory."""
    same = settings["method"] == "lucir" and settings["memory"]["budget"] == "5/class"
    return same and settings["compress"] is None and not settings["train"]["match"]


def any_selector(settings: Row) -> str:
    """The selector of a run."""
    return f"`{settings['memory']['select']}`"


def selector(settings: Row) -> str | None:
    """The selector of a run with JPEG 25."""
    memory = settings["memory"]
    usual = (memory["codec"], memory["scale"], memory["quality"]) == (["jpeg"], [1.0], "25")
    return any_selector(settings) if plain(settings) and usual else None


def candidate(settings: Row) -> str | None:
    """Codec, scale and quality of a run that selects by herding."""
    memory = settings["memory"]
    herded = memory["select"] == "herding" and memory["quality"] in {"10", "25"}
    if not plain(settings) or not herded:
        return None
    size = f", {memory['scale'][0]:g} of the sides" if memory["scale"] != [1.0] else ""
    return f"{memory['codec'][0]} {memory['quality']}{size}"


def remedy(settings: Row) -> str | None:
    """Remedy of a run with JPEG 10 against artefacts."""
    if settings["memory"]["budget"] != "5/class" or settings["memory"]["codec"] != ["jpeg"]:
        return None
    if settings["compress"] == 10:
        return "all images compressed from the start"
    if settings["memory"]["quality"] != "10" or settings["memory"]["scale"] != [1.0]:
        return None
    if settings["method"] == "lucir-fidelity":
        return "`lucir-fidelity`"
    matched = {0.0: "`lucir`", 0.5: "`--train.match 0.5`", 1.0: "`--train.match 1`"}
    return matched[settings["train"]["match"]] if settings["method"] == "lucir" else None


def fading(settings: Row) -> str | None:
    """Whether a memory of progressive JPEGs fades, or has another codec and quality."""
    memory = settings["memory"]
    if memory["codec"] != ["jpeg-progressive"]:
        return f"{memory['codec'][0]} {memory['quality']}"
    return "fade" if memory["fade"] else "drop"


def bytes_worth(originals: str, arms: dict[str, str]) -> str:
    """Budgets against accuracy: originals, other arms by label, and what each is worth in bytes."""
    points = [
        Point(arm, run["budget"], run["seed"], run["memory"]["budget_bytes"], run[SCORE], first)
        for label, arm, first in [
            (originals, "originals", True),
            *((label, arm, False) for arm, label in arms.items()),
        ]
        for run in results(label)
        if (run["quality"] is None) == first
    ]
    found = worth(points)
    rows: list[list[object]] = [["", "budget", "bytes", "runs", "averaged, %", "times the bytes"]]
    for one in sorted(found, key=lambda one: (one.arm != "originals", one.arm, one.bytes)):
        size = f"{one.bytes:,.0f}"
        cells = [one.arm, one.budget, size, len(one.scores), spread(one.scores), one.text]
        rows.append(list(cells))
    return table(*rows)
