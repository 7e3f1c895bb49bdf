"""What a session does of its own accord before its share becomes smaller."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

from .shares import gib

_Callback = TypeVar("_Callback", bound=Callable[[], object])
_callbacks: list[Callable[[], object]] = []


def on_shrink(callback: _Callback) -> _Callback:
    """Register a function that frees cached GPU memory; called before a shrink is asked for.

    Usable as a decorator. A callback takes no arguments, and may return how many bytes of card memory it has freed;
    registering it twice calls it once. An exception in it is reported and does not stop the shrink.
    """
    if not callable(callback):
        raise TypeError(f"on_shrink takes a function without arguments, not {callback!r}")
    if callback not in _callbacks:
        _callbacks.append(callback)
    return callback


def forget(callback: Callable[[], object]) -> None:
    """Take a callback off the list again; unknown ones are ignored."""
    if callback in _callbacks:
        _callbacks.remove(callback)


def free_caches() -> list[str]:
    """Call what frees caches; returns how much came back, if known, and a line for each callback that failed."""
    failures, freed = free_and_count()
    return [*came_back(freed), *failures]


def came_back(freed: int | None) -> list[str]:
    """How much came back, in a line; no line where nobody knows."""
    if freed is None:
        return []
    return [f"{gib(freed)} GiB of card memory came back from caches." if freed else "No cached card memory was left."]


def free_and_count() -> tuple[list[str], int | None]:
    """Call what frees caches; a line for each that failed, and the bytes that came back, None if nobody knows.

    Known is what callbacks say that they have freed, and what PyTorch has given back to the driver. A callback may
    have let PyTorch do that, so the larger of both counts, not the sum.
    """
    failures = []
    said: list[int] = []
    held = _held_by_torch()
    for callback in list(_callbacks):
        try:
            freed = callback()
            if isinstance(freed, int) and not isinstance(freed, bool) and freed >= 0:
                said.append(freed)
        except Exception as error:
            name = getattr(callback, "__name__", repr(callback))
            failures.append(f"{name} could not free its cache: {type(error).__name__}: {error}")
    torch = _torch_in_use()
    if torch is not None:
        try:
            torch.cuda.empty_cache()
        except Exception as error:
            failures.append(f"torch could not free its cache: {type(error).__name__}: {error}")
    now = _held_by_torch()
    known = [max(0, held - now)] if held is not None and now is not None else []
    return failures, max([sum(said)] * bool(said) + known, default=None)


def _torch_in_use() -> Any:
    """PyTorch if it holds a card already: importing it takes seconds, and a context memory."""
    torch = sys.modules.get("torch")
    try:
        return torch if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized() else None
    except Exception:
        return None


def _held_by_torch() -> int | None:
    torch = _torch_in_use()
    try:
        return None if torch is None else sum(map(torch.cuda.memory_reserved, range(torch.cuda.device_count())))
    except Exception:
        return None
