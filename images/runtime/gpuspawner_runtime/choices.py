"""Which way was chosen for which step: by code, shapes and device; in this process and, if wanted, on disk."""

from __future__ import annotations

import hashlib
import inspect
import json
import tempfile
import types
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from gpuspawner_runtime.precision import EAGER, WAYS, Way
from gpuspawner_runtime.rollback import Reached

_FORMAT = 1
_LARGEST = 64 * 1024


@dataclass(frozen=True)
class Choice:
    """The way that was kept for a step, and why. `eager_ms` and `ms` are medians; None where nothing was measured."""

    way: str
    why: str
    speedup: float | None = None
    eager_ms: float | None = None
    ms: float | None = None
    scale: float | None = None

    def __post_init__(self) -> None:
        if self.way not in WAYS:
            raise ValueError(f"way is {self.way!r}: it must be one of {', '.join(WAYS)}")

    @property
    def chosen(self) -> Way:
        """The way itself."""
        return WAYS[self.way]


_known: dict[str, Choice] = {}
#: The choice that was made or found last, for reports.
latest: Choice | None = None
#: The code that was compiled under a key: the step's own, and that of the functions that it calls.
compiled_code: dict[str, list[types.CodeType]] = {}


def known(key: str, folder: Path | None = None) -> Choice | None:
    """The choice that was made under this key, in this process or in the folder."""
    found = _known.get(key)
    if found is None and folder is not None:
        found = _read(folder / f"{key}.json")
        if found is not None:
            _known[key] = found
    return found


def remember(key: str, choice: Choice, folder: Path | None = None) -> None:
    """Keep a choice. A folder that cannot be written is no error: it is measured again next time."""
    global latest
    _known[key] = latest = choice
    if folder is None:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=folder, prefix=".", delete=False) as file:
            json.dump({"format": _FORMAT, **asdict(choice)}, file)
        Path(file.name).replace(folder / f"{key}.json")
    except OSError:
        return


def forget() -> None:
    """Forget what this process has measured; the disk is left alone."""
    _known.clear()
    compiled_code.clear()


def export() -> dict[str, dict[str, Any]]:
    """All choices of this process as primitives, for a checkpoint: a resumed run must compute as it did before."""
    return {key: asdict(choice) for key, choice in _known.items()}


def adopt(saved: dict[str, dict[str, Any]]) -> None:
    """Take over what `export` gave. Entries that cannot be understood are left out, so those steps are measured."""
    for key, fields in saved.items():
        try:
            _known.setdefault(str(key), Choice(**fields))
        except (TypeError, ValueError):
            continue


def _read(path: Path) -> Choice | None:
    try:
        with path.open("rb") as file:
            fields = json.loads(file.read(_LARGEST))
        return Choice(**fields) if fields.pop("format") == _FORMAT else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def shapes(value: Any) -> Any:
    """Shapes and types of the tensors in an argument, as nested tuples; other values by their type."""
    if isinstance(value, torch.Tensor):
        return (tuple(value.shape), value.dtype, value.device, value.requires_grad)
    if isinstance(value, dict):
        return tuple((key, shapes(each)) for key, each in value.items())
    if isinstance(value, (tuple, list)):
        return tuple(map(shapes, value))
    return type(value).__qualname__


def key_of(
    step: Callable[..., Any], args: Iterable[Any], kwargs: dict[str, Any], reached: Reached, settings: Iterable[Any]
) -> str:
    """A name for (code, model, shapes, device, versions): equal when a step is defined again with the same text."""
    parts: list[Any] = [torch.__version__, torch.get_num_threads(), torch.is_grad_enabled(), *settings]
    parts += [_code_text(function.__code__) for function in reached.functions]
    parts += [getattr(step, "__qualname__", type(step).__qualname__)]
    for model in reached.models:
        parts.append([_module_text(name, module) for name, module in model.named_modules()])
        parts.append([(name, shapes(p)) for name, p in model.named_parameters()])
    parts += [shapes(tuple(args)), shapes(kwargs), _devices(reached)]
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def _devices(reached: Reached) -> list[str]:
    used = {p.device for p in reached.parameters}
    return sorted(torch.cuda.get_device_name(d) if d.type == "cuda" else d.type for d in used)


def _code_text(code: types.CodeType) -> list[Any]:
    """A function's code without file and line, which change when a cell is run again."""
    constants = [_code_text(c) if isinstance(c, types.CodeType) else repr(c) for c in code.co_consts]
    return [code.co_code, code.co_names, code.co_varnames, code.co_freevars, constants]


def _module_text(name: str, module: torch.nn.Module) -> list[Any]:
    kind = type(module)
    text: list[Any] = [name, kind.__module__, kind.__qualname__, module.extra_repr(), module.training]
    if not kind.__module__.startswith("torch."):
        text += [
            _code_text(f.__code__)
            for _, f in inspect.getmembers(kind, inspect.isfunction)
            if f.__module__ == kind.__module__
        ]
    return text


__all__ = ["EAGER", "Choice", "adopt", "compiled_code", "export", "forget", "key_of", "known", "remember", "shapes"]
