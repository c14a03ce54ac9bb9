"""Tables of times and speeds."""

from statistics import median

from common import Row, read, table
from runs import results


def times() -> str:
    """Where the time goes, for runs on CUB that had the GPU to themselves."""
    parts = ("decode", "train", "select", "volume_ratio", "encode", "evaluate", "write")
    head = ["recipe", "seed", "commit", "phases", "seconds", *parts]
    rows: list[list[object]] = [[*head, "trained images", "images/s", "start", "R_q to choose"]]
    for run in results("cub256", "cub"):
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
    """Images/s of the training step."""
    kinds = ("plain", "recorded", "compiled", "stem", "teacher", "usual")
    rates: list[list[object]] = [["step", "batch", *kinds, "usual / compiled, seconds"]]
    lines = read("step")
    for name, batch in dict.fromkeys((r["method"], r["batch"]) for r in lines):
        same = [r for r in lines if (r["method"], r["batch"]) == (name, batch)]
        found = {r["variant"]: f"{r['rate']:,.0f}" for r in same}
        ratio = {r["variant"]: f"{r['ratio']:.3f}" for r in same}
        what = f"{name}, {'with' if same[-1]['teacher'] else 'without'} teacher"
        row = [found.get(kind, "") for kind in kinds]
        rates.append([what, batch, *row, ratio.get("usual", "")])
    return table(*rates)


def streaming() -> str:
    """Images/s by where a feed keeps its images."""
    rates: dict[str, dict[str, float]] = {}
    for r in read("streaming"):
        if r["gpu"]:
            rates.setdefault(r["feed"], {})[r["what"]] = r["images_per_second"]
    names = {"loader": "DataLoader, 16 workers", "gpu": "on the GPU", "ram": "decoded in RAM"}
    names |= {"stream": "files, nvJPEG", "stream, no nvJPEG": "files, 16 processes"}
    slow = {r["feed"]: f"{r['ratio']:.2f}" for r in read("streaming") if not r["gpu"]}
    slow["stream, no nvJPEG"] = slow.pop("stream")  # there is none without a GPU
    head = ["images", "views only", "LUCIR trains", "times the DataLoader"]
    rows: list[list[object]] = [[*head, "views on 2 CPU cores, times the DataLoader"]]
    for feed, found in rates.items():
        ratio = found["train"] / rates["loader"]["train"]
        both = (f"{found['feed']:,.0f}", f"{found['train']:,.0f}")
        rows.append([names[feed], *both, f"{ratio:.2f}", slow.get(feed, "")])
    return table(*rows)


def ranks() -> str:
    """A training step with one and two processes on one GPU."""
    rows: list[list[object]] = [["processes", "step", "ms", "MB sent", "messages", "their ms"]]
    for r in read("ranks"):
        step = "CUDA graph" if r["graph"] else "plain"
        sent = (
            f"{r['reduced_bytes'] / 1e6:.1f}",
            f"{r['messages']:.0f}",
            f"{r['messages_ms']:.0f}",
        )
        rows.append([r["ranks"], step, f"{r['ms']:.1f}", *(sent if r["ranks"] > 1 else ("",) * 3)])
    return table(*rows)


def ranks_runs() -> str:
    """The same runs with one and two processes."""
    rows: list[list[object]] = [["data", "seed", "processes", "after each phase, %", "averaged, %"]]
    for r in results("ranks"):
        curve = ", ".join(f"{value:.1f}" for value in r["accuracy"])
        averaged = f"{r['average_incremental_accuracy']:.2f}"
        rows.append([r["data"], r["seed"], r["ranks"], curve, averaged])
    return table(*rows)


def embedding() -> str:
    """Embedding on a CPU: a thread for each batch against all threads in one."""
    rows: list[list[object]] = [["other busy processes", "idle threads", "ratio", "median ratio"]]
    spins = {"short": "sleep soon (command line)", "usual": "spin (Python)"}
    for r in read("embed"):
        ratios = [f"{r[name]:.2f}" for name in ("ratio", "ratio_median")]
        rows.append([r["busy_processes"], spins[r["spin"]], *ratios])
    return table(*rows)


def plan_costs() -> str:
    """CPU time of `mrdc plan`, before and now."""
    found: dict[tuple[str, str], list[Row]] = {}
    for r in read("plan_cost"):
        found.setdefault((r["label"], r["budget"]), []).append(r)
    head = ["photos", "budget", "chosen", "CPU s before", "now", "ratio", "seconds before", "now"]
    rows: list[list[object]] = [[*head]]
    for (label, budget), (before, *_, now) in found.items():
        codec, quality = now["chosen"]
        cells = [f"{r['cpu_seconds']:.1f}" for r in (before, now)]
        cells.append(f"{now['cpu_seconds'] / before['cpu_seconds']:.2f}")
        cells += [f"{r['seconds']:.1f}" for r in (before, now)]
        rows.append([label, budget, f"{codec} {quality or ''}".strip(), *cells])
    return table(*rows)


def costs() -> str:
    """Training images/s of methods, compared with their base."""
    aims = {"aanets": 2.7, "dde": 3.0, "mnemonics": 2.0, "tpcil": 2.0}
    rows: list[list[object]] = [["method", "images/s", "times its base's", "aim", "commit"]]
    for r in read("cost"):
        aim = aims.get(r["method"].split("-")[-1], "")
        rate = f"{r['images_per_second']:,.0f}"
        rows.append([r["method"], rate, f"{r['ratio']:.2f}", aim and f"<= {aim}", r["commit"]])
    return table(*rows)


def clusters() -> str:
    """`pack` with threads and with Ray."""
    rows: list[list[object]] = [
        ["work", "images", "engine", "images/s", "CPU s", "driver's", "start, s", "RAM, MB"]
    ]
    for r in read("clusters"):
        cpu = [f"{r['cpu_s']:.1f}", f"{r['driver_cpu_s']:.1f}", f"{r['start_s']:.0f}"]
        found = [f"{r['rate']:,.0f}", *cpu, f"{r['ram'] / 1e6:,.0f}"]
        rows.append([r["work"], f"{r['images']:,}", r["engine"], *found])
    return table(*rows)


def speed() -> str:
    """All measured ratios, by question and data set."""
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


def large() -> str:
    """CPU time and private RAM of large memories, and how the time grows with the images."""
    scales = {"open": 1e3, "first_batch": 1e3, "targets": 1e3, "audit": 1.0}
    head = ["images", "part size", "files", "open, ms", "first batch, ms", "labels, ms"]
    rows: list[list[object]] = [[*head, "audit, s", "an image, µs", "RAM, MB"]]
    for r in read("large"):
        form = r["part_size"] or "one file"
        known = {n: r.get(f"{n}_cpu_s") for n in scales}
        if r["event"] == "exponents":
            cells = [
                "exponent",
                form,
                "",
                *("" if v is None else f"{v:.2f}" for v in known.values()),
            ]
            rows.append([*cells, f"{r['image_cpu_us']:.2f}", ""])
            continue
        cells = [f"{r['items']:,}", form, r["files"]]
        cells += ["" if v is None else f"{v * scales[n]:,.1f}" for n, v in known.items()]
        rows.append([*cells, f"{r['image_cpu_us']:.0f}", f"{r['private_mb']:.0f}"])
    return table(*rows)


def reservoirs() -> str:
    """Time of a reservoir for an image, by the images it holds."""
    rows: list[list[object]] = [["images held", "ms an image", "encoding alone", "ratio"]]
    for r in read("reservoir"):
        cells = [f"{r['ms']:.2f}", f"{r['encoding_ms']:.2f}", f"{r['ratio']:.1f}"]
        rows.append([f"{r['held']:,}", *cells])
    return table(*rows)
