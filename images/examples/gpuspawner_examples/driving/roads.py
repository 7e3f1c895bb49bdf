"""Roads: straight, and a ring. Coordinates along the road are measured on the middle of lane 0."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch


class Road(Protocol):
    """What the simulation needs of a road. Tensors in, tensors of the same shape out; metres and radians.

    Lane `n` lies `n * lane_width` to the left of lane 0 (towards growing `offset`). `length` is that of lane 0 in
    metres; `closed` says that its end is its beginning.
    """

    lanes: int
    length: float
    lane_width: float
    speed_limit: float

    @property
    def closed(self) -> bool: ...

    def local(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(station, offset): metres along lane 0, metres to the left of its middle."""
        ...

    def position(self, station: torch.Tensor, offset: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(x, y) of a station and an offset."""
        ...

    def heading(self, station: torch.Tensor, offset: torch.Tensor | float = 0.0) -> torch.Tensor:
        """Where the road goes; `station` may be metres of the lane at `offset`, if that is given."""
        ...

    def stretch(self, offset: torch.Tensor) -> torch.Tensor:
        """Metres driven at `offset` for each metre of lane 0."""
        ...


def lane_of(road: Road, offset: torch.Tensor) -> torch.Tensor:
    """The lane (int64) whose middle is next to `offset`."""
    return (offset / road.lane_width).round().clamp(0, road.lanes - 1).long()


@dataclass(frozen=True)
class StraightRoad:
    """Along x, lane n at y = n * lane_width, as in highway-env's `straight_road_network`. Vehicles are placed on its
    first `length` metres; it has no end."""

    lanes: int = 4
    length: float = 5000.0
    lane_width: float = 4.0
    speed_limit: float = 30.0
    closed: ClassVar[bool] = False

    def local(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x, y

    def position(self, station: torch.Tensor, offset: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return station, offset

    def heading(self, station: torch.Tensor, offset: torch.Tensor | float = 0.0) -> torch.Tensor:
        return torch.zeros_like(station)

    def stretch(self, offset: torch.Tensor) -> torch.Tensor:
        return torch.ones_like(offset)


@dataclass(frozen=True)
class RingRoad:
    """A circle around (0, 0), driven counterclockwise; lane 0 is the outermost, with `length` metres."""

    lanes: int = 4
    length: float = 5000.0
    lane_width: float = 4.0
    speed_limit: float = 30.0
    closed: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Raises ValueError where the inner lanes would not fit into the circle."""
        if self.radius <= self.lanes * self.lane_width:
            raise ValueError(
                f"length is {self.length:g} m: a ring of {self.lanes} lanes needs more than "
                f"{2 * math.pi * self.lanes * self.lane_width:.0f} m."
            )

    @property
    def radius(self) -> float:
        """Of the middle of lane 0, in metres."""
        return self.length / (2 * math.pi)

    def local(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        angle = torch.atan2(y, x).remainder(2 * math.pi)
        return angle * self.radius, self.radius - torch.hypot(x, y)

    def position(self, station: torch.Tensor, offset: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        angle, distance = station / self.radius, self.radius - offset
        return distance * torch.cos(angle), distance * torch.sin(angle)

    def heading(self, station: torch.Tensor, offset: torch.Tensor | float = 0.0) -> torch.Tensor:
        return station / (self.radius - offset) + math.pi / 2

    def stretch(self, offset: torch.Tensor) -> torch.Tensor:
        return (self.radius - offset) / self.radius
