"""Tables for docs/adapters.md: what runs with our memory, and what the same bytes hold."""

from statistics import mean

from common import Row, read, table


def strategies() -> str:
    """Avalanche strategies with their own buffer and with an mrdc memory."""
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
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for r in read("adapters"):
        if r["question"] == "bytes":
            network = r.get("network", "linear head over lite0")
            groups.setdefault((network, r["method"], r["arm"]), []).append(r)
    head = ["network", "method", "buffer holds", "images", "seeds", "mean accuracy, %"]
    rows: list[list[object]] = [[*head, "at the end, %"]]
    for (network, method, arm), runs in groups.items():
        qualities = sorted({str(r["quality"]) for r in runs})
        what = f"mrdc, JPEG {', '.join(qualities)}" if arm == "mrdc" else arm
        rows.append(
            [
                network,
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
    """Images/s from each buffer, and its bytes per image."""
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
