"""`park()` and `unpark()`: the session around the pickled variables."""

from __future__ import annotations

import os
import random
import re
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuspawner_runtime.park import container, pickling, rebuild
from gpuspawner_runtime.park.container import ParkError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
#: What IPython and Python put into a namespace themselves.
_THEIRS = {"In", "Out", "exit", "quit", "get_ipython", "open"}
#: In a file, before what is no variable.
_OUT, _RANDOM = "Out ", "random numbers of "


@dataclass(frozen=True)
class Parked:
    """What became of a session. `saved`: names of variables; `lost`: why, by name; `changed`: what came back
    differently, by name or in general under "". Sizes in bytes."""

    path: Path
    bytes: int
    seconds: float
    saved: tuple[str, ...]
    lost: dict[str, str]
    changed: dict[str, str]
    verb: str = "Parked"
    #: the cell that has printed this already: there it is not shown again as the cell's value
    printed_in: int | None = None

    def __str__(self) -> str:
        lines = [
            f"{self.verb} {len(self.saved)} variables, {self.bytes / 1e6:.1f} MB in {self.seconds:.1f} s: {self.path}"
        ]
        lines += [f"  not here: {reason}" for reason in self.lost.values()]
        lines += [f"  different: {f'{name}: ' if name else ''}{what}" for name, what in self.changed.items()]
        return "\n".join(lines)

    __repr__ = __str__

    def _ipython_display_(self) -> None:
        if self.printed_in is None or self.printed_in != _cell():
            print(self)


def park(to: str | os.PathLike[str] = "session", *, namespace: dict[str, Any] | None = None) -> Parked:
    """Save this session into one file: variables, functions and classes, imports, outputs, the cells' text and count,
    the working directory, sys.path, and the states of random numbers.

    `to`: a name, or a path; `namespace`: other variables than the notebook's. What cannot be saved is named in `lost`,
    one by one; the rest is saved. Environment variables, open files, threads and child processes are no part of it. The
    old file of that name stays until the new one is complete. Raises ParkError, OSError.
    """
    began = time.monotonic()
    path = _path(to)
    shell = _shell() if namespace is None else None
    variables = _namespace(shell) if namespace is None else namespace
    wanted = {name: value for name, value in variables.items() if _is_users(name, value, shell)}
    wanted |= {f"{_OUT}{number}": value for number, value in (shell.user_ns["_oh"] if shell else {}).items()}
    wanted |= _random_states()
    found = pickling.dump(wanted, variables)
    frames = [[name, len(frame), memo, count] for name, (frame, memo, count) in found.frames.items()]
    manifest = {
        "frames": frames,
        "lost": found.lost,
        "changed": found.changed,
        "count": shell.execution_count if shell else None,
        "cells": list(shell.user_ns["_ih"]) if shell else [],
        "folder": str(Path.cwd()),
        "path": [place for place in sys.path if place],
        "python": list(sys.version_info[:2]),
    }
    head = b"".join(frame for frame, _, _ in found.frames.values())
    size = container.write(path, head, found.buffers, manifest)
    took = time.monotonic() - began
    parked = Parked(path, size, took, _names(found.frames), found.lost, found.changed, printed_in=_cell())
    return _said(parked) if namespace is None else parked


def unpark(
    source: str | os.PathLike[str] = "session", *, namespace: dict[str, Any] | None = None, foreign: bool = False
) -> Parked:
    """Bring a parked session back into this kernel. Variables of the same names are replaced, others stay.

    Loading runs code that is in the file. So only a file is taken that belongs to you, that nobody else may write, and
    that you parked yourself (it is sealed with a key in your home); all hashes are compared before anything is loaded.
    `foreign=True` takes a file of yours that was parked elsewhere. What could not be brought back is named in `lost`.
    Raises ParkError, OSError.
    """
    began = time.monotonic()
    path = _path(source)
    shell = _shell() if namespace is None else None
    variables = _namespace(shell) if namespace is None else namespace
    manifest, head, buffers = container.read(path, foreign=foreign)
    lost, changed = dict(manifest["lost"]), dict(manifest["changed"])
    if manifest["python"] != list(sys.version_info[:2]):
        text = f"parked by Python {'.'.join(map(str, manifest['python']))}; functions may not run"
        changed[""] = text
    sys.path += [place for place in manifest["path"] if place not in sys.path and Path(place).exists()]
    try:
        os.chdir(manifest["folder"])
    except OSError as error:
        lost["working directory"] = f"working directory: {error}"
    saved: list[str] = []

    def put(name: str, value: Any) -> None:
        saved.append(name)
        if name.startswith(_OUT):
            if shell:
                shell.user_ns["_oh"][int(name.removeprefix(_OUT))] = value
        elif name.startswith(_RANDOM):
            _set_random_state(name.removeprefix(_RANDOM), value)
        else:
            variables[name] = value

    notes: list[str] = []
    tokens = rebuild.namespace.set(variables), rebuild.notes.set(notes)
    try:
        lost |= pickling.load(_frames(manifest["frames"], head), buffers, put)
    finally:
        rebuild.namespace.reset(tokens[0])
        rebuild.notes.reset(tokens[1])
    if notes:
        changed[""] = "; ".join(filter(None, [changed.get("", ""), *dict.fromkeys(notes)]))
    if shell:
        shell.user_ns["_ih"][:] = manifest["cells"]
        shell.execution_count = manifest["count"]
    size = path.stat().st_size
    took = time.monotonic() - began
    back = Parked(path, size, took, _names(saved), lost, changed, "Brought back", printed_in=_cell())
    return _said(back) if namespace is None else back


def _said(report: Parked) -> Parked:
    """Printed in any case: a cell that ends with something else would not show what was left behind."""
    print(report)
    return report


def _cell() -> int | None:
    shell = _shell()
    return None if shell is None else int(shell.execution_count)


def _frames(
    listed: Iterable[tuple[str, int, int, int]], head: memoryview
) -> Iterable[tuple[str, memoryview, int, int]]:
    at = 0
    for name, length, memo, count in listed:
        yield name, head[at : at + length], memo, count
        at += length


def _names(found: Iterable[str]) -> tuple[str, ...]:
    return tuple(name for name in found if not name.startswith((_OUT, _RANDOM)))


def _path(given: str | os.PathLike[str]) -> Path:
    text = os.fspath(given)
    if "/" in text or text.endswith(".parked"):
        return Path(text).expanduser().absolute()
    if not _NAME.fullmatch(text):
        raise ParkError(f"{text!r} is no name: write 1 to 100 of A-Z a-z 0-9 . _ - or a path with a slash.")
    return container.state_folder() / f"{text}.parked"


def _shell() -> Any:
    ipython = sys.modules.get("IPython")
    return ipython.get_ipython() if ipython is not None else None


def _namespace(shell: Any) -> dict[str, Any]:
    found: dict[str, Any] = shell.user_ns if shell else vars(sys.modules["__main__"])
    return found


def _is_users(name: str, value: Any, shell: Any) -> bool:
    if shell is None:
        return not (name.startswith("__") and name.endswith("__"))
    if name in _THEIRS or re.fullmatch(r"_|__|___|_i+|_i?\d+|_[dio]h|__\w+__", name):
        return False
    hidden = shell.user_ns_hidden
    return not (name in hidden and hidden[name] is value)


def _random_states() -> dict[str, Any]:
    found: dict[str, Any] = {f"{_RANDOM}Python": random.getstate()}
    if "numpy" in sys.modules:
        found[f"{_RANDOM}NumPy"] = sys.modules["numpy"].random.get_state()
    if "torch" in sys.modules:
        found[f"{_RANDOM}PyTorch"] = sys.modules["torch"].get_rng_state()
    return found


def _set_random_state(whose: str, state: Any) -> None:
    if whose == "Python":
        random.setstate(state)
    elif whose == "NumPy":
        import numpy

        numpy.random.set_state(state)
    elif whose == "PyTorch":
        import torch

        torch.set_rng_state(state)
