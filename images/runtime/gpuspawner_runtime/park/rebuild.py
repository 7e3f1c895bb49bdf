"""What a parked file calls to make its objects again. It is a part of the format: nothing here may change its
meaning."""

from __future__ import annotations

import contextvars
from typing import Any

#: The namespace that functions of the session belong to, while one is loaded.
namespace: contextvars.ContextVar[dict[str, Any]] = contextvars.ContextVar("namespace")
#: Notes for the report, while one is loaded.
notes: contextvars.ContextVar[list[str]] = contextvars.ContextVar("notes")


class Missing:
    """Stands for what could not be made again. Takes any arguments, state and items that the pickle has for it."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Missing:
        return super().__new__(cls)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        pass

    def __setitem__(self, key: Any, value: Any) -> None:
        pass

    def append(self, value: Any) -> None:
        """An item of what this stands for."""

    def extend(self, values: Any) -> None:
        """Items of what this stands for."""

    def __call__(self, *args: Any, **kwargs: Any) -> Missing:
        return Missing()


def make_function(code: Any, name: str, defaults: Any, closure: Any) -> Any:
    """A function of the session, which sees the session's variables and not a copy of them."""
    import types

    return types.FunctionType(code, namespace.get(), name, defaults, closure)


class Storage:
    """The bytes behind tensors; tensors that shared them share them again."""

    __slots__ = ("bytes", "made", "where")

    def __init__(self, data: Any, where: str) -> None:
        self.bytes, self.where = data, where
        self.made: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Storage, (self.bytes, self.where)

    def torch(self) -> Any:
        """The storage, on the device where it was, or on the CPU with a note if that is not here."""
        if self.made is None:
            import torch

            view = memoryview(self.bytes)
            tensor = torch.frombuffer(view, dtype=torch.uint8) if view.nbytes else torch.empty(0, dtype=torch.uint8)
            if self.where != "cpu":
                try:
                    tensor = tensor.to(self.where)
                except (RuntimeError, AssertionError):
                    notes.get().append(f"tensors of {self.where} are on the CPU now: that device is not here")
            self.made = tensor.untyped_storage()
        return self.made


def make_tensor(
    storage: Storage, dtype: Any, offset: int, size: Any, stride: Any, needs_grad: bool, parameter: bool
) -> Any:
    """A tensor or parameter over its storage."""
    import torch

    held = storage.torch()
    tensor = torch.empty(0, dtype=dtype, device=held.device).set_(held, offset, size, stride)
    return torch.nn.Parameter(tensor, requires_grad=needs_grad) if parameter else tensor.requires_grad_(needs_grad)


def set_attributes(thing: Any, values: dict[str, Any]) -> None:
    """What was set on a tensor: its gradient, and what the program noted on it."""
    for name, value in values.items():
        setattr(thing, name, value)


def make_view(base: Any, dtype: Any, offset: int, shape: Any, strides: Any) -> Any:
    """An array that is a view of another one."""
    import numpy as np

    flat = base.reshape(-1, order="A").view(np.uint8)
    return np.ndarray(shape, dtype, buffer=flat, offset=offset, strides=strides)
