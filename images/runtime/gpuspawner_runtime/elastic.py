"""A share that changes while training runs: using more memory, and giving memory back.

*After a resize* functions given to `on_resize` are called, between two steps (`Stepper` asks after each update, at the
price of one look into memory), or by a thread for programs without one. The node's limit file is the source.

*Before a shrink* the notebook server asks its kernels to free caches, over the control channel, also while a cell
runs. `gpuspawner_lab` answers there; functions given to `on_shrink` here are called with it, and the answer says how
many bytes came back. Without the extension nobody asks, and `free_caches()` does the same by hand.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import math
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from gpuspawner_runtime import limit_file
from gpuspawner_runtime.errors import RuntimeFault
from gpuspawner_runtime.limit_file import LimitFile, Share

_THREAD_SECONDS = 0.5
_Function = TypeVar("_Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Resize:
    """The share before and after, by card."""

    before: tuple[Share, ...]
    after: tuple[Share, ...]

    @property
    def memory_before(self) -> int:
        """Bytes allowed on all cards together, before."""
        return sum(share.memory_bytes for share in self.before)

    @property
    def memory_after(self) -> int:
        """Bytes allowed on all cards together, now."""
        return sum(share.memory_bytes for share in self.after)

    @property
    def factor(self) -> float:
        """How many times the memory of before; 1 where nothing is known of before."""
        return self.memory_after / self.memory_before if self.memory_before else 1.0


@dataclass
class _Listener:
    function: Callable[[Resize], Any]
    soon: bool
    known: tuple[Share, ...] | None


_listeners: list[_Listener] = []
_shrinkers: list[Callable[[], Any]] = []
_guard = threading.RLock()
_file: LimitFile | None = None
_looked = False
_generation = -1
_now: tuple[Share, ...] | None = None
_changes = _told = 0
_thread: threading.Thread | None = None


def shares() -> tuple[Share, ...] | None:
    """What the session may use of each card now; None without a limit file."""
    _look()
    return _now


def memory_allowed() -> int | None:
    """Bytes of card memory that this session may use, on all its cards; None if nobody says."""
    known = shares()
    if known is None:
        return None
    return sum(share.memory_bytes for share in known)


def on_resize(function: _Function, *, soon: bool = False) -> _Function:
    """Call `function(resize)` after each change of the share; usable as a decorator.

    It is called between two steps of a `Stepper` or at `check()`, in the thread that trains, so it may change batch
    sizes. `soon=True`: by a thread of its own within half a second, also while nothing is trained. A function that is
    given twice, or defined again by a cell that runs again, is called once. What it raises becomes a warning. Raises
    TypeError for what is not callable.
    """
    if not callable(function):
        raise TypeError(f"on_resize takes a function of one argument, the resize, not {function!r}")
    with _guard:
        _listeners[:] = [each for each in _listeners if not _same_function(each.function, function)]
        _listeners.append(_Listener(function, soon, shares()))
        if soon and _file is not None:
            _start_thread()
    return function


def on_shrink(function: _Function) -> _Function:
    """Call `function()` when the share is about to become smaller: it frees what it can and returns the bytes, or None.

    It may be called by another thread while a step runs. Usable as a decorator.
    """
    if not callable(function):
        raise TypeError(f"on_shrink takes a function without arguments, not {function!r}")
    _shrinkers[:] = [each for each in _shrinkers if not _same_function(each, function)]
    _shrinkers.append(function)
    join_the_extension()
    return function


def forget(function: Callable[..., Any]) -> None:
    """Call a function no longer, neither after a resize nor before a shrink."""
    with _guard:
        _listeners[:] = [each for each in _listeners if each.function != function]
    if function in _shrinkers:
        _shrinkers.remove(function)


def check() -> Resize | None:
    """See whether the share has changed, and tell those who asked for it; returns the change. Never raises."""
    global _told
    _look()
    if _told == _changes:
        return None
    _told = _changes
    return _tell(soon=False)


@dataclass(frozen=True)
class Freed:
    """What came back before a shrink: bytes of card memory, and of others that functions reported; and failures."""

    card_bytes: int
    reported_bytes: int
    failures: tuple[str, ...]

    @property
    def bytes(self) -> int:
        """What is free for the driver now and was not before, as far as known: the larger of both views."""
        return max(self.card_bytes, self.reported_bytes)

    def __str__(self) -> str:
        lines = [f"{self.bytes / 2**20:,.0f} MiB came back", *self.failures]
        return "; ".join(lines)


def free_caches() -> Freed:
    """Free what this process can spare: what `on_shrink` was given, garbage, PyTorch's unused blocks. Never raises."""
    before = _reserved()
    reported, failures = 0, []
    for function in list(_shrinkers):
        try:
            given = function()
            reported += given if isinstance(given, int) and not isinstance(given, bool) and given > 0 else 0
        except Exception as error:
            name = getattr(function, "__name__", repr(function))
            failures.append(f"{name} could not free its cache: {type(error).__name__}: {error}")
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None:
        with contextlib.suppress(Exception):
            if torch.cuda.is_available() and torch.cuda.is_initialized():
                torch.cuda.empty_cache()
    return Freed(max(0, before - _reserved()), reported, tuple(failures))


def _for_the_extension() -> int:
    """What `gpuspawner_lab` calls; bytes that functions reported, since it looks at PyTorch's own itself."""
    freed = free_caches()
    if freed.failures:
        raise RuntimeError("; ".join(freed.failures))
    return freed.bytes


def join_the_extension() -> bool:
    """Be asked by the notebook server before a shrink; False where its extension is not installed."""
    try:
        lab = importlib.import_module("gpuspawner_lab.shrink")
        lab.on_shrink(_for_the_extension)
    except (ImportError, AttributeError):
        return False
    return True


class CacheBudget:
    """A part of the card memory that the session may use: `CacheBudget(0.2).bytes` follows every resize."""

    def __init__(self, part: float) -> None:
        if not 0 < part <= 1:
            raise RuntimeFault(
                f"part is {part!r}: it must be above 0 and at most 1.", field="part", given=part, allowed="0 to 1"
            )
        self.part = part

    @property
    def bytes(self) -> int | None:
        """Bytes by the share of now; None where nobody says what the share is."""
        allowed = memory_allowed()
        return None if allowed is None else int(allowed * self.part)


class MicroBatches:
    """Splits each batch of the loader into parts that fit, and follows every resize; the update stays the same.

        parts = MicroBatches(stepper, size=16)       # what fits into the share of now
        for batch in r:                              # the loader's batch is one update
            for part in parts(batch):
                r.step(step(part))

    After a resize the size grows or falls with the memory, and the number of parts for an update the other way round,
    so the global batch, the learning rate and the position in the data stay. Each part counts by its samples. Layers
    that look at the whole batch (BatchNorm) see parts.
    """

    def __init__(self, stepper: Any, size: int | None = None) -> None:
        """`size`: samples in a part, by the share of now; None: whole batches, split only after a shrink."""
        if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < 1):
            raise RuntimeFault(
                f"size is {size!r}: it must be a whole number from 1, or None.",
                field="size",
                given=size,
                allowed=">= 1",
            )
        self.size = size
        self._stepper = stepper
        self._exact = None if size is None else float(size)
        # Weakly: a cell that runs again makes a new one, and the old one is to go.
        myself = weakref.WeakMethod(self._resized)

        def follow(resize: Resize) -> None:
            resized = myself()
            if resized is None:
                forget(follow)
            else:
                resized(resize)

        self._follow = on_resize(follow)

    def __call__(self, batch: Any) -> Iterator[Any]:
        """The parts of one batch; a batch is a tensor, or a tuple, list or dict of tensors with samples first."""
        samples = _samples(batch)
        if self._exact is None:
            self._exact, self.size = float(samples), samples
        count = max(1, math.ceil(samples / min(samples, self.size or samples)))
        self._stepper.accumulate = count
        for part in range(count):
            start, end = part * samples // count, (part + 1) * samples // count
            self._stepper.weight = (end - start) / samples
            self._stepper.more = part + 1 < count
            yield _cut(batch, start, end, samples)

    def close(self) -> None:
        """Follow no further resize."""
        forget(self._follow)

    def _resized(self, resize: Resize) -> None:
        if self._exact is not None:
            self._exact = max(1.0, self._exact * resize.factor)
            self.size = max(1, int(self._exact))


def _samples(batch: Any) -> int:
    sizes = {each.shape[0] for each in _tensors(batch) if each.dim()}
    if len(sizes) != 1:
        raise RuntimeFault(
            f"The tensors of the batch have {sorted(sizes)} samples: they must agree to be split.", field="batch"
        )
    return int(sizes.pop())


def _tensors(batch: Any) -> list[Any]:
    if hasattr(batch, "dim"):
        return [batch]
    values = batch.values() if isinstance(batch, dict) else batch if isinstance(batch, (tuple, list)) else ()
    return [tensor for value in values for tensor in _tensors(value)]


def _cut(batch: Any, start: int, end: int, samples: int) -> Any:
    if hasattr(batch, "dim"):
        return batch[start:end] if batch.dim() else batch
    if isinstance(batch, dict):
        return {key: _cut(value, start, end, samples) for key, value in batch.items()}
    if isinstance(batch, (tuple, list)):
        # plain values beside the tensors, such as names, are cut only where they are one for each sample
        if not _tensors(batch):
            return batch[start:end] if len(batch) == samples else batch
        cut = [_cut(value, start, end, samples) for value in batch]
        return type(batch)(*cut) if hasattr(batch, "_fields") else type(batch)(cut)
    return batch


def _look() -> None:
    """Read the limit file if it has changed. The common case is one comparison."""
    global _file, _looked, _generation, _now, _changes
    if not _looked:
        with _guard:
            if not _looked:
                _file = limit_file.find()
                _looked = True
    if _file is None or _file.generation == _generation:
        return
    with _guard:
        generation = _file.generation
        found = _file.shares()
        if found is None:
            return
        if _facts(found) != _facts(_now or ()):
            _changes += 1
        _generation, _now = generation, found


def _same_function(one: Any, other: Any) -> bool:
    if one == other:
        return True
    names = [(getattr(each, "__module__", None), getattr(each, "__qualname__", "<lambda>")) for each in (one, other)]
    return names[0] == names[1] and names[0][1].isidentifier() and not hasattr(one, "__self__")


def _facts(found: tuple[Share, ...]) -> list[tuple[str, int, int]]:
    return [(share.uuid, share.eighths, share.memory_bytes) for share in found]


def _tell(soon: bool) -> Resize | None:
    told = None
    now = _now
    if now is None:
        return None
    with _guard:
        due = [each for each in _listeners if each.soon == soon and _facts(each.known or ()) != _facts(now)]
        changes = [(each, Resize(each.known or (), now)) for each in due]
        for each in due:
            each.known = now
    for listener, resize in changes:
        told = resize
        try:
            listener.function(resize)
        except Exception as error:
            name = getattr(listener.function, "__name__", repr(listener.function))
            warnings.warn(f"{name}, called after a resize, failed: {type(error).__name__}: {error}", stacklevel=3)
    return told


def _start_thread() -> None:
    global _thread
    if _thread is None or not _thread.is_alive():
        _thread = threading.Thread(target=_watch, name="gpuspawner-resize", daemon=True)
        _thread.start()


def _watch() -> None:
    pause = threading.Event()
    while any(each.soon for each in list(_listeners)):
        _look()
        _tell(soon=True)
        pause.wait(_THREAD_SECONDS)


def _reserved() -> int:
    """Bytes that PyTorch holds on all cards, used or not; 0 where it holds none."""
    torch = sys.modules.get("torch")
    if torch is None:
        return 0
    try:
        if not (torch.cuda.is_available() and torch.cuda.is_initialized()):
            return 0
        return sum(torch.cuda.memory_reserved(index) for index in range(torch.cuda.device_count()))
    except Exception:
        return 0


def reset() -> None:
    """Look for the limit file anew and forget who listens; for tests and for processes after a fork."""
    global _file, _looked, _generation, _now, _changes, _told
    with _guard:
        _listeners.clear()
        _shrinkers.clear()
        _file, _looked, _generation, _now, _changes, _told = None, False, -1, None, 0, 0
