"""Avalanche: a replay buffer that is bounded in bytes and compresses what it keeps.

    strategy = Naive(..., plugins=[byte_replay("20MB")])
    use_mrdc(MIR(...), "20MB")            # any strategy with a buffer of Avalanche's own

Images are stored as files, before the benchmark's transforms, and decoded when they are replayed.
Images of one class, task and transform form a group; groups share the budget equally. With
`matched=True` images of new experiences are shown as they will be stored.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from avalanche.benchmarks.utils import AvalancheDataset, DataAttribute, TransformGroups
from avalanche.benchmarks.utils.data_attribute import TensorDataAttribute
from avalanche.benchmarks.utils.utils import concat_datasets
from avalanche.models.utils import avalanche_forward
from avalanche.training.plugins import ReplayPlugin, SupervisedPlugin
from avalanche.training.storage_policy import ExemplarsBuffer
from avalanche.training.supervised import DER, FeatureReplay
from avalanche.training.supervised.icarl import _ICaRLPlugin
from PIL import Image
from torch import Tensor

from mrdc._utils.errors import UsageError
from mrdc.adapters.avalanche_data import Stored, Through, apply_transforms, as_photo, locate
from mrdc.adapters.features import embed_photos
from mrdc.adapters.store import Store
from mrdc.data.photo import Photo

MORE = 1_000_000  # labels of further groups of a target
IMAGES = 2**31 - 1  # the budget bounds bytes; no number of images does
TARGETS, TASKS, LOGITS = "targets", "targets_task_labels", "logits"


def byte_replay(
    budget: int | str, *, batch_size_mem: int | None = None, **options: Any
) -> ReplayPlugin:
    """Experience replay within a byte budget; `options` as for `mrdc.Replay`."""
    policy = ByteBuffer(budget, **options)
    return ByteReplay(IMAGES, batch_size_mem=batch_size_mem, storage_policy=policy)


def use_mrdc(strategy: Any, budget: int | str, **options: Any) -> "ByteBuffer":
    """Replace the buffer of a strategy, wherever it keeps one; `options` as for `mrdc.Replay`.

    Raises:
        UsageError: it keeps no buffer that can be replaced.
    """
    if isinstance(strategy, FeatureReplay):
        raise UsageError("FeatureReplay stores features, not images")
    policy = ByteBuffer(budget, logits=isinstance(strategy, DER), **options)
    owners = [strategy, getattr(strategy, "buffer", None), *strategy.plugins]
    found = [owner for owner in owners if isinstance(_policy(owner), ExemplarsBuffer)]
    for owner in found:
        owner.storage_policy = policy
    for place, plugin in enumerate(strategy.plugins):
        if type(plugin) is _ICaRLPlugin:
            strategy.plugins[place] = ByteICaRL(policy)
            found.append(plugin)
    if not found:
        raise UsageError(f"{type(strategy).__name__} has no storage policy to replace")
    strategy.plugins.insert(0, Matching(policy))
    return policy


def _policy(owner: Any) -> Any:
    return getattr(owner, "storage_policy", None)


class Group(NamedTuple):
    """Images that share a class, a task and the transforms of their benchmark."""

    target: int
    task: int | None
    transforms: tuple[Any, ...]  # TransformGroups, innermost first


class Form(NamedTuple):
    """Form of the data sets of experiences; the data itself is not kept."""

    kind: type[AvalancheDataset]
    attributes: tuple[tuple[str, bool], ...]  # name, and whether samples contain it
    collate: Any

    @classmethod
    def of(cls, data: AvalancheDataset) -> "Form":
        found = data._data_attributes.values()
        attributes = tuple((one.name, one.use_in_getitem) for one in found)
        return cls(type(data), attributes, data.collate_fn)


class ByteBuffer(ExemplarsBuffer):
    """A storage policy that is bounded in bytes; `options` as for `mrdc.Replay`.

    With `logits`, samples end in the model's outputs from when they were stored, as DER needs;
    these count towards the budget.

    Attributes:
        memory: the `ReplayMemory`; `memory.save(path)` writes it. A label is the target, or a
            number from a million for more groups of one target.
    """

    def __init__(self, budget: int | str, *, logits: bool = False, **options: Any):
        super().__init__(IMAGES)
        self.store, self.logits = Store(budget, **options), logits
        self.groups: dict[int, Group] = {}  # by label of the memory
        self._keys: dict[Any, int] = {}
        self.buffer_groups: dict[int, ExemplarsBuffer] = {}
        self._form: Form | None = None

    @property
    def memory(self) -> Any:
        return self.store.memory

    @property
    def buffer_datasets(self) -> list[AvalancheDataset]:
        """One data set for each group."""
        return [group.buffer for group in self.buffer_groups.values()]

    def resize(self, strategy: Any, new_size: int) -> None:
        """Do nothing: bytes are the limit. `memory.rebudget` changes it."""

    def update(self, strategy: Any, **kwargs: Any) -> None:
        """Store images of the experience that the strategy learns."""
        self.post_adapt(strategy, strategy.experience)

    def post_adapt(self, agent_state: Any, exp: Any) -> None:
        """Store images of an experience."""
        self._form = Form.of(exp.dataset)
        photos: dict[int, list[Photo]] = {}
        for label, photo in self._photos(exp.dataset):
            photos.setdefault(label, []).append(photo)
        values: dict[int, dict[str, Any]] = {}
        for label, of_group in photos.items() if self.logits else ():
            values[label] = {LOGITS: self._embed(agent_state, of_group, outputs=True).numpy()}
        self.store.learn_with(partial(self._embed, agent_state), photos, values)
        self._refresh()

    def match(self, strategy: Any) -> None:
        """If matched, let the strategy see its new images as they will be stored."""
        if not self.store.settings.matched or not len(self.memory):
            return
        data = strategy.adapted_dataset
        self._form = Form.of(data)
        copies: dict[int, list[Photo]] = {}
        for label, photo in self._photos(data):
            copies.setdefault(label, []).append(self.memory.as_stored(photo))
        shown = [self._data(label, photos) for label, photos in copies.items()]
        strategy.adapted_dataset = concat_datasets(shown).train()

    def _photos(self, data: AvalancheDataset) -> Iterator[tuple[int, Photo]]:
        """Images of an experience, each with the memory's label of its group."""
        counts: dict[int, int] = {}
        for index in range(len(data)):
            raw, place, transforms = locate(data._flat_data, index)
            task = int(getattr(data, TASKS)[index]) if hasattr(data, TASKS) else None
            label = self._label(Group(int(data.targets[index]), task, transforms))
            seen = self.memory.seen(label) if label in self.memory.labels else 0
            number = counts[label] = counts.get(label, seen - 1) + 1
            yield label, as_photo(raw, place, f"{label}/{number}")

    def _label(self, group: Group) -> int:
        """The memory's label of a group; a new one for a group not seen before."""
        transforms = (id(t) for g in group.transforms for t in (g["train"], g["eval"]))
        key = (group.target, group.task, *transforms)
        if key not in self._keys:
            taken = group.target in self.groups
            label = MORE + len(self.groups) if taken else group.target
            self._keys[key], self.groups[label] = label, group
            self.memory.class_names[label] = str(group.target)
        return self._keys[key]

    def _embed(self, strategy: Any, photos: Sequence[Photo], outputs: bool = False) -> Tensor:
        """Features (or outputs) of the strategy's model, of images as evaluation shows them."""
        groups = [self.groups[int(photo.id.partition("/")[0])] for photo in photos]

        def view(index: int, image: Image.Image) -> Tensor:
            return apply_transforms(groups[index].transforms, "eval", image)

        def run(images: Tensor, part: slice) -> Tensor:
            images = images.to(strategy.device)
            if extractor is not None:
                return extractor(images)
            tasks = torch.tensor([group.task or 0 for group in groups[part]])
            return avalanche_forward(strategy.model, images, tasks.to(images.device))

        extractor = getattr(strategy.model, "feature_extractor", None)  # of prototype networks
        model = strategy.model if extractor is None else extractor
        batch = strategy.eval_mb_size or 64
        return embed_photos(model, photos, view, run, batch, outputs)

    def _refresh(self) -> None:
        """Make the data sets of all groups anew."""
        examples = self.memory.examples()
        places: dict[int, list[int]] = {label: [] for label in self.memory.labels}
        for place, label in enumerate(examples.labels):
            places[label].append(place)
        self.buffer_groups = {
            label: Fixed(self._data(label, [examples.photos[n] for n in at], self._beside(at)))
            for label, at in places.items()
        }
        self.buffer = concat_datasets(self.buffer_datasets)

    def _beside(self, at: Sequence[int]) -> list[Any]:
        """Attributes stored beside images of the memory."""
        if not self.logits:
            return []
        rows = [torch.from_numpy(self.memory.values(place)[LOGITS].copy()) for place in at]
        return [TensorDataAttribute(rows, LOGITS, use_in_getitem=True)]

    def _data(
        self, label: int, photos: Sequence[Photo], beside: Sequence[Any] = ()
    ) -> AvalancheDataset:
        """Images of a group, in the form of the experiences' data sets."""
        assert self._form is not None
        group = self.groups[label]
        values = {TARGETS: group.target, TASKS: group.task}
        attributes: list[Any] = []
        for name, shown in self._form.attributes:
            if name in values:
                attributes.append(DataAttribute([values[name]] * len(photos), name, shown))
            elif shown:
                raise UsageError(f"samples have {name!r}, which is not stored")
        views = {name: Through(group.transforms, name) for name in ("train", "eval")}
        return self._form.kind(
            [Stored(photos, group.target)],
            data_attributes=[*attributes, *beside],
            transform_groups=TransformGroups(views),
            collate_fn=self._form.collate,
        )


class Matching(SupervisedPlugin):
    """Shows new images as the memory will store them, if it is matched."""

    def __init__(self, policy: ByteBuffer):
        super().__init__()
        self.policy = policy

    def after_train_dataset_adaptation(self, strategy: Any, **kwargs: Any) -> None:
        self.policy.match(strategy)


class ByteReplay(ReplayPlugin):
    """Avalanche's replay from a ByteBuffer."""

    def after_train_dataset_adaptation(self, strategy: Any, **kwargs: Any) -> None:
        self.storage_policy.match(strategy)


class Fixed(ExemplarsBuffer):
    """The buffer of one group."""

    def __init__(self, data: AvalancheDataset):
        super().__init__(len(data))
        self.buffer = data

    def resize(self, strategy: Any, new_size: int) -> None:
        """Do nothing: the memory decides."""


class ByteICaRL(_ICaRLPlugin):
    """ICaRL's plugin over a ByteBuffer: exemplars are ranked by herding, and decoded for means."""

    def __init__(self, policy: ByteBuffer):
        super().__init__(IMAGES)
        self.storage_policy = policy

    def after_train_dataset_adaptation(self, strategy: Any, **kwargs: Any) -> None:
        if len(self.storage_policy.buffer):
            parts = (strategy.adapted_dataset, self.storage_policy.buffer)
            strategy.adapted_dataset = concat_datasets(parts)

    def construct_exemplar_set(self, strategy: Any) -> None:
        self.storage_policy.post_adapt(strategy, strategy.experience)

    def reduce_exemplar_set(self, strategy: Any) -> None:
        self.x_memory = Lazily(self.storage_policy.buffer_datasets, _eval_images)
        self.y_memory = Lazily(self.storage_policy.buffer_datasets, lambda data: list(data.targets))


class Lazily(Sequence[Any]):
    """Items made when they are read."""

    def __init__(self, items: Sequence[Any], make: Callable[[Any], Any]):
        self.items, self.make = items, make

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: Any) -> Any:
        return self.make(self.items[index])


def _eval_images(data: AvalancheDataset) -> Tensor:
    plain = data.eval()
    return torch.stack([plain[index][0] for index in range(len(plain))])
