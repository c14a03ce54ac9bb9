"""Tables of runs: accuracy and AP beside the paper's, and what compression gains."""

from collections.abc import Iterator
from statistics import mean, median, stdev

from common import Row, table
from mrdc._utils.text import ratio
from mrdc.detection.methods import SCENE_METHODS
from mrdc.experiments.presets import COLUMNS, TABLE_1
from runs import results, runs_of

APS = ("ap", "ap50", "ap75")
# Deviations of the paper's CUB columns (5, 10 and 25 phases)
DEVIATIONS: dict[str, tuple[float, float, float]] = {
    "lwf": (0.48, 0.96, 0.74),
    "icarl": (0.58, 0.66, 0.73),
    "bic": (0.88, 0.70, 0.27),
    "lucir": (0.32, 0.28, 0.66),
    "podnet": (0.31, 0.65, 0.44),
    "lucir-mrdc": (0.60, 0.51, 0.72),
    "podnet-mrdc": (0.28, 0.37, 0.43),
    "lucir-aanets": (0.66, 0.77, 0.95),
    "lucir-aanets-mrdc": (1.07, 0.87, 1.42),
    "lucir-dde": (0.65, 0.69, 0.33),
    "lucir-dde-mrdc": (0.60, 0.48, 0.34),
}


def groups(label: str, budget: str = "20/class") -> dict[tuple[str, int], list[Row]]:
    """Runs on some data by recipe and number of phases, in the order of the paper's table."""
    found: dict[tuple[str, int], list[Row]] = {}
    for run in results(label):
        if run["budget"] == budget:
            for recipe, result in answers(run):
                found.setdefault((recipe, len(run["sizes"]) - 1), []).append(result)
    runs = {key: sorted(group, key=lambda run: int(run["seed"])) for key, group in found.items()}
    return dict(sorted(runs.items(), key=lambda item: in_table(*item[0])))


def answers(run: Row) -> Iterator[tuple[str, Row]]:
    """A run under its recipe; one of iCaRL also as LwF: the same network, tested by its head."""
    yield run["name"], run
    if run["name"].startswith("icarl"):
        average = run["head_average_incremental_accuracy"]
        curve = {"accuracy": run["head_accuracy"], "average_incremental_accuracy": average}
        yield run["name"].replace("icarl", "lwf"), {**run, **curve, "initial_forgetting": None}


def in_table(recipe: str, phases: int) -> tuple[object, ...]:
    """Sort key: phases, then the method, then originals before compressed."""
    base = recipe.removesuffix("-mrdc")
    methods = [name for name in TABLE_1 if not name.endswith("-mrdc")]
    place = methods.index(base) if base in methods else len(methods)
    return phases, place, base, recipe


def published(recipe: str, phases: int, label: str) -> tuple[float | None, float | None]:
    """The paper's mean and standard deviation, if any."""
    if label != "cub":
        return None, None
    column = COLUMNS.index(f"cub-{phases}")
    found = TABLE_1.get(recipe, (None,) * len(COLUMNS))[column]
    return found, DEVIATIONS.get(recipe, (None,) * 3)[column]


def compared(label: str, budget: str = "20/class") -> str:
    """Averaged incremental accuracy of every recipe on some data, beside the paper's."""
    head = ["recipe", "phases", "seeds", "averaged, %", "the paper", "after phase 0", "last"]
    rows: list[list[object]] = [[*head, "forgetting, initial classes", "quality", "images held"]]
    for (recipe, phases), runs in groups(label, budget).items():
        mean_, deviation = published(recipe, phases, label)
        forgotten = [run["initial_forgetting"] for run in runs]
        rows.append(
            [
                recipe,
                phases,
                ", ".join(str(run["seed"]) for run in runs),
                spread([run["average_incremental_accuracy"] for run in runs]),
                "" if mean_ is None else f"{mean_:.2f} +- {deviation:.2f}",
                spread([run["accuracy"][0] for run in runs]),
                spread([run["accuracy"][-1] for run in runs]),
                "" if None in forgotten else spread(forgotten),
                ", ".join(sorted({str(run["quality"] or "original") for run in runs})),
                f"{mean(run['memory']['items'] for run in runs):,.0f}",
            ]
        )
    return table(*rows)


def pairs(label: str, budget: str = "20/class") -> str:
    """Compressed minus original, over pairs of one seed that share the network of phase 0."""
    found = groups(label, budget)
    head = ["method", "phases", "pairs", "gain, averaged", "the paper's"]
    rows: list[list[object]] = [[*head, "gain after the last phase"]]
    for (recipe, phases), compressed in found.items():
        base = recipe.removesuffix("-mrdc")
        originals = {run["seed"]: run for run in found.get((base, phases), [])}
        if base == recipe or not originals:
            continue
        both = [(originals[run["seed"]], run) for run in compressed if run["seed"] in originals]
        first = "head_accuracy"  # of one network, while iCaRL's class means depend on the memory
        both = [(a, b) for a, b in both if a[first][0] == b[first][0]]
        if not both:
            continue
        key = "average_incremental_accuracy"
        theirs = [published(name, phases, label)[0] for name in (base, recipe)]
        known = None not in theirs
        rows.append(
            [
                base,
                phases,
                len(both),
                with_error([b[key] - a[key] for a, b in both]),
                f"{theirs[1] - theirs[0]:+.2f}" if known else "",  # type: ignore[operator]
                with_error([b["accuracy"][-1] - a["accuracy"][-1] for a, b in both]),
            ]
        )
    return table(*rows)


def grid(label: str, budget: str) -> str:
    """Every quality in the same bytes, and the criteria measured after their shared phase 0."""
    head = ["quality", "seed", "images held", "averaged, %", "last", "forgetting, initial classes"]
    rows: list[list[object]] = [[*head, "R_q", "r", "discrepancy"]]
    runs = [run for run in results(label) if run["budget"] == budget]
    for run in sorted(runs, key=lambda run: (int(run["seed"]), -(run["quality"] or 101))):
        measured = next(row for row in run["volume_ratios"] if row["quality"] == run["quality"])
        rows.append(
            [
                run["quality"] or "original",
                run["seed"],
                f"{run['memory']['items']:,}",
                f"{run['average_incremental_accuracy']:.2f}",
                f"{run['accuracy'][-1]:.2f}",
                f"{run['initial_forgetting']:.2f}",
                ratio(measured["by_phase"][0]),
                f"{measured['ratio_per_image'][0]:.4f}",
                f"{measured['discrepancy'][0]:.4f}",
            ]
        )
    return table(*rows)


def matched(label: str, budget: str) -> str:
    """Runs with and without quality-matched replay (--train.match), by quality and seed."""
    head = ["quality", "seed", "match", "averaged, %", "last", "forgetting, initial classes"]
    rows: list[list[object]] = [[*head, "old as old, %", "new as new, %"]]
    found = {
        (-run["quality"], run["seed"], match): run
        for name, match in ((label, "no"), (f"{label}-half", "half"), (f"{label}-match", "always"))
        for run in results(name)
        if run["budget"] == budget and run["quality"]
    }
    compared = {key[:2] for key in found if key[2] == "always"}
    for (quality, seed, match), run in sorted(found.items(), key=lambda item: item[0][:2]):
        if (quality, seed) in compared:
            rows.append(
                [
                    -quality,
                    seed,
                    match,
                    f"{run['average_incremental_accuracy']:.2f}",
                    f"{run['accuracy'][-1]:.2f}",
                    f"{run['initial_forgetting']:.2f}",
                    f"{run['old_as_old'][-1]:.1f}",
                    f"{run['new_as_new'][-1]:.1f}",
                ]
            )
    return table(*rows)


def with_error(differences: list[float]) -> str:
    """Mean difference, and its standard error if there are several."""
    error = f" +- {stdev(differences) / len(differences) ** 0.5:.2f}" if differences[1:] else ""
    return f"{mean(differences):+.2f}{error}"


def trials(label: str) -> str:
    """Runs with other settings of a method or its training; some were stopped early."""
    head = ["recipe", "settings", "seed", "after each phase, %", "averaged, %"]
    rows: list[list[object]] = [[*head, "newest task"]]
    for run in sorted(runs_of(label), key=lambda run: str(run["folder"])):
        config, phases = run["config"], run["phases"]
        average = run["result"] and run["result"]["average_incremental_accuracy"]
        rows.append(
            [
                config["name"],
                told(config["settings"]),
                config["settings"]["seed"],
                ", ".join(f"{phase['accuracy']:.2f}" for phase in phases),
                "" if average is None else f"{average:.2f}",
                f"{phases[-1]['tasks'][-1]:.1f}",
            ]
        )
    return table(*rows)


def told(settings: Row) -> str:
    """Method options, training settings that recipes change, an unusual stem or budget."""
    train = settings["train"]
    parts = [*settings["options"], f"lr {train['lr']:g}", train["schedule"]]
    parts += [f"batch {train['batch_size']}", f"{train['epochs']} epochs"]
    if settings.get("stem", "auto") != "auto":
        parts.append(f"stem {settings['stem']}")
    memory = settings["memory"]
    if memory["budget"] != "20/class":
        parts += [memory["budget"], memory["quality"]]
    return ", ".join(parts)


def spread(values: list[float]) -> str:
    """Mean, and standard deviation if there are several values."""
    more = f" +- {stdev(values):.2f}" if len(values) > 1 else ""
    return f"{mean(values):.2f}{more}"


def scenes(label: str) -> str:
    """Detectors: AP after the last phase, mean and standard deviation over seeds."""
    groups: dict[str, list[Row]] = {}
    for run in results(label):
        groups.setdefault(run["name"], []).append(run)
    head = ["recipe", "runs", "AP", "AP50", "AP75", "mean AP of the phases", "quality"]
    rows: list[list[object]] = [[*head, "scenes held", "images/s", "share of data"]]
    for recipe in sorted(groups, key=in_scenes):
        runs = groups[recipe]
        spent = [run["parts"] for run in runs]
        share = mean(parts["decode"] / (parts["decode"] + parts["train"]) for parts in spent)
        rows.append(
            [
                recipe,
                len(runs),
                *(spread([run[key][-1] for run in runs]) for key in APS),
                spread([run["average_incremental_accuracy"] for run in runs]),
                ", ".join(sorted({kept(run) for run in runs})),
                f"{mean(run['memory']['items'] for run in runs):,.0f}",
                f"{median(rate for run in runs for rate in run['images_per_second']):.0f}",
                f"{100 * share:.1f} %",
            ]
        )
    return table(*rows)


def scene_pairs(label: str) -> str:
    """AP after the last phase, compressed minus original scenes, over pairs of one seed."""
    runs = {(run["name"], run["seed"]): run for run in results(label)}
    rows: list[list[object]] = [["learner", "pairs", "AP", "AP50", "AP75"]]
    everything: dict[str, list[float]] = {key: [] for key in APS}
    for learner in SCENE_METHODS:
        seeds = [seed for name, seed in runs if name == f"{learner}-mrdc"]
        both = [(runs[f"{learner}-replay", s], runs[f"{learner}-mrdc", s]) for s in seeds]
        gains = {key: [b[key][-1] - a[key][-1] for a, b in both] for key in APS}
        rows.append([learner, len(both), *(with_error(gains[key]) for key in APS)])
        for key in APS:
            everything[key] += gains[key]
    rows.append(["all", len(everything["ap"]), *(with_error(everything[key]) for key in APS)])
    return table(*rows)


def kept(run: Row) -> str:
    """Quality of the images in memory; empty without a memory."""
    return str(run["quality"] or "original") if run["memory"]["items"] else ""


def in_scenes(recipe: str) -> tuple[int, int]:
    """Sort key: the learner, then what it replays."""
    learner, _, replay = recipe.rpartition("-")
    return list(SCENE_METHODS).index(learner), ("finetune", "replay", "mrdc").index(replay)


def ratios(label: str) -> str:
    """R_q of scenes by phase, in runs that compress; one seed."""
    rows: list[list[object]] = [["recipe", "quality", "by phase", "mean"]]
    for run in results(label):
        if run["name"].endswith("-mrdc") and run["seed"] == 0:
            for row in run["volume_ratios"]:
                by_phase = ", ".join(f"{value:.2f}" for value in row["by_phase"])
                quality = row["quality"] or "original"
                rows.append([run["name"], quality, by_phase, f"{row['mean']:.2f}"])
    return table(*rows)
