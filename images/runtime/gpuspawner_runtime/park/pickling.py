"""Pickling a namespace: variable by variable with one memo, so that what two variables share they share again; tensors
and arrays beside the pickle, without a copy."""

from __future__ import annotations

import io
import pickle
import sys
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import cloudpickle

from gpuspawner_runtime.park import rebuild


@dataclass
class Pickled:
    """`frames`: for each variable its pickle, followed by one of an empty list, and the sizes of memo and buffers after
    both; `buffers`; `lost`: why, by name; `changed`: what comes back as something else, and as what."""

    frames: dict[str, tuple[bytes, int, int]] = field(default_factory=dict)
    buffers: list[memoryview] = field(default_factory=list)
    lost: dict[str, str] = field(default_factory=dict)
    changed: dict[str, str] = field(default_factory=dict)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    def __init__(self, out: io.BytesIO, namespace: Mapping[str, Any], buffers: list[Any]) -> None:
        super().__init__(out, protocol=5, buffer_callback=buffers.append)
        self._namespace = namespace
        self._storages: dict[int, rebuild.Storage] = {}
        self._kept: list[Any] = []
        self.notes: list[str] = []

    def reducer_override(self, obj: Any) -> Any:
        """Tensors, views of arrays and the session's functions in our way, all else in cloudpickle's."""
        kind = type(obj)
        if kind is types.FunctionType and obj.__globals__ is self._namespace:
            return self._function(obj)
        torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
        if torch is not None and kind in (torch.Tensor, torch.nn.Parameter):
            found = self._tensor(torch, obj)
            if found is not None:
                return found
        if numpy is not None and kind is numpy.memmap:
            self.notes.append("a memory-mapped array with its content, without its file")
        if numpy is not None and kind is numpy.ndarray and obj.base is not None:
            found = self._view(numpy, obj)
            if found is not None:
                return found
        return super().reducer_override(obj)

    def _function(self, function: types.FunctionType) -> Any:
        reduced = super().reducer_override(function)
        if not isinstance(reduced, tuple):
            return reduced
        _, (code, _, name, defaults, closure), (state, slots), items, pairs, setter = reduced
        return (
            rebuild.make_function,
            (code, name, defaults, closure),
            (state, {**slots, "__globals__": {}}),
            items,
            pairs,
            setter,
        )

    def _tensor(self, torch: Any, tensor: Any) -> Any:
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_conj() or tensor.is_neg():
            return None
        if tensor.device.type == "meta" or tensor._backward_hooks:
            return None
        if tensor.grad_fn is not None:
            self.notes.append("a tensor without the graph that made it")
        storage = tensor.untyped_storage()
        held = self._storages.get(storage._cdata)
        if held is None:
            host = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage).cpu()
            held = rebuild.Storage(pickle.PickleBuffer(host.numpy()), str(storage.device))
            self._storages[storage._cdata] = held
            self._kept.append((storage, host))
        place = (tensor.storage_offset(), tuple(tensor.size()), tensor.stride())
        needs = bool(tensor.requires_grad and tensor.grad_fn is None)
        args = (held, tensor.dtype, *place, needs, type(tensor) is torch.nn.Parameter)
        state = {key: value for key, value in vars(tensor).items() if not key.startswith("_")}
        if tensor.is_leaf and tensor.grad is not None:
            state["grad"] = tensor.grad
        if not state:
            return rebuild.make_tensor, args
        return rebuild.make_tensor, args, state, None, None, rebuild.set_attributes

    def _view(self, numpy: Any, array: Any) -> Any:
        base = array
        while type(base.base) is numpy.ndarray:
            base = base.base
        if base is array or array.dtype.hasobject or base.dtype.hasobject:
            return None
        if not (base.flags.c_contiguous or base.flags.f_contiguous):
            return None
        offset = array.__array_interface__["data"][0] - base.__array_interface__["data"][0]
        return rebuild.make_view, (base, array.dtype, offset, array.shape, array.strides)


def dump(variables: Mapping[str, Any], namespace: Mapping[str, Any]) -> Pickled:
    """Pickle `variables`, whose functions belong to `namespace`. What cannot be pickled is left out, and said."""
    wanted = dict(variables)
    lost: dict[str, str] = {}
    while True:
        found = _attempt(wanted, namespace)
        if isinstance(found, Pickled):
            found.lost.update(lost)
            return found
        # One that fails spoils the memo for those after it: all that would fail are found first, each by itself.
        for name in list(wanted):
            if name == found or not _alone(wanted[name], namespace):
                lost[name] = _why(wanted.pop(name), name, namespace)


def _attempt(variables: Mapping[str, Any], namespace: Mapping[str, Any]) -> Pickled | str:
    """All of them, or the name of the first that cannot be pickled."""
    out, buffers = io.BytesIO(), list[Any]()
    pickler = _Pickler(out, namespace, buffers)
    found = Pickled()
    for name, value in variables.items():
        start = out.tell()
        try:
            pickler.dump(value)
            size = _memo_size(pickler, out)
            found.frames[name] = out.getbuffer()[start:].tobytes(), size, len(buffers)
        except Exception:
            return name
        if pickler.notes:
            found.changed[name] = "; ".join(dict.fromkeys(pickler.notes))
            pickler.notes.clear()
    found.buffers = [buffer.raw() for buffer in buffers]
    return found


def _memo_size(pickler: _Pickler, out: io.BytesIO) -> int:
    """How many objects the memo has: a list pickled twice is a reference the second time, and that has its number."""
    probe: list[None] = []
    pickler._kept.append(probe)
    pickler.dump(probe)  # stays in the frame, so that the memo of who loads it has it too
    start = out.tell()
    pickler.dump(probe)
    code = bytes(out.getbuffer()[start:])
    out.seek(start)
    out.truncate()
    at = 11 if code[2:3] == pickle.FRAME else 2  # b"h" and one byte, or b"j" and four, then the end
    return int.from_bytes(code[at + 1 : -1], "little") + 1


def _alone(value: Any, namespace: Mapping[str, Any]) -> bool:
    try:
        _Pickler(io.BytesIO(), namespace, []).dump(value)
    except Exception:
        return False
    return True


def _why(value: Any, name: str, namespace: Mapping[str, Any], depth: int = 0) -> str:
    """The error, with the way to what caused it: `x.worker['lock']: cannot pickle '_thread.lock' object`."""
    if depth < 6:
        for step, part in _parts(value):
            if not _alone(part, namespace):
                return _why(part, name + step, namespace, depth + 1)
    try:
        _Pickler(io.BytesIO(), namespace, []).dump(value)
    except Exception as error:
        return f"{name}: {type(value).__qualname__}: {str(error) or type(error).__name__}"
    return f"{name}: it could not be pickled together with the other variables"


def _parts(value: Any) -> Iterable[tuple[str, Any]]:
    if type(value) is dict:
        return [(f"[{key!r}]"[:60], part) for key, part in list(value.items())[:1000]]
    if type(value) in (list, tuple):
        return [(f"[{i}]", part) for i, part in enumerate(value[:1000])]
    fields = getattr(value, "__dict__", None)
    if type(fields) is dict and not isinstance(value, type | types.ModuleType | types.FunctionType):
        return [(f".{key}", part) for key, part in fields.items()]
    return []


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: Any, buffers: Iterable[memoryview], missing: dict[str, str]) -> None:
        super().__init__(file, buffers=buffers)
        self._stream, self._missing = file, missing
        self._known: Sequence[Any] = ()

    def know(self, objects: Sequence[Any]) -> None:
        """Begin with a memo of these. (To assign `memo` does nothing in CPython's C unpickler.) They are loaded by a
        pickle that asks for each of them and notes it."""
        self._known = objects
        each = (
            pickle.BININT + i.to_bytes(4, "little") + pickle.BINPERSID + pickle.MEMOIZE + pickle.POP
            for i in range(len(objects))
        )
        self._stream.put(memoryview(b"".join((pickle.PROTO + b"\x05", *each, pickle.NONE, pickle.STOP))))
        self.load()

    def persistent_load(self, pid: Any) -> Any:
        """The object of a number; see `know`."""
        return self._known[pid]

    def find_class(self, module: str, name: str) -> Any:
        """What a pickle names; a stand-in where that is not here, so that the other variables still come."""
        try:
            return super().find_class(module, name)
        except Exception as error:
            self._missing[f"{module}.{name}"] = f"{type(error).__name__}: {error}"
            return type(name.rpartition(".")[2], (rebuild.Missing,), {"__module__": module})


def load(
    frames: Iterable[tuple[str, memoryview, int, int]],
    buffers: Sequence[memoryview],
    put: Callable[[str, Any], None],
) -> dict[str, str]:
    """Load variables one after the other and hand each to `put`; why, by name, of those that could not be loaded."""
    lost: dict[str, str] = {}
    stream = _Frames()
    missing: dict[str, str] = {}
    unpickler = _Unpickler(stream, buffers, missing)
    for name, frame, memo_size, buffer_count in frames:
        stream.put(frame)
        try:
            value = unpickler.load()
            unpickler.load()  # the list by which the memo was measured
        except Exception as error:
            lost[name] = f"{name}: {type(error).__name__}: {error}"
            # Later variables count on the numbers of what this one would have added, and on their own buffers.
            memo = unpickler.memo.copy()
            unpickler = _Unpickler(stream, buffers[buffer_count:], missing)
            unpickler.know([memo.get(i, rebuild.Missing()) for i in range(memo_size)])
            continue
        if (missing or lost) and _has_missing(value):
            reasons = "; ".join(f"{what} ({why})" for what, why in missing.items())
            lost[name] = f"{name}: {reasons or 'a part of it belongs to a variable that could not be loaded'}"
            continue
        put(name, value)
    return lost


class _Frames(io.RawIOBase):
    """One pickle after the other, for one unpickler."""

    def __init__(self) -> None:
        super().__init__()
        self._rest = memoryview(b"")

    def put(self, frame: memoryview) -> None:
        """What is read next."""
        self._rest = frame

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int:
        count = min(len(target), len(self._rest))
        target[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count

    def read(self, size: int = -1) -> bytes:
        count = len(self._rest) if size < 0 else size
        found, self._rest = self._rest[:count].tobytes(), self._rest[count:]
        return found

    def readline(self, size: int | None = -1) -> bytes:
        text = self._rest.tobytes()
        count = text.find(b"\n") + 1 or len(text)
        return self.read(count)


def _has_missing(value: Any, limit: int = 1_000_000) -> bool:
    """Whether a stand-in is in an object, looked for as far as `limit` objects."""
    import gc

    seen, waiting = set[int](), [value]
    while waiting and len(seen) < limit:
        one = waiting.pop()
        if isinstance(one, rebuild.Missing) or (isinstance(one, type) and issubclass(one, rebuild.Missing)):
            return True
        if id(one) in seen or isinstance(one, types.ModuleType | str | bytes | int | float):
            continue
        if isinstance(one, type) and one.__module__ != "__main__":  # a library's classes lead everywhere
            continue
        seen.add(id(one))
        if isinstance(one, types.FunctionType):  # not its globals, which are the whole session
            waiting += [one.__closure__, one.__defaults__, one.__dict__]
        else:
            waiting += gc.get_referents(one)
    return False
