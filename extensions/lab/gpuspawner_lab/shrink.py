"""What a session does of its own accord before its share becomes smaller."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TypeVar

_Callback = TypeVar("_Callback", bound=Callable[[], object])
_callbacks: list[Callable[[], object]] = []


def on_shrink(callback: _Callback) -> _Callback:
    """Register a function that frees cached GPU memory; called before a shrink is asked for.

    Usable as a decorator. A callback takes no arguments; registering it twice calls it once.
    An exception in it is reported and does not stop the shrink.
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
    """Call what frees caches; returns one line for each callback that failed."""
    failures = []
    for callback in list(_callbacks):
        try:
            callback()
        except Exception as error:
            name = getattr(callback, "__name__", repr(callback))
            failures.append(f"{name} could not free its cache: {type(error).__name__}: {error}")
    # Only if the notebook has torch already: importing it takes seconds and a context.
    torch = sys.modules.get("torch")
    if torch is not None:
        try:
            if torch.cuda.is_available() and torch.cuda.is_initialized():
                torch.cuda.empty_cache()
        except Exception as error:
            failures.append(f"torch could not free its cache: {type(error).__name__}: {error}")
    return failures
