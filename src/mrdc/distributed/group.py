"""The processes of a run.

Every process (rank) holds the same network and draws the same random numbers for a whole batch.
It trains on its part of the batch; gradients are summed, so that all take the same step. A loss
that couples images uses `sum`, `mean` or `gather`, whose gradients reach the ranks they come
from. Rank 0 alone decides, stores, writes and prints: `lead` and `share` hand its results to the
others. For one process all of this does nothing.
"""

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from mrdc._utils.errors import RanksError
from mrdc._utils.ranks import local_rank, local_ranks, ranks

J = TypeVar("J")
R = TypeVar("R")
T = TypeVar("T")
S = TypeVar("S", bound="Sliced")
PATIENCE = timedelta(days=7)  # ranks wait as long as rank 0 searches, or waits for another run


class Sliced(Protocol):
    """A sequence or an array."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> Any: ...


class Group:
    """One process, alone."""

    rank = 0
    size = 1

    def bounds(self, count: int) -> list[int]:
        """Where the parts of `count` items begin, rank by rank, and the end."""
        return [count * rank // self.size for rank in range(self.size + 1)]

    def span(self, count: int) -> tuple[int, int]:
        """Where the part of this rank begins and ends."""
        start, stop = self.bounds(count)[self.rank : self.rank + 2]
        return start, stop

    def part(self, items: S) -> S:
        """The part of this rank."""
        start, stop = self.span(len(items))
        found: S = items[start:stop]
        return found

    def sum(self, value: Tensor) -> Tensor:
        """Sum over all ranks."""
        return value

    def mean(self, rows: Tensor) -> Tensor:
        """Mean of the rows (n, d) of all ranks."""
        return rows.mean(0)

    def gather(self, rows: Tensor, bounds: Sequence[int]) -> Tensor:
        """The rows of all ranks, in order; rank r has those from bounds[r] to bounds[r + 1]."""
        return rows

    def join(self, items: Iterable[T]) -> list[T]:
        """The items of all ranks, in order."""
        return list(items)

    def lead(self, work: Callable[[], T], help: Callable[[Any], Any] | None = None) -> T:
        """The result of rank 0, which does the work, and may `ask` the others to help."""
        return work()

    def ask(self, help: Callable[[J], R], job: J, pack: Callable[[J], J]) -> R:
        """Rank 0 within `lead`: let all ranks do a job together, `pack`ed so that it can travel."""
        return help(job)

    def share(
        self,
        make: Callable[[], T],
        save: Callable[[T, Path], None],
        load: Callable[[Path], T],
        help: Callable[[Any], Any] | None = None,
    ) -> T:
        """Make something on rank 0; the others get a copy, via a temporary file."""
        return make()

    def agree(self, tensors: Iterable[Tensor]) -> None:
        """Overwrite tensors with those of rank 0."""

    def backward(self, loss: Tensor, rows: int, parameters: Iterable[nn.Parameter]) -> None:
        """Gradients of the loss of the whole batch: the ranks' losses, weighted by rows."""
        loss.backward()  # type: ignore[no-untyped-call]

    def first_to(self, report: str) -> bool:
        """Whether no other rank has claimed this report, so that this one should print it."""
        return True

    def leave(self) -> None:
        """Leave the other ranks when the work is done."""


class Ranks(Group):
    """Several processes, started by torchrun or `mrdc run --nproc`."""

    def __init__(self) -> None:
        self.store: Store | None = None
        if torch.cuda.is_available():
            torch.cuda.set_device(local_rank() % torch.cuda.device_count())
        if not dist.is_initialized():  # else by the user's own script
            self.store, rank, size = next(rendezvous("env://", timeout=PATIENCE))
            own = PrefixStore("mrdc", self.store)
            with lost():
                dist.init_process_group(
                    backend(), store=own, rank=rank, world_size=size, timeout=PATIENCE
                )
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def sum(self, value: Tensor) -> Tensor:
        found: Tensor = _Sum.apply(value)
        return found

    def mean(self, rows: Tensor) -> Tensor:
        count = torch.full((1,), len(rows), dtype=rows.dtype, device=rows.device)
        total = self.sum(torch.cat([rows.sum(0), count]))
        return total[:-1] / total[-1]

    def gather(self, rows: Tensor, bounds: Sequence[int]) -> Tensor:
        found: Tensor = _Gather.apply(rows, tuple(bounds), self.rank)
        return found

    def join(self, items: Iterable[T]) -> list[T]:
        parts: list[list[T]] = [[]] * self.size
        own = list(items)
        with lost():
            dist.all_gather_object(parts, own)
        return [item for part in parts for item in part]

    def lead(self, work: Callable[[], T], help: Callable[[Any], Any] | None = None) -> T:
        result, error = None, None
        if self.rank == 0:
            try:
                result = work()
            except Exception as problem:
                error = problem
        while (message := self._from_first(("done", result, error)))[0] == "job":
            assert help is not None
            help(message[1])
        _, found, error = message
        if error is not None:
            raise error
        return found  # type: ignore[no-any-return]

    def ask(self, help: Callable[[J], R], job: J, pack: Callable[[J], J]) -> R:
        return help(self._from_first(("job", pack(job)))[1])

    def _from_first(self, message: tuple[Any, ...]) -> tuple[Any, ...]:
        """The message of rank 0."""
        messages = [message]
        with lost():
            dist.broadcast_object_list(messages, src=0, device=torch.device("cpu"))
        return messages[0]

    def share(
        self,
        make: Callable[[], T],
        save: Callable[[T, Path], None],
        load: Callable[[Path], T],
        help: Callable[[Any], Any] | None = None,
    ) -> T:
        made = list[T]()

        def written() -> bytes:
            made.append(make())
            with temporary_file() as file:
                save(made[0], file)
                return file.read_bytes()

        content = self.lead(written, help)
        if made:
            return made[0]
        with temporary_file() as file:
            file.write_bytes(content)
            return load(file)  # it stays mapped after the file is removed

    def agree(self, tensors: Iterable[Tensor]) -> None:
        with torch.no_grad(), lost():
            for tensor in tensors:
                value = tensor.detach().contiguous()
                dist.broadcast(value, src=0)
                tensor.copy_(value)

    def backward(self, loss: Tensor, rows: int, parameters: Iterable[nn.Parameter]) -> None:
        with lost():
            (loss * rows).backward()  # type: ignore[no-untyped-call]
        gradients = [p.grad for p in parameters if p.grad is not None]
        count = torch.full((1,), rows, dtype=gradients[0].dtype, device=gradients[0].device)
        flat = torch.cat([*(gradient.flatten() for gradient in gradients), count])
        _reduced(flat).div_(flat[-1].clone())
        parts = torch.split(flat[:-1], [gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view(gradient.shape))

    def first_to(self, report: str) -> bool:
        if self.store is None:
            return self.rank == 0
        start = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        with lost():
            return bool(self.store.add(f"{report} {start}", 1) == 1)

    def leave(self) -> None:
        dist.destroy_process_group()


@cache
def world() -> Group:
    """All processes of this run; the first call waits for them."""
    return Ranks() if ranks() > 1 else Group()


def backend() -> str:
    """NCCL between GPUs; gloo on CPUs, and where processes share a GPU, which NCCL refuses."""
    own_gpu = torch.cuda.is_available() and local_ranks() <= torch.cuda.device_count()
    return "cpu:gloo,cuda:nccl" if own_gpu else "gloo"


@contextmanager
def temporary_file() -> Iterator[Path]:
    """A path for a file that is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="mrdc-") as folder:
        yield Path(folder) / "shared"


@contextmanager
def lost() -> Iterator[None]:
    """Explain in one line that another rank has gone."""
    try:
        yield
    except RuntimeError as error:
        known = isinstance(error, dist.DistError) or "gloo" in str(error).lower()
        if not known:
            raise
        raise RanksError(
            "another process of this run has ended: run the same command to resume"
        ) from error


def _reduced(tensor: Tensor) -> Tensor:
    """Sum a tensor over all ranks, in place."""
    with lost():
        dist.all_reduce(tensor)
    return tensor


class _Sum(torch.autograd.Function):
    """Sum over ranks; each rank's loss depends on every rank's summand."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        return _reduced(value.clone(memory_format=torch.contiguous_format))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return _Sum.forward(ctx, gradient)


class _Gather(torch.autograd.Function):
    """Rows of all ranks; the gradient of a row is summed over the ranks that use it."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, bounds: tuple[int, ...], rank: int) -> Tensor:
        ctx.own = slice(bounds[rank], bounds[rank + 1])
        everything = rows.new_zeros(bounds[-1], *rows.shape[1:])
        everything[ctx.own] = rows
        return _reduced(everything)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return _Sum.forward(ctx, gradient)[ctx.own], None, None
