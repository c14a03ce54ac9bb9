"""Fills the tables of REPRODUCTION.md from results/*.jsonl, where comments mark their places."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

from mrdc.detection.methods import SCENE_METHODS
from mrdc.experiments.presets import COLUMNS, TABLE_1

RESULTS = Path(__file__).resolve().parent / "results"
PAGE = RESULTS.parents[1] / "REPRODUCTION.md"
Row = dict[str, Any]
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


def read(name: str) -> list[Row]:
    path = RESULTS / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def table(*rows: list[object]) -> str:
    """A Markdown table; the first row is its head."""
    lines = ["|" + "|".join(f" {cell} " for cell in row) + "|" for row in rows]
    lines.insert(1, "|" + "-|" * len(rows[0]))
    return "\n".join(lines) + "\n"


def name(candidate: Row) -> str:
    quality = candidate["quality"]
    return candidate["codec"] if quality is None else f"{candidate['codec']} {quality}"


def plans() -> str:
    """Every plan: images and R_q by candidate, the choice in bold."""
    parts = []
    for plan in read("plan"):
        exact = any("l2" in candidate for candidate in plan["candidates"])
        parts.append(
            f"{plan['label']}, {plan['budget']['text']}, {plan['pairing']}, "
            f"{plan['seconds']:.0f} s\n(commit {plan['commit']}, {plan['gpu'] or plan['cpu']})\n"
        )
        head = ["candidate", "bytes/image", "images", "R_q", "verdict"]
        rows: list[list[object]] = [[*head, *(["log Z_q", "L_2"] if exact else [])]]
        for c in plan["candidates"]:
            label = f"**{name(c)}**" if c["verdict"] == "chosen" else name(c)
            each = f"{c['bytes'] / c['quantity']:,.0f}"
            cells = [label, each, f"{c['quantity']:,}", f"{c['volume_ratio']:.3f}", c["verdict"]]
            if exact:
                cells += [f"{c['log_z']:.2f}", f"{c['l2']:.3f}"] if "l2" in c else ["", ""]
            rows.append(list(cells))
        file = plan["audit"]
        parts.append(table(*rows))
        parts.append(
            f"`pack` wrote {file['items']:,} images, {file['payload_bytes']:,} of "
            f"{file['budget_bytes']:,} budget bytes, in a file of {file['file_bytes']:,}; "
            f"audit: {'sound' if file['ok'] else file['problems']}.\n"
        )
    return "\n".join(parts)


def speed() -> str:
    """Ratios, every line of each question and data set."""
    rows: list[list[object]] = [["question", "data", "ratio", "aim"]]
    rows += [
        ["decode against Pillow", r["label"], f"{r['ratio']:.2f}", ">= 1.4"] for r in read("decode")
    ]
    for r in read("batches"):
        threads = f"{r['threads']} threads, {r['workers']} workers"
        for what, ratio in (("a reused buffer", "ratio"), ("new memory", "ratio_fresh")):
            question = f"batches against the PIL loader, {threads}, as floats in {what}"
            rows.append([question, r["label"], f"{r[ratio]:.2f}", ">= 2.4"])
    for r in read("threads")[1:]:  # the first is one thread
        question = f"images ready for a network, {r['threads']} threads against one"
        rows.append([f"{question}, {r['cores']} cores", r["label"], f"{r['ratio']:.2f}", ""])
    for r in read("selection"):
        shape = f"{r['rows']} x {r['columns']}"
        rows.append([f"{r['what']} against a plain loop", shape, f"{r['ratio']:.1f}", ""])
    for r in read("ram"):
        for what, ratio in (("resident", "ratio"), ("objects added up", "ratio_counted")):
            question = f"RAM of a memory against its payload, {what}"
            rows.append([question, r["label"], f"{r[ratio]:.4f}", "<= 1.02"])
    rows += [
        ["pack against the bare encode", r["label"], f"{r['ratio']:.2f}", "<= 1.3"]
        for r in read("pack")
    ]
    for r in read("peak"):
        what = f"RAM for each image beyond 1,000, {r['select']}, {r['feature_bytes']} B of features"
        rows.append([what, r["label"], f"{r['bytes_per_extra_image']:,.0f} B", ""])
    return table(*rows)


def groups(label: str, budget: str = "20/class") -> dict[tuple[str, int], list[Row]]:
    """Runs on some data by recipe and number of phases, in the order of the paper's table."""
    found: dict[tuple[str, int], list[Row]] = {}
    for run in read("runs"):
        if run["label"] == label and run["budget"] == budget:
            for recipe, result in answers(run):
                found.setdefault((recipe, len(run["sizes"]) - 1), []).append(result)
    runs = {key: sorted(group, key=lambda run: int(run["seed"])) for key, group in found.items()}
    return dict(sorted(runs.items(), key=lambda item: in_table(*item[0])))


def answers(run: Row) -> Iterator[tuple[str, Row]]:
    """A run under its recipe; iCaRL's also as LwF's, which is the same network with its head."""
    yield run["name"], run
    if run["name"].startswith("icarl"):
        average = run["head_average_incremental_accuracy"]
        curve = {"accuracy": run["head_accuracy"], "average_incremental_accuracy": average}
        yield run["name"].replace("icarl", "lwf"), {**run, **curve, "initial_forgetting": None}


def in_table(recipe: str, phases: int) -> tuple[object, ...]:
    """Phases, then the method, then originals before compressed."""
    base = recipe.removesuffix("-mrdc")
    methods = [name for name in TABLE_1 if not name.endswith("-mrdc")]
    place = methods.index(base) if base in methods else len(methods)
    return phases, place, base, recipe


def published(recipe: str, phases: int, label: str) -> tuple[float | None, float | None]:
    """The paper's mean and deviation."""
    if label != "cub":
        return None, None
    column = COLUMNS.index(f"cub-{phases}")
    found = TABLE_1.get(recipe, (None,) * len(COLUMNS))[column]
    return found, DEVIATIONS.get(recipe, (None,) * 3)[column]


def compared(label: str, budget: str = "20/class") -> str:
    """Averaged incremental accuracy of every recipe on some data beside the paper's."""
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
    head = [
        "method",
        "phases",
        "pairs",
        "gain, averaged",
        "the paper's",
        "gain after the last phase",
    ]
    rows: list[list[object]] = [head]
    for (recipe, phases), compressed in found.items():
        base = recipe.removesuffix("-mrdc")
        originals = {run["seed"]: run for run in found.get((base, phases), [])}
        if base == recipe or not originals:
            continue
        both = [(originals[run["seed"]], run) for run in compressed if run["seed"] in originals]
        both = [(a, b) for a, b in both if a["accuracy"][0] == b["accuracy"][0]]
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


def with_error(differences: list[float]) -> str:
    """Mean difference, and its standard error where there are several."""
    error = f" +- {stdev(differences) / len(differences) ** 0.5:.2f}" if differences[1:] else ""
    return f"{mean(differences):+.2f}{error}"


def trials(label: str) -> str:
    """Runs with other settings of a method or its training."""
    head = ["recipe", "settings", "seed", "after phase 0", "averaged, %", "last", "newest task"]
    rows: list[list[object]] = [head]
    for folder in sorted((RESULTS / label).iterdir()):
        config = json.loads((folder / "config.json").read_text())
        *phases, _ = map(json.loads, (folder / "results.jsonl").read_text().splitlines())
        curve = [phase["accuracy"] for phase in phases]
        rows.append(
            [
                config["name"],
                told(config["settings"]),
                config["settings"]["seed"],
                f"{curve[0]:.2f}",
                f"{mean(curve):.2f}",
                f"{curve[-1]:.2f}",
                f"{phases[-1]['tasks'][-1]:.2f}",
            ]
        )
    return table(*rows)


def told(settings: Row) -> str:
    """Options of the method, and the training where a recipe changes it."""
    train = settings["train"]
    parts = [*settings["options"], f"lr {train['lr']:g}", train["schedule"]]
    parts += [f"batch {train['batch_size']}", f"{train['epochs']} epochs"]
    return ", ".join(parts)


def times() -> str:
    """Where the time of a run goes, of runs that had the card to themselves."""
    parts = ("decode", "train", "select", "volume_ratio", "encode", "evaluate", "write")
    head = ["recipe", "seed", "commit", "phases", "seconds", *parts]
    rows: list[list[object]] = [[*head, "trained images", "images/s", "start", "R_q to choose"]]
    for run in read("runs"):
        if run["gpu"] and run["remark"] is None:
            shares = [f"{run['parts'].get(part, 0):.1f}" for part in parts]
            rows.append(
                [
                    run["name"],
                    run["seed"],
                    run["commit"],
                    len(run["sizes"]) - 1,
                    f"{run['seconds']:.0f}",
                    *shares,
                    f"{run['trained_images']:,}",
                    f"{median(run['images_per_second']):,.0f}",
                    f"{run['start_seconds']:.1f}",
                    f"{run['choosing_seconds']:.1f}",
                ]
            )
    return table(*rows)


def steps() -> str:
    """Images a second of the training step."""
    rates: list[list[object]] = [["step", "batch", "plain", "graph", "compiled", "both"]]
    for batch, teacher in ((128, False), (128, True), (512, False)):
        found = {
            (r["graph"], r["compiled"]): f"{r['rate']:,.0f}"
            for r in read("step")
            if r["batch"] == batch and r["teacher"] == teacher
        }
        what = "LUCIR with its teacher" if teacher else "the bare network"
        kinds = ((False, False), (True, False), (False, True), (True, True))
        rates.append([what, batch, *(found.get(kind, "") for kind in kinds)])
    return table(*rates)


def studies() -> str:
    """Every small study: its rows, and what it answers."""
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


def spread(values: list[float]) -> str:
    """Mean, and deviation where there are several."""
    more = f" +- {stdev(values):.2f}" if len(values) > 1 else ""
    return f"{mean(values):.2f}{more}"


def costs() -> str:
    """Training images a second of methods beside their base's."""
    aims = {"aanets": 2.7, "dde": 3.0, "mnemonics": 2.0, "tpcil": 2.0}
    rows: list[list[object]] = [["method", "images/s", "times its base's", "aim", "commit"]]
    for r in read("cost"):
        aim = aims.get(r["method"].split("-")[-1], "")
        rate = f"{r['images_per_second']:,.0f}"
        rows.append([r["method"], rate, f"{r['ratio']:.2f}", aim and f"<= {aim}", r["commit"]])
    return table(*rows)


def scenes(label: str) -> str:
    """Detectors: AP after the last phase, mean and deviation over seeds."""
    groups: dict[str, list[Row]] = {}
    for run in read("runs"):
        if run["label"] == label:
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


def kept(run: Row) -> str:
    """What a memory holds; nothing without one."""
    return str(run["quality"] or "original") if run["memory"]["items"] else ""


def in_scenes(recipe: str) -> tuple[int, int]:
    """The learner's place, and that of what is replayed."""
    learner, _, replay = recipe.rpartition("-")
    return list(SCENE_METHODS).index(learner), ("finetune", "replay", "mrdc").index(replay)


def ratios(label: str) -> str:
    """R_q of scenes by phase, in runs that compress; one seed."""
    rows: list[list[object]] = [["recipe", "quality", "by phase", "mean"]]
    for run in read("runs"):
        if run["label"] == label and run["name"].endswith("-mrdc") and run["seed"] == 0:
            for row in run["volume_ratios"]:
                by_phase = ", ".join(f"{value:.2f}" for value in row["by_phase"])
                quality = row["quality"] or "original"
                rows.append([run["name"], quality, by_phase, f"{row['mean']:.2f}"])
    return table(*rows)


TABLES: dict[str, Callable[[], str]] = {
    "runs cub": lambda: compared("cub"),
    "pairs cub": lambda: pairs("cub"),
    "grid cub": lambda: compared("cub", "5/class"),
    "trials cub": lambda: trials("cub-trials"),
    "runs textures": lambda: compared("textures", "8/class"),
    "pairs textures": lambda: pairs("textures", "8/class"),
    "scenes road": lambda: scenes("road"),
    "scenes road-gentle": lambda: scenes("road-gentle"),
    "ratios road": lambda: ratios("road"),
    "times": times,
    "steps": steps,
    "costs": costs,
    "studies": studies,
    "speed": speed,
    "plans": plans,
}


def filled(page: str) -> str:
    """A page with what stands between `<!-- table X -->` and `<!-- end -->` made anew."""
    places = re.compile(r"(<!-- table (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)
    return places.sub(lambda found: found[1] + TABLES[found[2]]() + found[3], page)


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text()))
