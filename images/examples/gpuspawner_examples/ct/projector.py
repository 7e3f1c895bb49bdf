"""From a volume to its projections and back, each the exact transpose of the other: Joseph's method.

P. M. Joseph, IEEE Trans. Med. Imaging 1 (1982) 192: a ray is followed from plane to plane along the axis that is
nearest to its view's direction, and in each plane the value is interpolated linearly between voxels. In two
dimensions at a time that is `grid_sample`, whose backward pass is the transpose.
"""

from __future__ import annotations

import math

import torch

from gpuspawner_examples.ct.geometry import ConeBeam, Grid, ParallelBeam

_BILINEAR, _ZEROS = 0, 0


def project(volume: torch.Tensor, grid: Grid, beam: ConeBeam | ParallelBeam) -> torch.Tensor:
    """The line integrals of a volume (z, y, x): (views, rows, columns); of a parallel beam, rows are the slices."""
    return torch.stack([_View(grid, beam, number, volume.device).forward(volume) for number in range(len(beam.angles))])


def backproject(projections: torch.Tensor, grid: Grid, beam: ConeBeam | ParallelBeam) -> torch.Tensor:
    """The transpose of `project`: a volume (z, y, x) from projections (views, rows, columns)."""
    volume = grid.zeros(projections.device)
    for number in range(len(beam.angles)):
        _View(grid, beam, number, projections.device).add_transposed(projections[number], volume)
    return volume


class _View:
    """One view: where its rays cross the planes of the grid, in places of `grid_sample` (-1, 1: outermost voxels)."""

    def __init__(self, grid: Grid, beam: ConeBeam | ParallelBeam, number: int, device: torch.device | str) -> None:
        angle = float(beam.angles[number])
        cosine, sine = math.cos(angle), math.sin(angle)
        # the planes are those of x, or of y: whichever the rays cross more steeply
        self._along_x = abs(cosine) >= abs(sine)
        along, across = (2, 1) if self._along_x else (1, 2)
        lead, side = (cosine, sine) if self._along_x else (sine, cosine)
        # columns run along (-sin β, cos β): with `side` and against `lead`, or the other way round
        turn = 1.0 if self._along_x else -1.0
        self._parallel = isinstance(beam, ParallelBeam)
        planes = grid.axis(along, device)[:, None]
        scale, scale_along, scale_up = (_scale(grid, axis) for axis in (across, along, 0))
        if isinstance(beam, ParallelBeam):
            u = beam.offsets(device)
            self._weight = torch.full((), grid.spacing / abs(lead), device=device)
            self._places = torch.empty((1, len(planes), len(u), 2), device=device)
            first, second = self._places.unbind(-1) if not self._along_x else reversed(self._places.unbind(-1))
            torch.add(planes * (scale * side / lead), u * (scale * turn / lead), out=first[0])
            second.copy_(planes * scale_along)
            return
        u, v = beam.columns_at(device), beam.rows_at(device)
        to_lead = -beam.source_to_detector * lead - turn * u * side
        to_side = -beam.source_to_detector * side + turn * u * lead
        t = (planes - beam.source_to_axis * lead) / to_lead  # of the way to the detector: (planes, columns)
        self._weight = grid.spacing * (to_lead**2 + to_side**2 + v[:, None] ** 2).sqrt() / to_lead.abs()
        self._places = torch.empty((len(planes), len(v), len(u), 2), device=device)
        self._places[..., 0] = (t * (to_side * scale) + beam.source_to_axis * side * scale)[:, None]
        torch.mul(t[:, None], v[:, None] * scale_up, out=self._places[..., 1])

    def forward(self, volume: torch.Tensor) -> torch.Tensor:
        """(rows, columns)."""
        sampled = torch.nn.functional.grid_sample(self._planes(volume), self._places, align_corners=True)
        summed: torch.Tensor = sampled[0].sum(1) if self._parallel else sampled[:, 0].sum(0)
        return summed * self._weight

    def add_transposed(self, projection: torch.Tensor, volume: torch.Tensor) -> None:
        """Add to a volume what the transpose of `forward` makes of (rows, columns)."""
        planes = self._planes(volume)
        weighted = projection * self._weight
        given = weighted[None, :, None] if self._parallel else weighted[None, None]
        shape = (len(planes), planes.shape[1], *self._places.shape[1:3])
        back, _ = torch.ops.aten.grid_sampler_2d_backward(
            given.expand(shape), planes, self._places, _BILINEAR, _ZEROS, True, [True, False]
        )
        planes += back

    def _planes(self, volume: torch.Tensor) -> torch.Tensor:
        """The volume as (planes, 1, z, across); for parallel rays, which stay in slices, as (1, slices, y, x)."""
        if self._parallel:
            return volume[None]
        planes = volume.permute(2, 0, 1) if self._along_x else volume.permute(1, 0, 2)
        return planes[:, None]


def _scale(grid: Grid, axis: int) -> float:
    """From mm to places."""
    return 2 / (max(grid.voxels[axis] - 1, 1) * grid.spacing)
