"""The newest checkpoint that is whole, wherever it lies; and what it holds."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from typing import Any

from gpuspawner_runtime.checkpoint.remote import Remote
from gpuspawner_runtime.checkpoint.store import Entry, Skipped, Store
from gpuspawner_runtime.errors import RuntimeFault


@dataclass
class Found:
    """The newest verified checkpoint (None if there is none), and what was passed over on the way to it."""

    entry: Entry | None = None
    skipped: list[Skipped] = field(default_factory=list)


def newest(store: Store, remote: Remote | None = None) -> Found:
    """Look through the local store and the remote one, newest first, and compare hashes until one is whole."""
    local, incomplete = store.look()
    found = Found(skipped=incomplete)
    away: list[Entry] = []
    if remote is not None:
        try:
            away = remote.entries()
        except Exception as error:  # a store may fail in any way of its own
            if not local:
                raise RuntimeFault(
                    f"The store of checkpoints does not answer and none is here: {error}", code="store"
                ) from error
            found.skipped.append(Skipped(remote.root, f"the store does not answer ({error})"))
    candidates = [(entry.serial, 1, entry) for entry in local] + [(entry.serial, 0, entry) for entry in away]
    for _, here, entry in sorted(candidates, key=lambda each: each[:2], reverse=True):
        if here:
            problem = store.problem(entry, Progress(f"Checking {entry.name}", entry.bytes))
            if problem is None:
                found.entry = entry
                return found
            found.skipped.append(Skipped(entry.name, problem))
        else:
            assert remote is not None
            print(f"Fetching {entry.name} ({entry.bytes / 2**20:.0f} MiB)")
            fetched = remote.fetch(entry, store)
            if isinstance(fetched, Entry):
                found.entry = fetched
                return found
            found.skipped.append(Skipped(entry.name, fetched))
    return found


def load(entry: Entry, rank: int) -> Any:
    """The tree that a rank saved, tensors on the CPU. Only tensors and primitives are read from its files. Raises
    RuntimeFault if they hold anything else: then somebody else wrote them, since their hashes are right."""
    import safetensors
    import torch

    from gpuspawner_runtime.checkpoint.tree import join

    try:
        kept = torch.load(entry.path / f"rank-{rank}.pt", weights_only=True, map_location="cpu")
        with safetensors.safe_open(entry.path / f"rank-{rank}.safetensors", framework="pt") as file:
            tensors = [file.get_tensor(name) for name in kept["names"]]
        tree = join(kept["tree"], tensors)
        if not {"meta", "rng"} <= set(tree):
            raise ValueError("it is no state of a run")
        return tree
    except (OSError, MemoryError):
        raise
    except Exception as error:  # whatever a file of any content leads to
        reason = str(error).strip().split("\n")[0][:200]
        raise RuntimeFault(
            f"{entry.name} cannot be loaded: its files are whole and hold what no run has written ({reason}). "
            f"Nothing of it was run. It lies in {entry.path}; move it away to go on from the one before.",
            code="foreign",
        ) from error


class Progress:
    """One line on a terminal or in a notebook for what takes longer than two seconds."""

    def __init__(self, what: str, total: int) -> None:
        self.what, self.total, self.done = what, max(total, 1), 0
        self._began = time.monotonic()
        self._shown = 0.0

    def __call__(self, more: int) -> None:
        self.done = min(self.total, self.done + more)
        now = time.monotonic()
        if now - self._began > 2 and (now - self._shown > 0.5 or self.done == self.total):
            self._shown = now
            sys.stderr.write(f"\r{self.what}: {100 * self.done // self.total} %" + "\n" * (self.done == self.total))
            sys.stderr.flush()
