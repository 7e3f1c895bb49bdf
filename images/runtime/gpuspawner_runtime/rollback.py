"""What a training step can reach and change, copied beforehand and put back exactly.

A step is measured by running it on the real model. `Snapshot` makes that free of consequences: weights, gradients,
buffers, optimizer, scheduler and scaler states, random generators, the caller's lists and counters, and the
bindings of names are afterwards bit for bit what they were. What lies outside of the process (files, prints,
a tracker's server) or cannot be wound back (an iterator) is not covered; `Snapshot.unrepeatable` names the latter.
"""

from __future__ import annotations

import copy
import functools
import os
import random
import sys
import sysconfig
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

_DEEPEST = 6
_STDLIB = sysconfig.get_paths()["stdlib"] + os.sep
#: Packages whose objects are left alone, unless they are known kinds below.
_FOREIGN = ("torch", "numpy", "builtins", "collections", "logging", "threading", "IPython", "ipykernel", "tqdm")


def names_in(code: types.CodeType) -> set[str]:
    """Every global or attribute name that the code and the functions inside it mention."""
    found = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found |= names_in(constant)
    return found


class Reached:
    """Everything that a step reaches: by closure, by global name, by default, by `self`, by argument."""

    def __init__(self, step: Callable[..., Any], arguments: Iterable[Any] = ()) -> None:
        self.objects: list[Any] = []
        #: (namespace, name) and cells whose binding the step may change
        self.names: list[tuple[dict[str, Any], str]] = []
        self.cells: list[types.CellType] = []
        #: the functions that the step is made of, itself first; helpers of the same module after it
        self.functions: list[types.FunctionType] = []
        self._seen: set[int] = set()
        self._visit(step, 0)
        for argument in arguments:
            self._visit(argument, 0)

    @property
    def models(self) -> list[torch.nn.Module]:
        """The outermost modules."""
        found = [each for each in self.objects if isinstance(each, torch.nn.Module)]
        inner = {id(part) for model in found for part in model.modules() if part is not model}
        return [model for model in found if id(model) not in inner]

    @property
    def parameters(self) -> list[torch.nn.Parameter]:
        """The parameters of all models, each once."""
        return list({id(p): p for model in self.models for p in model.parameters()}.values())

    def _visit(self, value: Any, depth: int) -> None:
        if depth > _DEEPEST or id(value) in self._seen or _plain(value):
            return
        self._seen.add(id(value))
        if isinstance(value, functools.partial):
            for part in (value.func, *value.args, *value.keywords.values()):
                self._visit(part, depth)
        elif isinstance(value, types.MethodType):
            self._visit(value.__self__, depth)
            self._visit(value.__func__, depth)
        elif isinstance(value, types.FunctionType):
            self._visit_function(value, depth)
        elif isinstance(value, (type, types.ModuleType, types.BuiltinFunctionType)):
            return
        else:
            self.objects.append(value)
            for part in _parts(value):
                self._visit(part, depth + 1)
            # an object that is called as a step, or calls its own methods: their globals count too
            for method in _own_methods(value):
                self._visit_function(method, depth + 1)

    def _visit_function(self, function: types.FunctionType, depth: int) -> None:
        if _installed(function.__code__.co_filename):
            return
        self.functions.append(function)
        for name in sorted(names_in(function.__code__)):
            if name in function.__globals__:
                value = function.__globals__[name]
                if not isinstance(value, (types.ModuleType, type)):
                    self.names.append((function.__globals__, name))
                self._visit(value, depth + 1)
        for cell in function.__closure__ or ():
            self.cells.append(cell)
            try:
                self._visit(cell.cell_contents, depth + 1)
            except ValueError:  # an empty cell: nothing to reach
                continue
        for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            self._visit(value, depth + 1)


@functools.cache
def _installed(file: str) -> bool:
    """Whether code is of the standard library or of a package, and not the caller's own."""
    return f"{os.sep}site-packages{os.sep}" in file or file.startswith((_STDLIB, "<frozen"))


def _plain(value: Any) -> bool:
    return value is None or isinstance(value, (bool, int, float, complex, str, bytes, torch.dtype, torch.device))


def _foreign(value: Any) -> bool:
    return (type(value).__module__ or "").partition(".")[0] in _FOREIGN


def _parts(value: Any) -> list[Any]:
    if isinstance(value, torch.nn.Module):
        # submodules that are Python objects of their own count with their plain attributes
        return [part for module in value.modules() for part in vars(module).values() if not _plain(part)]
    if isinstance(value, dict):
        return list(value.values())
    if isinstance(value, (list, tuple, set, frozenset, deque)):
        return list(value)
    if isinstance(value, torch.Tensor) or _known(value) or _foreign(value):
        return []
    return list(getattr(value, "__dict__", {}).values())


def _own_methods(value: Any) -> list[types.FunctionType]:
    if _foreign(value) or _known(value) or isinstance(value, (dict, list, tuple, set, frozenset, deque)):
        return []
    return [each for each in vars(type(value)).values() if isinstance(each, types.FunctionType)]


def _known(value: Any) -> bool:
    return isinstance(value, (torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler, torch.amp.GradScaler))


class Snapshot:
    """Copies on construction; `restore` puts everything back. Copies go to host memory if the card is short of it."""

    def __init__(self, reached: Reached) -> None:
        self._undo: list[Callable[[], None]] = []
        self._done: set[int] = set()
        self.unrepeatable: str | None = None
        self._aside = _card_is_short(reached)
        self._save_random()
        for namespace, name in reached.names:
            self._undo.append(functools.partial(namespace.__setitem__, name, namespace[name]))
        for cell in reached.cells:
            self._save_cell(cell)
        for value in reached.objects:
            self._save(value)

    def restore(self) -> None:
        """Put everything back; can be called again after further runs."""
        with torch.no_grad():
            for undo in self._undo:
                undo()

    def _save_cell(self, cell: types.CellType) -> None:
        try:
            value = cell.cell_contents
        except ValueError:
            return
        self._undo.append(lambda: setattr(cell, "cell_contents", value))

    def _save_random(self) -> None:
        self._undo.append(functools.partial(random.setstate, random.getstate()))
        self._undo.append(functools.partial(torch.set_rng_state, torch.get_rng_state()))
        numpy = sys.modules.get("numpy")
        if numpy is not None:
            self._undo.append(functools.partial(numpy.random.set_state, numpy.random.get_state()))
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            self._undo.append(functools.partial(torch.cuda.set_rng_state_all, torch.cuda.get_rng_state_all()))

    def _save(self, value: Any) -> None:
        if id(value) in self._done:
            return
        self._done.add(id(value))
        if isinstance(value, torch.Tensor):
            self._save_tensor(value)
        elif isinstance(value, torch.nn.Module):
            self._save_module(value)
        elif isinstance(value, torch.optim.Optimizer):
            self._save_optimizer(value)
        elif isinstance(value, (list, dict, set, deque, bytearray)):
            self._save_container(value)
        elif isinstance(value, torch.Generator):
            state = value.get_state()
            self._undo.append(functools.partial(value.set_state, state))
        elif isinstance(value, random.Random):
            self._undo.append(functools.partial(value.setstate, value.getstate()))
        elif type(value).__module__.startswith("numpy"):
            self._save_numpy(value)
        elif isinstance(value, Iterator):
            self.unrepeatable = f"the step draws from an iterator ({type(value).__name__}), which cannot be wound back"
        elif _known(value) or (not _foreign(value) and hasattr(value, "__dict__")):
            self._save_attributes(value)

    def _save_tensor(self, tensor: torch.Tensor) -> None:
        # A step is entitled to leave gradients behind; while it is measured there are none.
        if tensor.is_leaf and tensor.requires_grad:
            grad = tensor.grad
            kept = None if grad is None else self._copy(grad)

            def give_back() -> None:
                if grad is not None and kept is not None:
                    _put(grad, kept)
                tensor.grad = grad

            self._undo.append(give_back)
        if torch.nn.parameter.is_lazy(tensor):
            self.unrepeatable = "the model has parameters whose shape the first step decides"
            return
        before = self._copy(tensor)
        self._undo.append(lambda: _put(tensor, before))

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        copied = tensor.detach()
        return copied.to("cpu", copy=True) if self._aside and tensor.device.type != "cpu" else copied.clone()

    def _save_module(self, model: torch.nn.Module) -> None:
        for module in model.modules():
            if id(module) in self._done and module is not model:
                continue
            self._done.add(id(module))
            for part in (*module._parameters.values(), *module._buffers.values()):
                if part is not None and id(part) not in self._done:
                    self._done.add(id(part))
                    self._save_tensor(part)
            for registry in (module._parameters, module._buffers):
                self._save_container(registry)
            self._save_attributes(module)

    def _save_attributes(self, value: Any) -> None:
        attributes = vars(value)
        before = dict(attributes)
        for each in before.values():
            if isinstance(each, (torch.Tensor, list, set, deque)) or type(each) is dict:
                self._save(each)

        def put_back() -> None:
            for name in [name for name in attributes if name not in before]:
                del attributes[name]
            attributes.update(before)

        self._undo.append(put_back)

    def _save_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        # Not by load_state_dict, which casts the state to the parameters' type and makes new tensors.
        groups = [(group, dict(group)) for group in optimizer.param_groups]
        states = {parameter: dict(state) for parameter, state in optimizer.state.items()}
        for state in (*states.values(), *(before for _, before in groups)):
            for each in state.values():
                if isinstance(each, torch.Tensor):
                    self._save(each)

        def put_back() -> None:
            for group, before in groups:
                group.clear()
                group.update(before)
            for parameter in [parameter for parameter in optimizer.state if parameter not in states]:
                del optimizer.state[parameter]
            for parameter, before in states.items():
                optimizer.state[parameter].clear()
                optimizer.state[parameter].update(before)

        self._undo.append(put_back)

    def _save_container(self, value: Any) -> None:
        before = copy.copy(value)

        def put_back() -> None:
            value.clear()
            if isinstance(value, (dict, set)):
                value.update(before)
            else:
                value.extend(before)

        self._undo.append(put_back)
        if not isinstance(value, (set, bytearray)):
            for each in list(value.values()) if isinstance(value, dict) else list(value):
                if isinstance(each, (torch.Tensor, list, set, deque)) or type(each) is dict:
                    self._save(each)

    def _save_numpy(self, value: Any) -> None:
        numpy = sys.modules["numpy"]
        if isinstance(value, numpy.ndarray):
            before = value.copy()
            if value.flags.writeable:
                self._undo.append(lambda: numpy.copyto(value, before))
        elif hasattr(value, "bit_generator"):
            state = copy.deepcopy(value.bit_generator.state)
            self._undo.append(lambda: setattr(value.bit_generator, "state", copy.deepcopy(state)))


def _put(tensor: torch.Tensor, before: torch.Tensor) -> None:
    """Write `before` into `tensor`, only where they differ: a write would spoil graphs that still need the tensor."""
    if tensor.shape != before.shape:
        tensor.data = before.to(tensor.device, copy=True)
    elif not _same(tensor, before):
        tensor.detach().copy_(before)


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.device != other.device:
        return False
    try:  # torch.equal compares values: -0.0 and 0.0 are equal to it, so bits are compared
        return bool(torch.equal(_bytes(one), _bytes(other)))
    except RuntimeError:
        return False


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def _card_is_short(reached: Reached) -> bool:
    """Whether a second copy of the models on their card would take more than a quarter of what is free there."""
    devices: dict[torch.device, int] = {}
    for parameter in reached.parameters:
        devices[parameter.device] = devices.get(parameter.device, 0) + parameter.nbytes
    for device, size in devices.items():
        # twice: the gradients of two runs are compared
        if device.type == "cuda" and 3 * size > torch.cuda.mem_get_info(device)[0] // 4:
            return True
    return False
