"""What a run consists of: model, optimizer, further parts, user state. To a tree and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from gpuspawner_runtime.checkpoint import rng
from gpuspawner_runtime.checkpoint.tree import tensors_of
from gpuspawner_runtime.errors import RuntimeFault

_COMPILED = "_orig_mod."
#: Parts that each rank has for itself.
_OWN = ("loader",)


def bare(model: Any) -> Any:
    """The model inside what torch.compile and DistributedDataParallel wrap around it."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel):
            inner = model.module
        if inner is None:
            return model
        model = inner


class Parts:
    """`others`: objects with `state_dict` and `load_state_dict`, or None; `state`: a dict of the user, or None."""

    def __init__(self, model: Any, optimizer: Any, others: dict[str, Any], state: Any = None) -> None:
        self.model, self.optimizer, self.state = model, optimizer, state
        self.others = {name: part for name, part in others.items() if part is not None}
        if state is not None and not isinstance(state, dict):
            raise RuntimeFault(
                "state: give a dict of tensors and primitives.", field="state", given=type(state).__name__
            )
        for name, part in {"model": model, "optimizer": optimizer, **self.others}.items():
            for each in part if isinstance(part, list | tuple) else [part]:
                if each is not None and not (hasattr(each, "state_dict") and hasattr(each, "load_state_dict")):
                    raise RuntimeFault(
                        f"{name}: a {type(each).__name__} has no state_dict and load_state_dict.",
                        field=name,
                        given=type(each).__name__,
                    )
        self._hooks: list[Any] = []
        self._random: dict[str, Any] | None = None
        self._versions = -1

    # -- what may be copied beside the training

    def _optimizers(self) -> list[Any]:
        if self.optimizer is None:
            return []
        return list(self.optimizer) if isinstance(self.optimizer, list | tuple) else [self.optimizer]

    def before_update(self, wait: Callable[[], None] | None) -> None:
        """Let `wait` be called before each step of the optimizer; None: no longer."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        if wait is not None:
            for optimizer in self._optimizers():
                if hasattr(optimizer, "register_step_pre_hook"):
                    self._hooks.append(optimizer.register_step_pre_hook(lambda *_: wait()))

    def late(self, tensor: Any) -> bool:
        """Whether only the optimizer's step changes it."""
        return tensor.data_ptr() in self._late

    def _find_late(self) -> None:
        self._late: set[int] = set()
        if len(self._hooks) == len(self._optimizers()) > 0:
            self._late = {tensor.data_ptr() for tensor in self._watched() if tensor.numel() > 1024}

    def _watched(self) -> list[Any]:
        found = [] if self.model is None else list(bare(self.model).parameters())
        for optimizer in self._optimizers():
            found += [tensor for values in getattr(optimizer, "state", {}).values() for tensor in tensors_of(values)]
        return found

    # -- the end of a step

    def step_ended(self) -> None:
        """Note how things are, so that later on it can be seen whether they still are."""
        self._random = rng.capture()
        self._versions = self._count()
        loader: Any = self.others.get("loader")
        if hasattr(loader, "step_ended"):
            loader.step_ended()

    def unchanged(self) -> bool:
        """Whether nothing that is saved was changed since the end of the last step."""
        return self._versions == self._count()

    def _count(self) -> int:
        tensors = self._watched() + ([] if self.model is None else list(bare(self.model).buffers()))
        return sum(tensor._version for tensor in tensors)

    def random(self, busy: bool) -> dict[str, Any]:
        """The generators' states: in the middle of a step, those of the last one's end."""
        return self._random if busy and self._random is not None else rng.capture()

    # -- to a tree and back

    def tree(self, shared: bool) -> dict[str, Any]:
        """What rank 0 saves for all (`shared`), and what each rank saves for itself."""
        self._find_late()
        found: dict[str, Any] = {"parts": {}, "state": self.state}
        for name, part in self.others.items():
            if shared or name in _OWN:
                found["parts"][name] = _states(part)
        if shared:
            found["model"] = _plain_keys(bare(self.model).state_dict()) if self.model is not None else None
            found["optimizer"] = _states(self.optimizer)
        return found

    def load(self, shared: dict[str, Any], mine: dict[str, Any], was: int, world: int, rank: int) -> None:
        """Put a tree back: `shared` is rank 0's, `mine` this rank's; `was` and `world` are the numbers of ranks."""
        if self.model is not None:
            model = bare(self.model)
            wanted = {_plain(key): key for key in model.state_dict()}
            given = _plain_keys(shared["model"] or {})
            _same_keys(set(given), set(wanted))
            try:
                model.load_state_dict({wanted[key]: value for key, value in given.items()})
            except RuntimeError as error:
                raise RuntimeFault(
                    f"The checkpoint is of another model: {error}", code="other_model", field="model"
                ) from None
        _load_states("optimizer", self.optimizer, shared["optimizer"])
        for name, part in self.others.items():
            kept = (mine if name in _OWN else shared)["parts"].get(name)
            if kept is None:
                continue
            if name == "loader" and was != world:
                part.load_state_dict(kept, was, world, rank)
            else:
                _load_states(name, part, kept)
        if self.state is not None and mine["state"] is not None:
            self.state.clear()
            self.state.update(mine["state"])


def _states(part: Any) -> Any:
    if part is None:
        return None
    return [each.state_dict() for each in part] if isinstance(part, list | tuple) else part.state_dict()


def _load_states(name: str, part: Any, kept: Any) -> None:
    if part is None or kept is None:
        return
    try:
        if isinstance(part, list | tuple):
            for each, state in zip(part, kept, strict=True):
                each.load_state_dict(state)
        else:
            part.load_state_dict(kept)
    except (KeyError, ValueError, TypeError, RuntimeError) as error:
        raise RuntimeFault(
            f"The checkpoint's {name} does not fit the one given: {error}", code="other_part", field=name
        ) from error


def _plain(key: str) -> str:
    return key.replace(_COMPILED, "")


def _plain_keys(state: dict[str, Any]) -> dict[str, Any]:
    return {_plain(key): value for key, value in state.items()}


def _same_keys(given: set[str], wanted: set[str]) -> None:
    if given != wanted:
        missing, strange = sorted(wanted - given), sorted(given - wanted)
        parts = [
            f"{len(names)} {what}, e.g. {names[0]}"
            for names, what in ((missing, "missing"), (strange, "unknown"))
            if names
        ]
        raise RuntimeFault(
            f"The checkpoint is of another model: of its tensors {' and '.join(parts)}. Give the run another name, or "
            "fresh=True to begin anew.",
            code="other_model",
            field="model",
        )
