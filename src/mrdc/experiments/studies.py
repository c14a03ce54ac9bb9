"""What `mrdc study` can be told: the figures and appendices of the paper, and two questions more.

A study is some grids of runs and a page. On people's folders it runs the recipes with the
paper's settings, on built-in data smaller ones that take minutes without a GPU.
"""

from dataclasses import dataclass
from typing import Literal

Row = tuple[object, ...]


@dataclass(frozen=True)
class Part:
    """A grid of runs.

    Attributes:
        recipe: a recipe or preset.
        grid: axes, as for `mrdc sweep --grid`.
        settings: what else to set, as setting=value.
    """

    recipe: str
    grid: tuple[str, ...]
    settings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Study:
    """Runs that answer a question, and what to show of them.

    Attributes:
        title: with the figure or appendix that it stands for.
        question: what its page answers.
        parts: the runs on people's data.
        small: the runs on the built-in data.
        sections: of the page.
        paper: published numbers, a header row first.
        data: the built-in data.
        answers: how R_q is compared with training: the quality that it picks of a grid, or the
            order it puts rows in by the images that pass, or by how near to 1 it is.
        superclasses: it needs the superclass of each class.
    """

    title: str
    question: str
    parts: tuple[Part, ...]
    small: tuple[Part, ...]
    sections: tuple[str, ...]
    paper: tuple[Row, ...] = ()
    data: Literal["textures", "shapes"] = "textures"
    answers: Literal["", "grid", "images", "nearness"] = ""
    superclasses: bool = False


FILES = ("memory.accounting=file",)  # bytes are counted as whole files in the paper
QUICK = ("train.epochs=8", "phases=3")
QUICK_SCENES = ("train.steps=20", "phases=2")
QUALITIES = "memory.quality=original,90,75,50,25,10"
SMALL_MRDC = Part("textures-lucir-mrdc", ("recipe=textures-lucir-mrdc",), QUICK)

STUDIES: dict[str, Study] = {
    "trade-off": Study(
        title="Quality against quantity: a grid search (Fig. 2)",
        question="How strongly should images be compressed, if the bytes are given?",
        parts=(Part("lucir", ("recipe=lucir,podnet", QUALITIES), FILES),),
        small=(Part("textures-lucir", (QUALITIES,), QUICK),),
        sections=("table", "trade-off", "accuracy", "memory", "runs"),
        paper=(
            ("ImageNet, in the bytes of 20 originals", 10, 25, 50, 75, 90, "original"),
            ("images of a class", 200, 125, 85, 58, 37, 20),
            ("compression rate", 10, 6.25, 4.25, 2.9, 1.85, 1),
        ),
        answers="grid",
    ),
    "volume-ratio": Study(
        title="R_q after each phase against the grid (Fig. 5, App. D.2 and D.3)",
        question="Does R_q find the best quality of the grid without training?",
        parts=(
            Part("lucir", ("recipe=lucir,podnet", QUALITIES), FILES),
            Part("lucir", ("recipe=lucir-aanets,lucir-dde", "memory.quality=original"), FILES),
        ),
        small=(Part("textures-lucir", (QUALITIES,), QUICK),),
        sections=("volume-ratio", "trade-off", "table", "runs"),
        paper=(
            ("ImageNet", "quality that R_q chose, epsilon 0.5"),
            ("LUCIR", 50),
            ("PODNet", 75),
            ("LUCIR with AANets", 50),
            ("LUCIR with DDE", 50),
        ),
        answers="grid",
    ),
    "t-sne": Study(
        title="Where compressed images lie among the originals: t-SNE (Fig. 3, App. D.1)",
        question="Do the features of compressed images still cover those of the originals?",
        parts=(Part("lucir-mrdc", ("recipe=lucir-mrdc",), FILES),),
        small=(SMALL_MRDC,),
        sections=("t-sne", "volume-ratio", "memory", "runs"),
    ),
    "compute": Study(
        title="Accuracy against compute (Fig. 6, App. E.1)",
        question="What does a point of accuracy cost in time, by compression and by add-ons?",
        parts=(Part("lucir", ("recipe=lucir,lucir-mrdc,lucir-aanets,lucir-dde",), FILES),),
        small=(
            Part(
                "textures-lucir",
                (
                    "recipe=textures-lucir,textures-lucir-mrdc,textures-lucir-aanets,"
                    "textures-lucir-dde",
                ),
                QUICK,
            ),
        ),
        sections=("time", "table", "accuracy", "runs"),
        paper=(
            ("5, 10, 25 phases", "CUB, hours", "averaged %", "ImageNet-sub, hours", "averaged %"),
            ("LUCIR", "1.97, 3.60, 8.03", "44.63, 45.58, 45.48",
             "8.65, 10.47, 15.63", "70.84, 68.32, 61.44"),
            ("+ MRDC", "2.70, 5.00, 11.00", "46.68, 47.28, 48.01",
             "9.09, 11.27, 18.83", "73.56, 72.70, 70.53"),
            ("+ AANets", "3.52, 5.56, 14.34", "46.87, 47.34, 47.35",
             "21.94, 40.58, 91.26", "72.91, 71.93, 70.70"),
            ("+ DDE", "7.28, 13.09, 31.02", "45.86, 46.48, 46.46",
             "55.36, 61.81, 79.42", "73.04, 70.84, 66.61"),
        ),
    ),
    "storage": Study(
        title="Larger and smaller memories: 10, 20, 40 and 80 originals (Fig. 7, App. E.2)",
        question="Does compression help whatever the memory's size?",
        parts=(
            Part(
                "lucir",
                ("recipe=lucir,lucir-mrdc", "memory.budget=10/class,20/class,40/class,80/class"),
                FILES,
            ),
        ),
        small=(
            Part(
                "textures-lucir",
                ("recipe=textures-lucir,textures-lucir-mrdc",
                 "memory.budget=4/class,8/class,16/class"),
                QUICK,
            ),
        ),
        sections=("budget", "table", "accuracy", "memory", "runs"),
        paper=(
            ("ImageNet-sub, averaged %", "originals a class", "5 phases", "10 phases", "25 phases"),
            ("LUCIR", 10, "", "", 58.98),
            ("LUCIR + MRDC", 10, "", "", 67.75),
            ("LUCIR", 20, 70.90, 68.31, 64.46),
        ),
    ),
    "forgetting": Study(
        title="Forgetting (App. E.3)",
        question="How much of what was learned first is lost, with and without compression?",
        parts=(Part("lucir", ("recipe=lucir,lucir-mrdc,podnet,podnet-mrdc",), FILES),),
        small=(
            Part(
                "textures-lucir",
                ("recipe=textures-lucir,textures-lucir-mrdc,textures-lwf,textures-lwf-mrdc",),
                QUICK,
            ),
        ),
        sections=("table", "accuracy", "confusion", "runs"),
    ),
    "fixed-budget": Study(
        title="A memory that does not grow: 1000 and 2000 originals (App. E.4)",
        question="Does compression help where all classes share a fixed memory?",
        parts=(
            Part(
                "lucir",
                ("recipe=lucir,lucir-mrdc", "memory.budget=1000 originals,2000 originals"),
                FILES,
            ),
        ),
        small=(
            Part(
                "textures-lucir",
                ("recipe=textures-lucir,textures-lucir-mrdc",
                 "memory.budget=40 originals,80 originals"),
                QUICK,
            ),
        ),
        sections=("budget", "table", "accuracy", "memory", "runs"),
    ),
    "fewer": Study(
        title="Fewer compressed images (App. E.5)",
        question="How many compressed images are worth a memory of originals?",
        parts=(
            Part("lucir", ("memory.quality=original", "memory.budget=20/class"), FILES),
            # 85, 70, 55 and 40 of the 85 images that fit in the paper
            Part(
                "lucir",
                ("memory.quality=50",
                 "memory.budget=20/class,16.47/class,12.94/class,9.41/class"),
                FILES,
            ),
        ),
        small=(
            Part("textures-lucir", ("memory.quality=original", "memory.budget=8/class"), QUICK),
            Part(
                "textures-lucir",
                ("memory.quality=75", "memory.budget=8/class,6/class,4/class,2/class"),
                QUICK,
            ),
        ),
        sections=("budget", "table", "accuracy", "runs"),
        paper=(
            ("ImageNet-sub, averaged %", "5 phases", "10 phases", "25 phases"),
            ("LUCIR, 20 originals a class", 72.06, 68.59, 63.27),
        ),
    ),
    "superclasses": Study(
        title="Similar and dissimilar classes, static and dynamic quality (App. D.4)",
        question="Do similar classes need a better quality, and should it change with the phases?",
        parts=(
            Part(
                "lucir-mrdc",
                ("order=similar,dissimilar", "memory.quality=auto,dynamic"),
                FILES,
            ),
        ),
        small=(
            Part(
                "textures-lucir-mrdc",
                ("order=similar,dissimilar", "memory.quality=auto,dynamic"),
                QUICK,
            ),
        ),
        sections=("volume-ratio", "table", "accuracy", "runs"),
        paper=(
            ("ImageNet, ten superclasses", "quality that R_q chose"),
            ("dissimilar", 50),
            ("similar", 75),
            ("chosen anew after every phase", "clearly worse"),
        ),
        superclasses=True,
    ),
    "detection": Study(
        title="Detectors that learn from few labels (Sec. 5.2)",
        question="Does replaying compressed scenes make a better detector?",
        parts=(
            Part(
                "pseudo-labels-mrdc",
                (
                    "recipe=pseudo-labels-finetune,pseudo-labels-replay,pseudo-labels-mrdc,"
                    "unbiased-teacher-finetune,unbiased-teacher-replay,unbiased-teacher-mrdc",
                ),
                FILES,
            ),
        ),
        small=(
            Part(
                "shapes-supervised-mrdc",
                (
                    "recipe=shapes-supervised-finetune,shapes-supervised-replay,"
                    "shapes-supervised-mrdc,shapes-pseudo-labels-finetune,"
                    "shapes-pseudo-labels-replay,shapes-pseudo-labels-mrdc",
                ),
                QUICK_SCENES,
            ),
        ),
        sections=("detection", "volume-ratio", "table", "memory", "runs"),
        paper=(
            ("SODA10M", "AP", "AP50", "AP75"),
            ("pseudo-labels-finetune", "40.36 +- 0.34", "63.83 +- 0.35", "43.82 +- 0.34"),
            ("pseudo-labels-replay", "40.75 +- 0.30", "65.11 +- 0.64", "43.53 +- 0.20"),
            ("pseudo-labels-mrdc", "41.50 +- 0.06", "65.36 +- 0.47", "44.95 +- 0.22"),
            ("unbiased-teacher-finetune", "42.88 +- 0.32", "66.70 +- 0.59", "45.99 +- 0.32"),
            ("unbiased-teacher-replay", "43.10 +- 0.06", "66.88 +- 0.51", "46.62 +- 0.02"),
            ("unbiased-teacher-mrdc", "43.72 +- 0.25", "67.80 +- 0.46", "47.36 +- 0.23"),
        ),
        data="shapes",
    ),
    "codecs": Study(
        title="Codecs at equal bytes (beyond the paper)",
        question="Which codec makes the best memory, and does R_q tell?",
        parts=(
            Part("lucir-mrdc", ("memory.codec=jpeg", "memory.accounting=file")),
            Part("lucir-mrdc", ("memory.codec=jpeg,webp,avif", "memory.accounting=packed")),
        ),
        small=(
            Part("textures-lucir-mrdc", ("memory.codec=jpeg", "memory.accounting=file"), QUICK),
            Part(
                "textures-lucir-mrdc",
                ("memory.codec=jpeg,webp,avif", "memory.accounting=packed"),
                QUICK,
            ),
        ),
        sections=("table", "volume-ratio", "accuracy", "memory", "runs"),
        answers="images",
    ),
    "selectors": Study(
        title="Ways to choose images at equal bytes (beyond the paper)",
        question="Which images are worth keeping, and does R_q tell?",
        parts=(Part("lucir-mrdc", ("memory.select=herding,random_choice,dpp_greedy",), FILES),),
        small=(
            Part(
                "textures-lucir-mrdc",
                ("memory.select=herding,random_choice,dpp_greedy",),
                QUICK,
            ),
        ),
        sections=("table", "volume-ratio", "accuracy", "memory", "runs"),
        answers="nearness",
    ),
}  # fmt: skip
# Patterns of the built-in textures that are alike, for studies of superclasses
TEXTURES = {
    "bands": ("texture00", "texture06", "texture07", "texture08", "texture09"),
    "grids": ("texture01", "texture02", "texture03", "texture04", "texture05"),
}
