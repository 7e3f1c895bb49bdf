"""After a cell has failed: its traceback keeps no large tensors alive.

A traceback holds every frame, a frame holds its local variables, and a notebook keeps the last traceback: so a cell
that ran out of memory leaves the card full, and so does the next try. Here the frames are emptied after the
traceback has been shown. Variables of the notebook itself are not in these frames and stay.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import traceback
from collections.abc import Iterator
from types import TracebackType
from typing import Any

VARIABLE = "GPUSPAWNER_KEEP_TRACEBACKS"
#: Bytes of tensors in a traceback below which it is left alone, for `%debug`.
SMALLEST = 1 << 20
_DEEPEST = 4


def free_after(error: BaseException | None, notebook: dict[str, Any]) -> int:
    """Empty the frames of an error's tracebacks if they hold large tensors; returns how many bytes they held.

    `notebook`: the notebook's variables; what is held by them too is not counted, since it stays.
    """
    torch = sys.modules.get("torch")
    if error is None or torch is None or os.environ.get(VARIABLE):
        return 0
    frames = [
        frame
        for each in _chain(error)
        for frame, _ in traceback.walk_tb(each.__traceback__)
        # A frame of the notebook itself has the notebook's variables for locals, and they are no one else's to free.
        if frame.f_locals is not notebook and f"{os.sep}IPython{os.sep}" not in frame.f_code.co_filename
    ]
    kept = {id(tensor) for value in list(notebook.values()) for tensor in _tensors(value, torch)}
    held = {
        id(tensor): tensor.nbytes
        for frame in frames
        for tensor in _tensors(frame.f_locals, torch)
        if id(tensor) not in kept
    }
    size = sum(held.values())
    if size < SMALLEST and not isinstance(error, torch.OutOfMemoryError):
        return 0
    held.clear()
    for frame in frames:
        with contextlib.suppress(RuntimeError):  # one that still runs, such as a generator's owner
            frame.clear()
            # Before Python 3.13 a frame keeps the dict that was once shown of it; asked again, it is made anew, empty.
            _ = frame.f_locals
    gc.collect()
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    return int(size)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    waiting = [error]
    while waiting:
        each = waiting.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        waiting += [each.__cause__, each.__context__, *getattr(each, "exceptions", ())]


def _tensors(value: Any, torch: Any, depth: int = 0) -> Iterator[Any]:
    """Tensors in a value, its containers and attributes, some levels deep."""
    if isinstance(value, torch.Tensor):
        yield value
        if value.grad_fn is None and value.grad is not None:
            yield value.grad
    elif depth >= _DEEPEST or isinstance(value, (str, bytes, int, float, type, TracebackType)):
        return
    elif isinstance(value, torch.nn.Module):
        yield from (*value.parameters(), *value.buffers())
    elif isinstance(value, dict):
        for each in list(value.values()):
            yield from _tensors(each, torch, depth + 1)
    elif isinstance(value, (list, tuple, set)):
        for each in list(value)[:10_000]:
            yield from _tensors(each, torch, depth + 1)
    elif depth < 2 and isinstance(getattr(value, "__dict__", None), dict) and not callable(value):
        yield from _tensors(vars(value), torch, depth + 1)
