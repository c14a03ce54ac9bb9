"""Fills the tables of documents from results/*.jsonl, where comments mark their places."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

from mrdc.detection.methods import SCENE_METHODS
from mrdc.experiments.presets import COLUMNS, TABLE_1

RESULTS = Path(__file__).resolve().parent / "results"
PAGES = [RESULTS.parents[1] / name for name in ("REPRODUCTION.md", "docs/adapters.md")]
Row = dict[str, Any]
APS = ("ap", "ap50", "ap75")


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


def same(run: Row) -> tuple[object, ...]:
    """What runs that differ only in their seed share."""
    return run["name"], len(run["sizes"]), run["budget"], run["quality_rule"]


def compared(label: str) -> str:
    """Averaged incremental accuracy of every recipe on some data beside the paper's."""
    groups: dict[tuple[object, ...], list[Row]] = {}
    for run in read("runs"):
        if run["label"] == label and run["budget"] != "5/class":  # that has a table of its own
            groups.setdefault(same(run), []).append(run)
    head = ["recipe", "phases", "runs", "ours, %", "the paper, %", "last, %"]
    rows: list[list[object]] = [[*head, "forgetting", "quality", "images held", "by seed"]]
    for (recipe, sizes, *_), runs in sorted(groups.items(), key=lambda item: in_table(*item[0])):
        assert isinstance(sizes, int) and isinstance(recipe, str)
        rows.append(cells(recipe, sizes, runs, "average_incremental_accuracy", "accuracy", label))
        if recipe.startswith("icarl"):  # the same network answers by its head as LwF's does
            lwf = recipe.replace("icarl", "lwf")
            scores = ("head_average_incremental_accuracy", "head_accuracy")
            rows.append([*cells(lwf, sizes, runs, *scores, label)[:6], "", *rows[-1][7:9], ""])
    return table(*rows)


def in_table(recipe: object, sizes: object, *_: object) -> tuple[object, ...]:
    """Phases, then the method, then originals before compressed."""
    base = str(recipe).removesuffix("-mrdc")
    methods = [name for name in TABLE_1 if not name.endswith("-mrdc")]
    place = methods.index(base) if base in methods else len(methods)
    return sizes, place, base, recipe


def cells(
    recipe: str, sizes: int, runs: list[Row], score: str, curve: str, label: str
) -> list[object]:
    column = COLUMNS.index(f"cub-{sizes - 1}") if label.startswith("cub") else None
    published = TABLE_1[recipe][column] if column is not None and recipe in TABLE_1 else None
    scores = [run[score] for run in sorted(runs, key=lambda run: int(run["seed"]))]
    return [
        recipe,
        sizes - 1,
        len(runs),
        spread(scores),
        "" if published is None else f"{published:.2f}",
        f"{mean(run[curve][-1] for run in runs):.2f}",
        f"{mean(run['average_forgetting'] for run in runs):.2f}",
        ", ".join(sorted({str(run["quality"] or "original") for run in runs})),
        f"{mean(run['memory']['items'] for run in runs):,.0f}",
        ", ".join(f"{found:.2f}" for found in scores),
    ]


def grid() -> str:
    """Every quality at a small budget, beside R_q of the run that replays originals."""
    runs = [run for run in read("runs") if run["budget"] == "5/class" and run["name"] == "lucir"]
    ratios = {
        row["quality"]: row
        for run in runs
        if run["quality"] is None
        for row in run["volume_ratios"]
    }
    head = ["quality", "images held", "averaged, %", "last, %", "forgetting"]
    rows: list[list[object]] = [
        [*head, "R_q after phase 0", "R_q, mean of the phases", "mean R_q of 25 along this run"]
    ]
    for run in runs:
        ratio = ratios[run["quality"]]
        rows.append(
            [
                run["quality"] or "original",
                f"{run['memory']['items']:,}",
                f"{run['average_incremental_accuracy']:.2f}",
                f"{run['accuracy'][-1]:.2f}",
                f"{run['average_forgetting']:.2f}",
                f"{ratio['by_phase'][0]:.2f}",
                f"{ratio['mean']:.2f}",
                *(f"{r['mean']:.2f}" for r in run["volume_ratios"] if r["quality"] == 25),
            ]
        )
    return table(*rows)


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


def zoom() -> str:
    """Accuracy by how much of a test image is seen."""
    rows: list[list[object]] = [["network", "classes", "side", "seen", "accuracy, %", "difference"]]
    for r in read("zoom"):
        more = "" if r["side"] == 256 else f"{r['more']:+.2f} +- {r['error']:.2f}"
        rows.append(
            [r["run"], r["classes"], r["side"], f"{r['seen']:.0f} %", f"{r['accuracy']:.2f}", more]
        )
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


def tried(label: str) -> str:
    """What settings of the training come to, after the first phase and, if it went on, at last."""
    head = ["recipe", "seed", "rate", "schedule", "weight decay", "first phase, %", "averaged, %"]
    rows: list[list[object]] = [[*head, "last, %"]]
    for folder in sorted((RESULTS / label).iterdir()):
        config = json.loads((folder / "config.json").read_text())
        seed, train = config["settings"]["seed"], config["settings"]["train"]
        lines = (folder / "results.jsonl").read_text().splitlines()
        first, last = json.loads(lines[0]), json.loads(lines[-1])
        ends: list[object] = ["", ""]
        if "average_incremental_accuracy" in last:
            ends = [f"{last['average_incremental_accuracy']:.2f}", f"{last['accuracy'][-1]:.2f}"]
        settings = (config["name"], seed, train["lr"], train["schedule"], train["weight_decay"])
        rows.append([*settings, f"{first['accuracy']:.2f}", *ends])
    return table(*rows)


def options(label: str, usual: str) -> str:
    """Runs with options of a method, phase by phase, each below the run without."""
    rows: list[list[object]] = [["recipe", "options", "seed", "after each phase, %"]]
    for trial in sorted((RESULTS / label).iterdir()):
        config = json.loads((trial / "config.json").read_text())
        for folder in (RESULTS / usual / f"{config['name']}-s{config['settings']['seed']}", trial):
            settings = json.loads((folder / "config.json").read_text())["settings"]
            lines = map(json.loads, (folder / "results.jsonl").read_text().splitlines())
            curve = [f"{line['accuracy']:.2f}" for line in lines if line.get("event") == "phase"]
            given = " ".join(settings["options"])
            rows.append([config["name"], given, settings["seed"], ", ".join(curve)])
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


def strategies() -> str:
    """Strategies of Avalanche with their own buffer and with a memory of ours."""
    rows: list[list[object]] = [["strategy", "with mrdc", "how, or why not", "as it comes"]]
    for r in read("adapters"):
        if r["question"] == "strategies":
            broken = r["stock"].partition(":")[0]
            how = f"`{r['how']}`" if not r["ours"] else r["ours"].partition(": ")[2]
            ours = "runs" if not r["ours"] else "no"
            if broken and ours == "no":
                how = r["ours"].partition(": ")[2] if "UsageError" in r["ours"] else "broken itself"
            rows.append([r["strategy"], ours, how, broken or "runs"])
    return table(*rows)


def same_bytes() -> str:
    """Images held and accuracy within the same bytes, mean over seeds."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for r in read("adapters"):
        if r["question"] == "bytes":
            groups.setdefault((r["method"], r["arm"]), []).append(r)
    head = ["method", "buffer holds", "images", "seeds", "mean accuracy, %"]
    rows: list[list[object]] = [[*head, "at the end, %"]]
    for (method, arm), runs in groups.items():
        qualities = sorted({str(r["quality"]) for r in runs})
        what = f"mrdc, JPEG {', '.join(qualities)}" if arm == "mrdc" else arm
        rows.append(
            [
                method,
                what,
                f"{mean(r['images'] for r in runs):.0f}",
                len(runs),
                f"{mean(r['mean_accuracy'] for r in runs):.1f}",
                f"{mean(r['accuracy'][-1] for r in runs):.1f}",
            ]
        )
    return table(*rows)


def buffers() -> str:
    """Images a second out of buffers, and what they hold them in."""
    names = {
        "avalanche": "Avalanche's buffer: files on disk, its transforms",
        "buffer": "`ByteBuffer`: stored files, the same transforms",
        "batches": "`memory.batches`: uint8 crops",
        "sample": "`memory.sample`: uint8 crops, drawn at random",
        "tensors": "float32 tensors in RAM, as they are",
    }
    rows: list[list[object]] = [["source", "images/s, one thread", "bytes/image"]]
    for r in read("adapters"):
        if r["question"] == "throughput":
            ours, floats = r["bytes"] / r["images"], r["float_bytes"] / r["images"]
            sizes = {"avalanche": "", "tensors": f"{floats:,.0f}"}
            for key, what in names.items():
                rows.append([what, f"{r[f'{key}_rate']:,.0f}", sizes.get(key, f"{ours:,.0f}")])
    return table(*rows)


TABLES: dict[str, Callable[[], str]] = {
    "runs cub": lambda: compared("cub"),
    "runs cub256": lambda: compared("cub256"),
    "runs cub256-cosine": lambda: compared("cub256-cosine"),
    "runs textures": lambda: compared("textures"),
    "scenes road": lambda: scenes("road"),
    "scenes road-gentle": lambda: scenes("road-gentle"),
    "scenes road-carry": lambda: scenes("road-carry"),
    "ratios road": lambda: ratios("road"),
    "tried cub256-bic": lambda: tried("cub256-bic"),
    "options cub256-tried": lambda: options("cub256-tried", "cub256"),
    "grid": grid,
    "zoom": zoom,
    "times": times,
    "steps": steps,
    "costs": costs,
    "studies": studies,
    "speed": speed,
    "plans": plans,
    "adapters strategies": strategies,
    "adapters bytes": same_bytes,
    "adapters throughput": buffers,
}


def filled(page: str) -> str:
    """A page with what stands between `<!-- table X -->` and `<!-- end -->` made anew."""
    places = re.compile(r"(<!-- table (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)
    return places.sub(lambda found: found[1] + TABLES[found[2]]() + found[3], page)


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(filled(page.read_text()))
