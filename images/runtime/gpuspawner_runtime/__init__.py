"""Training in a notebook that survives, runs fast and says what it costs.

    with run("bert", model=model, optimizer=optimizer, scheduler=scheduler, loader=loader) as r:
        step = fast(train_step)
        for batch in r:
            r.step(step(batch))
    print(r.report())

Names are looked up when they are first used, so that importing this package costs nothing and needs no PyTorch.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpuspawner_runtime.autocheckpoint import Checkpointer as Checkpointer
    from gpuspawner_runtime.autocheckpoint import autocheckpoint as autocheckpoint
    from gpuspawner_runtime.cache import cached as cached
    from gpuspawner_runtime.distributed import distributed as distributed
    from gpuspawner_runtime.elastic import CacheBudget as CacheBudget
    from gpuspawner_runtime.elastic import MicroBatches as MicroBatches
    from gpuspawner_runtime.elastic import free_caches as free_caches
    from gpuspawner_runtime.elastic import on_resize as on_resize
    from gpuspawner_runtime.elastic import on_shrink as on_shrink
    from gpuspawner_runtime.errors import RuntimeFault as RuntimeFault
    from gpuspawner_runtime.fast import fast as fast
    from gpuspawner_runtime.park import park as park
    from gpuspawner_runtime.park import unpark as unpark
    from gpuspawner_runtime.priority import priority as priority
    from gpuspawner_runtime.run import Run as Run
    from gpuspawner_runtime.run import run as run
    from gpuspawner_runtime.steps import Stepper as Stepper

__version__ = "0.1.0"

#: Each public name and the module that has it.
_EXPORTS = {
    "CacheBudget": "elastic",
    "Checkpointer": "autocheckpoint",
    "MicroBatches": "elastic",
    "Run": "run",
    "RuntimeFault": "errors",
    "Stepper": "steps",
    "autocheckpoint": "autocheckpoint",
    "cached": "cache",
    "distributed": "distributed",
    "fast": "fast",
    "free_caches": "elastic",
    "on_resize": "elastic",
    "on_shrink": "elastic",
    "park": "park",
    "priority": "priority",
    "run": "run",
    "unpark": "park",
}
__all__ = sorted(_EXPORTS)


class _Package(ModuleType):
    """Importing the module `run` binds it to the package's name `run`; here the function of that name stays."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _EXPORTS and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_EXPORTS[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_EXPORTS})


def load_ipython_extension(shell: Any) -> None:
    """`%load_ext gpuspawner_runtime`: the magics `%ckpt`, `%cost` and `%%gpu`."""
    importlib.import_module(f"{__name__}.magics").register(shell)
