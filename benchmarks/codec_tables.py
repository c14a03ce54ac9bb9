"""Tables of codecs and qualities: how images were stored, and what that gained."""

from statistics import mean

from arm_tables import SCORE, score
from common import Row, read, table
from mrdc.planning.choice import NEARLY_LOW
from run_tables import with_error
from runs import results


def by_storage(*labels: str) -> dict[tuple[str, str], dict[str, dict[int, Row]]]:
    """Runs by data and budget, then by codec and quality, then by seed."""
    groups: dict[tuple[str, str], dict[str, dict[int, Row]]] = {}
    for run in results(*labels):
        if run["quality"]:
            arms = groups.setdefault((run["data"], run["budget"]), {})
            arms.setdefault(f"{run['codecs'][0]} {run['quality']}", {})[run["seed"]] = run
    return groups


def stored_as(*labels: str) -> str:
    """Codecs, qualities and scales by data and budget, and how they differ from JPEG 10."""
    head = ["data", "budget", "stored as", "images held", "averaged, %, by seed"]
    rows: list[list[object]] = [[*head, "difference from JPEG 10", "after the last phase"]]
    for (data, budget), arms in sorted(by_storage(*labels).items()):
        base = arms.get("jpeg 10", {})
        for arm, runs in sorted(arms.items(), key=lambda item: first_items(item[1])):
            pairs = [(run, base[seed]) for seed, run in sorted(runs.items()) if seed in base]
            gains = [run[SCORE] - other[SCORE] for run, other in pairs]
            last = [run["accuracy"][-1] - other["accuracy"][-1] for run, other in pairs]
            rows.append(
                [
                    data,
                    budget,
                    arm,
                    f"{mean(run['memory']['items'] for run in runs.values()):,.0f}",
                    ", ".join(f"{run[SCORE]:.2f}" for _, run in sorted(runs.items())),
                    with_error(gains) if gains and arm != "jpeg 10" else "",
                    with_error(last) if gains and arm != "jpeg 10" else "",
                ]
            )
    return table(*rows)


def codec_choices(*labels: str) -> str:
    """Choices of `plan` among JPEG and AVIF, beside the runs that measured them."""
    head = ["data", "budget", "chosen by `plan`", "images it holds", "r", "averaged, % (runs)"]
    rows: list[list[object]] = [[*head, "best of the others"]]
    measured = by_storage(*labels)
    for plan in read("codec_choice"):
        budget = plan["budget"]["text"]
        arms = {arm: list(runs.values()) for arm, runs in measured[plan["label"], budget].items()}
        (picked,) = (c for c in plan["candidates"] if c["verdict"] == "chosen")
        chosen = f"{picked['codec']} {picked['quality']}"
        runs = arms.pop(chosen, [])
        best = max(arms, key=lambda arm: score(arms[arm]), default=None)
        rows.append(
            [
                plan["label"],
                budget,
                chosen,
                f"{100 * picked['quantity'] / plan['images']:.0f} %",
                f"{picked['ratio_per_image']:.3f}",
                f"{score(runs):.2f} ({len(runs)})" if runs else "not run",
                "" if best is None else f"{best}: {score(arms[best]):.2f}",
            ]
        )
    return table(*rows)


def lower(*labels: str) -> str:
    """Qualities below 10 and smaller images, and what 5 gains where it holds many more images."""
    gains = [
        run[SCORE] - arms["jpeg 10"][seed][SCORE]
        for arms in by_storage(*labels).values()
        for seed, run in arms.get("jpeg 5", {}).items()
        if seed in arms.get("jpeg 10", {})
        and run["memory"]["items"] > (1 + NEARLY_LOW) * arms["jpeg 10"][seed]["memory"]["items"]
    ]
    said = f"{len(gains)} pairs where 5 holds at least 15 % more images than 10"
    return stored_as(*labels) + f"\nOver the {said}, it gains {with_error(gains)}.\n"


def avif_gains(*labels: str) -> str:
    """Codecs in full runs, and what AVIF at its lowest quality gains over JPEG."""
    gains: dict[str, list[float]] = {"jpeg 10": [], "jpeg 5": []}
    for arms in by_storage(*labels).values():
        lowest = min((arm for arm in arms if arm.startswith("avif ")), key=lambda a: int(a[5:]))
        for base, found in gains.items():
            found += [run[SCORE] - arms[base][seed][SCORE] for seed, run in arms[lowest].items()]
    said = [f"{with_error(found)} over {base.upper()}" for base, found in gains.items()]
    pairs = len(gains["jpeg 10"])
    return stored_as(*labels) + (
        f"\nAVIF at its lowest quality here gains {' and '.join(said)} in {pairs} pairs each.\n"
    )


def codecs(label: str) -> str:
    """Bytes, fidelity and time of every codec on the same photos."""
    head = ["codec", "quality", "bytes", "PSNR, dB", "encode, ms", "decode, ms"]
    rows: list[list[object]] = [list(head)]
    for run in read("compression"):
        for row in run["candidates"] if run["label"] == label else ():
            times = [f"{row[name]:.1f}" for name in ("encode_ms", "decode_ms")]
            size = f"{row['bytes']:,.0f}"
            rows.append([row["codec"], row["quality"], size, f"{row['psnr']:.1f}", *times])
    return table(*rows)


def first_items(runs: dict[int, Row]) -> int:
    """Images held in the run of the first seed."""
    return int(runs[min(runs)]["memory"]["items"])
