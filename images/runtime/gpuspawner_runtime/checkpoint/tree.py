"""State as a tree of containers, primitives and tensors, taken apart into tensors and a skeleton, and put together."""

from __future__ import annotations

import collections
from collections.abc import Iterator
from typing import Any

import torch

from gpuspawner_runtime.errors import RuntimeFault

#: Names of types in a safetensors header (https://github.com/huggingface/safetensors, "Format").
DTYPES: dict[Any, str] = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
    torch.float8_e5m2: "F8_E5M2",
    torch.float8_e4m3fn: "F8_E4M3",
}
_COMPLEX = (torch.complex64, torch.complex128)
_PRIMITIVES = (bool, int, float, str, bytes, complex, type(None))
_ALLOWED = "tensors, numbers, text, bytes, None, and lists, tuples, sets and dicts of them"


class Split:
    """A tree taken apart. `tensors[i]` is what the skeleton calls `torch.Size((i,))` (a type that `weights_only`
    loading knows, and that no state holds otherwise: sizes in it become tuples); `names[i]` is its path."""

    def __init__(self, tree: Any) -> None:
        self.tensors: list[Any] = []
        self.names: list[str] = []
        self._known: dict[Any, int] = {}
        self._taken: set[str] = set()
        self.skeleton = self._walk(tree, "")

    def _walk(self, node: Any, path: str) -> Any:
        if isinstance(node, torch.Tensor):
            return self._tensor(node, path)
        if type(node) in _PRIMITIVES:
            return node
        if isinstance(node, dict):
            made = {self._key(key, path): self._walk(value, f"{path}/{key}") for key, value in node.items()}
            if isinstance(node, collections.Counter):
                return collections.Counter(made)
            return collections.OrderedDict(made) if isinstance(node, collections.OrderedDict) else made
        if isinstance(node, list):
            return [self._walk(value, f"{path}/{place}") for place, value in enumerate(node)]
        if isinstance(node, tuple):
            return tuple(self._walk(value, f"{path}/{place}") for place, value in enumerate(node))
        if isinstance(node, set | frozenset):
            return {self._key(value, path) for value in node}
        for kind in (int, float, str):  # e.g. numpy.float64, an enum of numbers
            if isinstance(node, kind):
                return kind(node)
        raise _cannot(path, f"a {type(node).__module__}.{type(node).__qualname__}")

    def _key(self, key: Any, path: str) -> Any:
        if type(key) in _PRIMITIVES or (isinstance(key, tuple) and all(type(part) in _PRIMITIVES for part in key)):
            return key
        raise _cannot(f"{path}/{key!r:.40}", f"under a key of the kind {type(key).__qualname__}")

    def _tensor(self, tensor: Any, path: str) -> Any:
        kind = type(tensor).__name__
        if kind == "DTensor" or hasattr(tensor, "to_local"):
            raise RuntimeFault(
                f"{path[1:]} is sharded over processes ({kind}), which is not supported yet. Give whole tensors "
                "(torch.distributed.checkpoint.state_dict with full_state_dict=True) or save with "
                "torch.distributed.checkpoint.",
                code="sharded",
                field=path[1:],
            )
        tensor = tensor.detach()
        imaginary = tensor.dtype in _COMPLEX
        if tensor.layout != torch.strided or not (imaginary or tensor.dtype in DTYPES):
            raise _cannot(path, f"a tensor of {tensor.dtype}, {tensor.layout}")
        if tensor.device.type == "meta":
            raise _cannot(path, "a tensor without values (meta)")
        key = (tensor.device, tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())
        index = self._known.get(key) if tensor.numel() else None
        if index is None:
            index = self._known[key] = len(self.tensors)
            name = path[1:] or "tensor"
            while name in self._taken:
                name += "'"
            self._taken.add(name)
            self.names.append(name)
            self.tensors.append(torch.view_as_real(tensor.resolve_conj()) if imaginary else tensor)
        return torch.Size((index, 1)) if imaginary else torch.Size((index,))


def join(skeleton: Any, tensors: list[Any]) -> Any:
    """The tree of a skeleton and its tensors."""
    if isinstance(skeleton, torch.Size):
        tensor = tensors[skeleton[0]]
        return torch.view_as_complex(tensor) if len(skeleton) == 2 else tensor
    if isinstance(skeleton, dict):
        made = {key: join(value, tensors) for key, value in skeleton.items()}
        return type(skeleton)(made)
    if isinstance(skeleton, list):
        return [join(value, tensors) for value in skeleton]
    if isinstance(skeleton, tuple):
        return tuple(join(value, tensors) for value in skeleton)
    return skeleton


def tensors_of(tree: Any) -> Iterator[Any]:
    """All tensors of a tree."""
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, dict):
        for value in tree.values():
            yield from tensors_of(value)
    elif isinstance(tree, list | tuple):
        for value in tree:
            yield from tensors_of(value)


def _cannot(path: str, what: str) -> RuntimeFault:
    return RuntimeFault(
        f"{path[1:] or 'The state'} cannot be saved: it is {what}. What can be saved: {_ALLOWED}.",
        code="not_savable",
        field=path[1:],
        allowed=_ALLOWED,
    )
