"""Where voxels, source and detector are. Millimetres and radians; the axis of rotation is z, through the origin."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TypeVar

import torch


@dataclass(frozen=True)
class Grid:
    """Cubic voxels around the origin: how many along (z, y, x), and the length of an edge in mm."""

    voxels: tuple[int, int, int]
    spacing: float

    def __post_init__(self) -> None:
        """Raises ValueError for a grid without voxels or without extent."""
        if min(self.voxels) < 1 or self.spacing <= 0:
            raise ValueError(f"voxels are {self.voxels}, spacing is {self.spacing}: both must be above 0.")

    def axis(self, number: int, device: torch.device | str = "cpu") -> torch.Tensor:
        """The centres of the voxels along an axis (0: z, 1: y, 2: x), in mm."""
        count = self.voxels[number]
        return (torch.arange(count, dtype=torch.float32, device=device) - (count - 1) / 2) * self.spacing

    def zeros(self, device: torch.device | str = "cpu") -> torch.Tensor:
        """An empty volume."""
        return torch.zeros(self.voxels, device=device)


@dataclass(frozen=True, eq=False)
class ParallelBeam:
    """Parallel rays in the planes of the volume's slices: `columns` of them, `pitch` mm apart, for each of `angles`.

    Ray `u` of the view at angle β is { u·(-sin β, cos β) - t·(cos β, sin β) }. Angles lie evenly in half a turn.
    """

    columns: int
    pitch: float
    angles: torch.Tensor

    @property
    def shape(self) -> tuple[int, int]:
        """Views and columns; a projection of a volume has its slices between them."""
        return len(self.angles), self.columns

    def offsets(self, device: torch.device | str = "cpu") -> torch.Tensor:
        """Of each column from the middle, in mm."""
        return (torch.arange(self.columns, dtype=torch.float32, device=device) - (self.columns - 1) / 2) * self.pitch


@dataclass(frozen=True, eq=False)
class ConeBeam:
    """A source on a circle around z, and a flat detector opposite; with one row and one slice, a fan beam.

    The source is at `source_to_axis`·(cos β, sin β, 0); the detector is perpendicular to the central ray,
    `source_to_detector` from the source. Columns run along (-sin β, cos β, 0), rows along z.
    """

    source_to_axis: float
    source_to_detector: float
    rows: int
    columns: int
    pitch: float
    angles: torch.Tensor

    def __post_init__(self) -> None:
        """Raises ValueError where the detector is not behind the axis."""
        if not 0 < self.source_to_axis < self.source_to_detector:
            raise ValueError(
                f"source_to_axis is {self.source_to_axis}: it must be above 0 and below source_to_detector, "
                f"{self.source_to_detector}."
            )

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of the projections: views, rows, columns."""
        return len(self.angles), self.rows, self.columns

    def columns_at(self, device: torch.device | str = "cpu") -> torch.Tensor:
        """Of each column from the middle of the detector, in mm."""
        return (torch.arange(self.columns, dtype=torch.float32, device=device) - (self.columns - 1) / 2) * self.pitch

    def rows_at(self, device: torch.device | str = "cpu") -> torch.Tensor:
        """Of each row from the middle of the detector, in mm."""
        return (torch.arange(self.rows, dtype=torch.float32, device=device) - (self.rows - 1) / 2) * self.pitch

    def rays(self, device: torch.device | str = "cpu") -> tuple[torch.Tensor, torch.Tensor]:
        """As x, y, z: the sources (views, 1, 1, 3) in mm, and unit directions of all rays (views, rows, columns, 3)."""
        cosine, sine = (f(self.angles.to(device, torch.float32))[:, None, None] for f in (torch.cos, torch.sin))
        u, v = self.columns_at(device)[None, None, :], self.rows_at(device)[None, :, None]
        far = self.source_to_detector
        zero = torch.zeros_like(cosine * u * v)
        ends = torch.stack((zero - far * cosine - u * sine, zero - far * sine + u * cosine, zero + v), dim=-1)
        sources = torch.stack((cosine, sine, torch.zeros_like(cosine)), dim=-1) * self.source_to_axis
        return sources, ends / ends.norm(dim=-1, keepdim=True)


Beam = TypeVar("Beam", ParallelBeam, ConeBeam)


def part(beam: Beam, views: torch.Tensor) -> Beam:
    """The same beam with some of its views."""
    return replace(beam, angles=beam.angles[views.cpu()])


def even(views: int, turn: float = 2 * math.pi) -> torch.Tensor:
    """So many angles, evenly in `turn` radians, from 0 on."""
    return torch.arange(views, dtype=torch.float64) * (turn / views)
