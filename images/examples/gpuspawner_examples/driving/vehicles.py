"""The state of all vehicles, as tensors."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import torch

#: Metres; every vehicle is a rectangle of this size, as highway-env's.
LENGTH, WIDTH = 5.0, 2.0
DIAGONAL = (LENGTH**2 + WIDTH**2) ** 0.5


@dataclass(frozen=True)
class Vehicles:
    """Each tensor has the shape (roads, places): copies of the road, and places for vehicles on each.

    Vehicles of one copy see each other, and nobody else. A place without a vehicle has `present` False.
    """

    x: torch.Tensor  #: of the middle of the vehicle, m
    y: torch.Tensor  #: m
    heading: torch.Tensor  #: rad, counterclockwise from x; not wrapped
    speed: torch.Tensor  #: m/s
    wish: torch.Tensor  #: speed that the driver would like to have, m/s
    steering: torch.Tensor  #: of the front wheels in the last step, rad
    acceleration: torch.Tensor  #: in the last step, m/s²
    timer: torch.Tensor  #: since the driver last thought about another lane, s
    target: torch.Tensor  #: lane that the driver steers to, int64
    crashed: torch.Tensor  #: bool
    present: torch.Tensor  #: bool

    @classmethod
    def nobody(cls, roads: int, places: int, device: torch.device, dtype: torch.dtype) -> Vehicles:
        """Places without vehicles."""
        kinds = {"target": torch.int64, "crashed": torch.bool, "present": torch.bool}
        return cls(
            **{
                field.name: torch.zeros(roads, places, device=device, dtype=kinds.get(field.name, dtype))
                for field in fields(cls)
            }
        )

    @property
    def shape(self) -> tuple[int, int]:
        """Roads, places."""
        return (self.x.shape[0], self.x.shape[1])

    def with_(self, **changed: Any) -> Vehicles:
        """The same with some tensors changed."""
        return replace(self, **changed)

    def and_(self, others: Vehicles) -> Vehicles:
        """These roads and then those of `others`."""
        return Vehicles(**{name: torch.cat([mine, getattr(others, name)]) for name, mine in self.items()})

    def of(self, roads: slice) -> Vehicles:
        """Some of the roads."""
        return Vehicles(**{name: mine[roads] for name, mine in self.items()})

    def items(self) -> list[tuple[str, torch.Tensor]]:
        """The tensors by name."""
        return [(field.name, getattr(self, field.name)) for field in fields(self)]

    @property
    def bytes(self) -> int:
        """Memory of these tensors."""
        return sum(tensor.numel() * tensor.element_size() for _, tensor in self.items())


def take(values: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """`values` (roads, places) at each of `places` (roads, places, int64); where that is -1, of place 0."""
    return values.gather(1, places.clamp(min=0))


def not_zero(values: torch.Tensor, least: float = 0.01) -> torch.Tensor:
    """`values`, with those nearer to 0 than `least` replaced by `least` of the same sign."""
    return torch.where(values.abs() > least, values, torch.where(values >= 0, least, -least))
