"""Any sequence of changes keeps the budget, the ranks and the checksums."""

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mrdc._utils.errors import BudgetError
from mrdc.codec import CODECS
from mrdc.codec.jpeg import Jpeg
from mrdc.memory.audit import audit
from mrdc.memory.budget import Budget
from mrdc.memory.replay import ReplayMemory
from tests.conftest import jpeg

AMOUNTS = st.integers(2_000, 9_000)
BUDGETS: st.SearchStrategy[Budget] = st.one_of(
    st.builds(lambda n: Budget(n, "bytes"), AMOUNTS.map(float)),
    st.builds(lambda n: Budget(n, "originals", 1.0), AMOUNTS.map(float)),
    st.builds(lambda n: Budget(n / 1000, "class", 1000.0), AMOUNTS.map(float)),
)
SEEDS = st.lists(st.integers(0, 40), min_size=1, max_size=12)
LABELS = st.integers(0, 4)
JSONS = st.none() | st.integers() | st.text(max_size=5)
Held = dict[tuple[int, str], tuple[bytes, str]]


class Versioned(Jpeg):
    """JPEG from an encoder whose version changes."""

    name = "versioned"
    version = "1"

    @property
    def encoder(self) -> str:
        return f"library {self.version}"


class Memories(RuleBasedStateMachine):
    """A memory under random changes."""

    @initialize(budget=BUDGETS, accounting=st.sampled_from(["packed", "file"]))
    def start(self, budget: Budget, accounting: Any) -> None:
        CODECS["versioned"] = Versioned()
        Versioned.version = "1"
        self.folder = tempfile.TemporaryDirectory()
        self.memory = ReplayMemory(budget, "jpeg", 50, accounting=accounting)

    def teardown(self) -> None:
        CODECS.pop("versioned", None)
        if hasattr(self, "folder"):
            self.folder.cleanup()

    def held(self) -> Held:
        """Stored files and values, in order."""
        memory = self.memory
        names = [name for label in memory.labels for name in memory.sources(label)]
        keys = zip(memory.targets, names, strict=True)
        return {
            key: (memory.encoded(n), json.dumps(memory.values(n))) for n, key in enumerate(keys)
        }

    def attempt(self, change: Callable[[], object], ordered: bool = True) -> bool:
        """Make a change; False after a refusal, which changes nothing."""
        before = self.held()
        try:
            change()
        except BudgetError:
            assert self.held() == before
            return False
        after = self.held()
        survivors = [key for key in after if key in before and after[key] == before[key]]
        assert len(survivors) == len(after.keys() & before.keys())
        if ordered:
            assert survivors == [key for key in before if key in after]
        return True

    @rule(label=LABELS, seeds=SEEDS, beside=JSONS)
    def extend(self, label: int, seeds: list[int], beside: object) -> None:
        values = None if beside is None else {"x": [beside] * len(seeds)}
        images = [jpeg(100 * label + seed) for seed in seeds]
        self.attempt(lambda: self.memory.extend(label, images, values=values))

    @precondition(lambda self: len(self.memory.labels) < 5)
    @rule(seeds=SEEDS)
    def add(self, seeds: list[int]) -> None:
        label = min({*range(5)} - {*self.memory.labels})
        images = [jpeg(100 * label + seed) for seed in seeds]
        self.attempt(lambda: self.memory.add({label: images}))
        if label in self.memory.labels:
            assert self.memory.seen(label) == len(seeds)

    @rule(labels=st.lists(LABELS, min_size=1, max_size=8), over=st.sampled_from(["class", "all"]))
    def reservoir(self, labels: list[int], over: Any) -> None:
        images = [jpeg(100 * label + n) for n, label in enumerate(labels)]
        self.attempt(lambda: self.memory.reservoir(images, labels, over=over), ordered=False)

    @precondition(lambda self: len(self.memory) > 0)
    @rule(place=st.integers(0, 4))
    def remove(self, place: int) -> None:
        label = self.memory.labels[place % len(self.memory.labels)]
        self.attempt(lambda: self.memory.remove(label))

    @rule(budget=BUDGETS)
    def rebudget(self, budget: Budget) -> None:
        self.attempt(lambda: self.memory.rebudget(budget))

    @rule(made=st.sampled_from([("jpeg", 9), ("jpeg", 100), ("webp", 50), ("versioned", 50)]))
    def recode(self, made: tuple[str, int]) -> None:
        self.memory.codec, self.memory.quality = CODECS[made[0]], made[1]

    @rule(version=st.sampled_from(["1", "2", "a longer one"]))
    def upgrade(self, version: str) -> None:
        Versioned.version = version

    @rule(note=st.integers(0, 500), name=st.integers(0, 100))
    def describe(self, note: int, name: int) -> None:
        self.memory.notes["note"] = "x" * note
        self.memory.class_names[0] = "y" * name

    @rule(load=st.booleans(), parts=st.sampled_from([None, 40_000]))
    def save(self, load: bool, parts: int | None) -> None:
        self.memory.part_size = parts
        path = Path(self.folder.name) / ("a.mrdc" if parts is None else "parts")
        if not self.attempt(lambda: self.memory.save(path)):
            return
        assert audit(path).problems == []
        loaded = ReplayMemory.load(path)
        for name in ["targets", "ranks", "nbytes", "budget", "quality", "notes"]:
            assert np.array_equal(getattr(loaded, name), getattr(self.memory, name)), name
        self.memory = loaded if load else self.memory

    @invariant()
    def sound(self) -> None:
        if not hasattr(self, "memory"):
            return
        memory = self.memory
        if not memory.whole_file:
            assert memory.nbytes <= memory.budget_bytes
        counts = [len(memory.sources(label)) for label in memory.labels]
        assert memory.ranks.tolist() == [rank for count in counts for rank in range(count)]
        assert all(counts) and sum(counts) == len(memory)
        for label, count in zip(memory.labels, counts, strict=True):
            assert len({*memory.sources(label)}) == count <= memory.seen(label)


TestMemories = Memories.TestCase
TestMemories.settings = settings(
    max_examples=40, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
