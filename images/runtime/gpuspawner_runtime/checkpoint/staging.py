"""Snapshots into memory that is shared with the writer.

The training's thread copies what may change at any moment: buffers, user state, counters. Parameters and the
optimizer's tensors change only in the optimizer's step: they are copied beside the training, on a thread of their own
(on a card by a stream of its own), and the next step of the optimizer waits for that. What changes them earlier all the
same is noticed by PyTorch's version counters, and the snapshot is taken again, then at a stop.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import json
import mmap
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from gpuspawner_runtime.checkpoint.tree import DTYPES, Split
from gpuspawner_runtime.errors import RuntimeFault

_libc = ctypes.CDLL(None, use_errno=True)
_MADV_POPULATE_WRITE = 23  # linux/mman.h; Python has no name for it
_ALIGN = 64
_ROOM = 1.1  # what the shared memory is larger than its first snapshot


class Memory:
    """Shared memory of `size` bytes without a name; pinned for cards where they are in use."""

    def __init__(self, size: int) -> None:
        left = available()
        if left is not None and size > left:
            raise RuntimeFault(
                f"A checkpoint needs {size / 2**20:.0f} MiB of memory for its snapshot, and {left / 2**20:.0f} MiB are "
                "available.",
                code="memory",
            )
        self.size = size
        self.descriptor = os.memfd_create("gpuspawner-checkpoint", os.MFD_CLOEXEC)
        os.ftruncate(self.descriptor, size)
        self.map = mmap.mmap(self.descriptor, size)
        self.bytes = torch.frombuffer(self.map, dtype=torch.uint8)
        self.address = self.bytes.data_ptr()
        self.pinned = False
        # The pages are made now, large ones where the system has them, so that no snapshot waits for them. Called so
        # that it does not hold the interpreter's lock; before Linux 5.14 it does nothing, and they are made when used.
        for advice in (mmap.MADV_HUGEPAGE, _MADV_POPULATE_WRITE):
            _libc.madvise(ctypes.c_void_p(self.address), ctypes.c_size_t(size), advice)

    def pin(self) -> None:
        """Let cards copy into it without a stop."""
        if not self.pinned:
            self.pinned = int(torch.cuda.cudart().cudaHostRegister(self.address, self.size, 0)) == 0

    def close(self) -> None:
        if self.pinned:
            torch.cuda.cudart().cudaHostUnregister(self.address)
        del self.bytes
        os.close(self.descriptor)
        # the mapping goes with its last reader


def available() -> int | None:
    """Bytes of memory that are still to be had on this machine and in this container; None if nobody says."""
    found = []
    with contextlib.suppress(OSError, StopIteration, ValueError):
        rows = Path("/proc/meminfo").read_text().splitlines()
        found.append(1024 * next(int(row.split()[1]) for row in rows if row.startswith("MemAvailable:")))
    with contextlib.suppress(OSError, ValueError):
        own = Path("/proc/self/cgroup").read_text().splitlines()[-1].split("::")[-1].strip("/")
        folder = Path("/sys/fs/cgroup") / own
        if not (folder / "memory.max").exists():
            folder = Path("/sys/fs/cgroup")
        statistics = dict(row.split() for row in (folder / "memory.stat").read_text().splitlines())
        used = int((folder / "memory.current").read_text()) - int(statistics.get("inactive_file", 0))
        found.append(int((folder / "memory.max").read_text()) - used)
    return min(found, default=None)


class Layout:
    """Where each tensor of a snapshot lies: a safetensors file, then the skeleton's file."""

    def __init__(self, split: Split) -> None:
        order = sorted(range(len(split.tensors)), key=lambda i: -split.tensors[i].element_size())
        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        place = 0
        begins = {}
        for index in order:
            tensor = split.tensors[index]
            size = tensor.numel() * tensor.element_size()
            header[split.names[index]] = {
                "dtype": DTYPES[tensor.dtype],
                "shape": list(tensor.shape),
                "data_offsets": [place, place + size],
            }
            begins[index] = place
            place += size
        raw = json.dumps(header, separators=(",", ":")).encode()
        raw += b" " * (-(8 + len(raw)) % _ALIGN)
        self.header = len(raw).to_bytes(8, "little") + raw
        self.begins = [len(self.header) + begins[index] for index in range(len(split.tensors))]
        self.tensors = len(self.header) + place
        self.skeleton = self.tensors + (-self.tensors % _ALIGN)


class Snapshot:
    """A tree, on its way into `memory`. `late` says of a tensor whether it may be copied beside the training."""

    def __init__(self, memory: Callable[[int], Memory], tree: Any, late: Callable[[Any], bool]) -> None:
        self.split = Split(tree)
        self.layout = Layout(self.split)
        pickled = io.BytesIO()
        torch.save({"names": self.split.names, "tree": self.split.skeleton}, pickled)
        skeleton = pickled.getbuffer()
        self.skeleton_bytes = len(skeleton)
        self.bytes = self.layout.tensors + len(skeleton)
        self.memory = memory(self.layout.skeleton + len(skeleton))
        self.memory.map[: len(self.layout.header)] = self.layout.header
        self.memory.map[self.layout.skeleton : self.layout.skeleton + len(skeleton)] = skeleton
        self._late = []
        self._streams: dict[Any, Any] = {}
        self._copied: dict[Any, Any] = {}
        cards = any(tensor.is_cuda for tensor in self.split.tensors)
        if cards:
            self.memory.pin()
        for tensor, begin in zip(self.split.tensors, self.layout.begins, strict=True):
            if tensor.is_cuda:
                self._from_card(tensor, begin, late(tensor))
            elif late(tensor):
                self._late.append((tensor, begin, tensor._version))
            else:
                self._copy(tensor, begin)
        for card, stream in self._streams.items():
            self._copied[card] = stream.record_event()

    def _target(self, tensor: Any, begin: int) -> Any:
        size = tensor.numel() * tensor.element_size()
        return self.memory.bytes[begin : begin + size].view(tensor.dtype).view(tensor.shape)

    def _copy(self, tensor: Any, begin: int) -> None:
        if not tensor.numel():
            return
        if tensor.is_cpu and tensor.is_contiguous() and not tensor.is_neg():
            # without the interpreter's lock, and on this one processor only
            ctypes.memmove(self.memory.address + begin, tensor.data_ptr(), tensor.numel() * tensor.element_size())
        else:
            self._target(tensor, begin).copy_(tensor)

    def _from_card(self, tensor: Any, begin: int, late: bool) -> None:
        if not tensor.numel():
            return
        if not late:
            self._target(tensor, begin).copy_(tensor)
            return
        stream = self._streams.get(tensor.device)
        if stream is None:
            stream = self._streams[tensor.device] = torch.cuda.Stream(tensor.device)
            stream.wait_stream(torch.cuda.current_stream(tensor.device))
        with torch.cuda.stream(stream):
            self._target(tensor, begin).copy_(tensor, non_blocking=self.memory.pinned)
        self._late.append((tensor, -1, tensor._version))

    def finish(self) -> bool:
        """Copy the rest; False if something was changed meanwhile, and the snapshot is of no use."""
        for tensor, begin, _ in self._late:
            if begin >= 0:
                self._copy(tensor, begin)
        for event in self._copied.values():
            event.synchronize()
        return all(tensor._version == version for tensor, _, version in self._late)

    def release(self) -> None:
        """Forget the tensors: they belong to the training."""
        self._late.clear()
        self.split.tensors.clear()

    def before_update(self) -> None:
        """On a card: let the work that follows on the current streams wait for the copies, without stopping here."""
        for card, event in self._copied.items():
            torch.cuda.current_stream(card).wait_event(event)

    @property
    def on_cards_only(self) -> bool:
        return bool(self._copied) and not any(begin >= 0 for _, begin, _ in self._late)


class Copying:
    """A snapshot being finished on a thread of its own; `then(whole)` is called there at the end."""

    def __init__(self, snapshot: Snapshot, then: Callable[[bool], None]) -> None:
        self.snapshot = snapshot
        self._then = then
        self.whole: bool | None = None
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="checkpoint-copy", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        whole = False
        try:
            whole = self.snapshot.finish()
        finally:
            self.whole = whole
            self._done.set()
            self.snapshot.release()
            self._then(whole)

    def join(self) -> None:
        """Until it is finished and `then` has returned."""
        self._thread.join()

    def wait(self) -> None:
        """Until the training may change what is copied."""
        if self.snapshot.on_cards_only:
            self.snapshot.before_update()
        else:
            self._done.wait()


class Workspace:
    """The memory that snapshots of one run take turns in: made beside the training, grown when a snapshot needs it."""

    def __init__(self) -> None:
        self._memory: Memory | None = None
        self._ready: Memory | None = None
        self._preparing: threading.Thread | None = None

    @property
    def begun(self) -> bool:
        """Whether there is memory, or will be."""
        return self._memory is not None or self._preparing is not None

    def prepare(self, size: int) -> None:
        """Make room for `size` bytes on a thread of its own. That it fails is said when it is needed."""

        def make() -> None:
            with contextlib.suppress(RuntimeFault):
                self._ready = _fitting(None, size)

        self._preparing = threading.Thread(target=make, daemon=True)
        self._preparing.start()

    def fitting(self, size: int, share: Callable[[int, int], Any]) -> Memory:
        """Memory of at least `size` bytes. `share` is called with descriptor and size of what is new. Raises
        RuntimeFault if there is not enough."""
        if self._memory is None and self._preparing is not None:
            self._preparing.join()
        ready, self._ready = self._ready, None
        memory = _fitting(ready or self._memory, size)
        if memory is not self._memory:
            self._memory = memory
            share(memory.descriptor, memory.size)
        return memory

    def close(self) -> None:
        """Give everything back. May be used again."""
        if self._preparing is not None:
            self._preparing.join()
        for memory in filter(None, (self._memory, self._ready)):
            memory.close()
        self._memory = self._ready = self._preparing = None


def _fitting(memory: Memory | None, size: int) -> Memory:
    """`memory` if `size` bytes fit into it, else a new one, a little larger."""
    if memory is not None and memory.size >= size:
        return memory
    if memory is not None:
        memory.close()
    rounded = int(size * _ROOM) + mmap.PAGESIZE
    return Memory(rounded - rounded % mmap.PAGESIZE)
