"""Batches with a position that can be saved: after a resume every sample comes exactly once, in the same order.

- A DataLoader over a dataset with indices is built anew around the same parts. Its sampler is brought to where it was
  without loading anything; what workers draw at random comes from a seed of each batch, so it does not depend on how
  far a worker had got.
- A StatefulDataLoader (torchdata) over a stream keeps its own position.
- Anything else that can be iterated over is read again up to the position.
"""

from __future__ import annotations

import itertools
import random
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, get_worker_info

from gpuspawner_runtime.checkpoint import rng
from gpuspawner_runtime.checkpoint.find import Progress
from gpuspawner_runtime.errors import RuntimeFault

_CARRIED = (
    "num_workers",
    "collate_fn",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "generator",
    "prefetch_factor",
    "persistent_workers",
    "pin_memory_device",
)


class _Drawn:
    """Indices of one batch, and the seed of what is drawn at random for it."""

    __slots__ = ("indices", "seed")

    def __init__(self, indices: Any, seed: int) -> None:
        self.indices, self.seed = indices, seed

    def __iter__(self) -> Iterator[Any]:  # the loader takes the list of a batch for its length only
        return iter(self.indices)


class _Seeded:
    """A dataset that seeds the generators of a worker before each batch."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getattr__(self, name: str) -> Any:
        if name == "dataset":  # while it is unpickled
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def __getitem__(self, drawn: _Drawn) -> Any:
        _seed(drawn.seed)
        return self.dataset[drawn.indices]

    def __getitems__(self, drawn: _Drawn) -> Any:
        _seed(drawn.seed)
        many = getattr(self.dataset, "__getitems__", None)
        return many(drawn.indices) if many else [self.dataset[index] for index in drawn.indices]


def _seed(seed: int) -> None:
    if get_worker_info() is None:
        return  # in the training's own process: its generators are saved and restored as they are
    torch.manual_seed(seed)
    random.seed(seed)
    if "numpy" in sys.modules:
        import numpy

        numpy.random.seed(seed % 2**32)


class _Positioned:
    """A sampler of batches that begins where it is told to."""

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler
        self.batches: Iterator[Any] = iter(())
        self.seed = 0

    def begin(self, batches: Iterator[Any], seed: int, number: int) -> None:
        self.batches, self.seed, self.number = batches, seed, number

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[_Drawn]:
        for number, indices in enumerate(self.batches, self.number):
            yield _Drawn(indices, (self.seed + number) % 2**63)


class Feed:
    """The batches of a run. `epoch` and `batch`: how many of each are done; a batch is done when `done` is called, or
    the next one is asked for."""

    def __init__(self, loader: Any) -> None:
        if not hasattr(loader, "__iter__"):
            raise RuntimeFault(
                f"loader: a {type(loader).__name__} cannot be iterated over.",
                field="loader",
                given=type(loader).__name__,
            )
        self.loader = loader
        self.epoch = self.batch = 0
        self.moved = False  # a restore has put the position elsewhere: whoever iterates begins anew there
        self._yielded = 0
        self._start: dict[str, Any] | None = None
        self._inner: Any = None
        self._stream: Any = None
        self._rest: list[int] | None = None
        self._sampler, self._built = _built(loader)
        self._stateful = self._built is None and all(
            hasattr(loader, name) for name in ("state_dict", "load_state_dict")
        )

    # -- going through an epoch

    def batches(self) -> Iterator[Any]:
        """What is left of the epoch. At its end `epoch` has grown and `batch` is 0."""
        inner = self._begin()
        self._yielded = self.batch
        for each in inner:
            self._yielded += 1
            yield each
            if self.moved:
                return
            self.done()
        self._next_epoch()

    def _next_epoch(self) -> None:
        self.epoch += 1
        self.batch = self._yielded = 0
        self._start = self._stream = self._rest = None

    def settle(self) -> None:
        """Stopped behind the last batch of an epoch, it is at the beginning of the next one."""
        if self.batch and self._rest is None and self.batch == length(self.loader):
            self._next_epoch()

    def done(self) -> None:
        """The batch that was given last is done."""
        self.batch = self._yielded

    def step_ended(self) -> None:
        self.done()
        if self._stateful:
            self._stream = self.loader.state_dict()

    def _begin(self) -> Iterator[Any]:
        self.moved = False
        generators = self._generators()
        current = rng.capture()
        if self._start is None:
            self._start = {"rng": current, "own": [each.get_state() for each in generators]}
            resumed = False
        else:
            resumed = True
            rng.restore(self._start["rng"])
            for each, state in zip(generators, self._start["own"], strict=True):
                each.set_state(state.cpu())
        set_epoch = getattr(getattr(self.loader, "sampler", None), "set_epoch", None)
        if set_epoch is not None:
            set_epoch(self.epoch)
        if self._built is not None:
            inner = self._indexed()
        elif resumed and self._stream is not None and self._stateful:
            self.loader.load_state_dict(self._stream)
            inner = iter(self.loader)
        else:
            inner = self._read_again()
        if resumed:
            rng.restore(current)
        return inner

    def _indexed(self) -> Iterator[Any]:
        # The sampler first: what it draws at random, it draws now and in this order, resumed or not.
        seed = int(torch.empty((), dtype=torch.int64).random_().item())
        batches = iter(self._sampler.sampler) if self._rest is None else self._divided(self._rest)
        skipped = self.batch if self._rest is None else 0
        for _ in itertools.islice(batches, skipped):
            pass
        first = list(itertools.islice(batches, 1))
        self._sampler.begin(itertools.chain(first, batches), seed, self.batch)
        found: Iterator[Any] = iter(self._built)
        return found

    def _divided(self, rest: list[int]) -> Iterator[Any]:
        size = self.loader.batch_size
        for place in range(0, len(rest), size):
            part = rest[place : place + size]
            if len(part) == size or not self.loader.drop_last:
                yield part

    def _read_again(self) -> Iterator[Any]:
        inner: Iterator[Any] = iter(self.loader)
        if self.batch:
            progress = Progress(f"Reading again up to batch {self.batch}", self.batch)
            for _ in itertools.islice(inner, self.batch):
                progress(1)
        return inner

    def _generators(self) -> list[Any]:
        found = [
            getattr(self.loader, "generator", None),
            getattr(getattr(self.loader, "sampler", None), "generator", None),
        ]
        return [each for place, each in enumerate(found) if each is not None and each not in found[:place]]

    # -- saving

    def state_dict(self) -> dict[str, Any]:
        return {
            "epoch": self.epoch,
            "batch": self.batch,
            "start": self._start if self.batch else None,
            "stream": self._stream if self.batch else None,
            "rest": self._rest if self.batch else None,
            "batch_size": getattr(self.loader, "batch_size", None),
        }

    def load_state_dict(self, state: dict[str, Any], was: int = 1, world: int = 1, rank: int = 0) -> None:
        """Go to a position. Of another number of ranks, what is left of the epoch is divided anew."""
        self.epoch, self.batch = int(state["epoch"]), int(state["batch"])
        self._start, self._stream, self._rest = state["start"], state["stream"], state["rest"]
        self.moved = True
        if was != world and self.batch:
            self._divide(state, was, world, rank)
        self._yielded = self.batch

    def _divide(self, state: dict[str, Any], was: int, world: int, rank: int) -> None:
        sampler = getattr(self.loader, "sampler", None)
        if not isinstance(sampler, DistributedSampler) or not state["batch_size"] or self._built is None:
            raise RuntimeFault(
                f"The checkpoint is of {was} processes in the middle of an epoch and there are {world} now: that can "
                "be divided anew only for a DataLoader with a DistributedSampler and a batch size. Start with "
                f"{was} processes, or restore a checkpoint from the end of an epoch.",
                code="world_size",
                field="loader",
            )
        whole = DistributedSampler(
            sampler.dataset, num_replicas=1, rank=0, shuffle=sampler.shuffle, seed=sampler.seed, drop_last=False
        )
        whole.set_epoch(self.epoch)
        order = list(whole) if state["rest"] is None else None
        if order is None:
            raise RuntimeFault(
                "The number of processes changed twice within one epoch, which is not supported.",
                code="world_size",
                field="loader",
            )
        rest = order[self.batch * state["batch_size"] * was :]
        missing = (
            -len(rest) % world
        )  # all ranks take as many steps; some samples come twice, as DistributedSampler does
        self._rest = (rest + order[:missing])[rank::world]
        self.batch = 0
        self._start = None


def _built(loader: Any) -> tuple[Any, Any]:
    """A loader around the same parts whose position can be set, and its sampler; twice None where there is none."""
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset) or loader.sampler is None:
        return None, None
    if hasattr(loader.dataset, "state_dict") and hasattr(loader, "state_dict"):
        return None, None  # a StatefulDataLoader over a dataset with a state of its own
    batched = loader.batch_sampler is not None
    sampler = _Positioned(loader.batch_sampler if batched else loader.sampler)
    carried = {name: getattr(loader, name) for name in _CARRIED if hasattr(loader, name)}
    if not carried.get("pin_memory_device"):
        carried.pop("pin_memory_device", None)
    given: dict[str, Any] = {"batch_sampler": sampler} if batched else {"batch_size": None, "sampler": sampler}
    return sampler, DataLoader(_Seeded(loader.dataset), **given, **carried)


def length(loader: Any) -> int | None:
    """Batches in an epoch; None if the loader does not say."""
    try:
        return len(loader)
    except (TypeError, NotImplementedError):
        return None
