"""From a volume to its projections and back, each the exact transpose of the other: Joseph's method.

P. M. Joseph, IEEE Trans. Med. Imaging 1 (1982) 192: a ray is followed from plane to plane along the axis that is
nearest to its view's direction, and in each plane the value is interpolated linearly between voxels. In two
dimensions at a time that is `grid_sample`, whose backward pass is the transpose.
"""

from __future__ import annotations

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
    """One view: where its rays cross the planes of the grid."""

    def __init__(self, grid: Grid, beam: ConeBeam | ParallelBeam, number: int, device: torch.device | str) -> None:
        angle = float(beam.angles[number])
        cosine, sine = _cosine_sine(angle)
        # the planes are those of x, or of y: the frame is turned so that the rays cross them steeply
        self._along_x = abs(cosine) >= abs(sine)
        self._slices = isinstance(beam, ParallelBeam)
        along, across = (2, 1) if self._along_x else (1, 2)
        lead, side = (cosine, sine) if self._along_x else (sine, cosine)
        turn = 1.0 if self._along_x else -1.0  # (-sin β, cos β) has other signs for x than for y
        planes = grid.axis(along, device)[:, None]
        if isinstance(beam, ParallelBeam):
            u = beam.offsets(device)[None, :]
            # u·(-side', lead') + t·(lead, side) lies in the plane
            self._weight = torch.full((1, beam.columns), grid.spacing / abs(lead), device=device)
            where = (planes + turn * u * side) * (side / lead) + turn * u * lead
            self._grid = _pair(where, torch.zeros_like(where), grid, across)[:, None]
            return
        u, v = beam.columns_at(device)[None, :], beam.rows_at(device)
        source_lead, source_side = beam.source_to_axis * lead, beam.source_to_axis * side
        to_lead = -beam.source_to_detector * lead - turn * u * side
        to_side = -beam.source_to_detector * side + turn * u * lead
        t = (planes - source_lead) / to_lead  # (planes, columns)
        length = (to_lead**2 + to_side**2 + v[:, None] ** 2).sqrt()
        self._weight = grid.spacing * length / to_lead.abs()
        where = (source_side + t * to_side)[:, None, :].expand(-1, beam.rows, -1)
        self._grid = _pair(where, t[:, None, :] * v[None, :, None], grid, across)

    def forward(self, volume: torch.Tensor) -> torch.Tensor:
        """(rows, columns)."""
        planes = self._planes(volume)
        if self._slices:
            sampled = torch.nn.functional.grid_sample(
                planes, self._grid.expand(len(planes), -1, -1, -1), align_corners=True
            )
            return sampled.sum(0)[:, 0] * self._weight
        sampled = torch.nn.functional.grid_sample(planes, self._grid, align_corners=True)
        summed: torch.Tensor = sampled[:, 0].sum(0)
        return summed * self._weight

    def add_transposed(self, projection: torch.Tensor, volume: torch.Tensor) -> None:
        """Add to a volume what the transpose of `forward` makes of (rows, columns)."""
        planes = self._planes(volume)
        weighted = projection * self._weight
        given = weighted[None, :, None] if self._slices else weighted[None, None]
        back, _ = torch.ops.aten.grid_sampler_2d_backward(
            given.expand(len(planes), -1, -1, -1), planes, self._grid, _BILINEAR, _ZEROS, True, [True, False]
        )
        planes += back

    def _planes(self, volume: torch.Tensor) -> torch.Tensor:
        """A view of the volume as (planes, 1, z, across), or of its slices as channels: (planes, slices, 1, across)."""
        planes = volume.permute(2, 0, 1) if self._along_x else volume.permute(1, 0, 2)
        return planes[:, :, None] if self._slices else planes[:, None]


def _cosine_sine(angle: float) -> tuple[float, float]:
    pair = torch.polar(torch.ones((), dtype=torch.float64), torch.tensor(angle, dtype=torch.float64))
    return float(pair.real), float(pair.imag)


def _pair(across: torch.Tensor, up: torch.Tensor, grid: Grid, axis: int) -> torch.Tensor:
    """Positions in mm as `grid_sample` takes them: -1 and 1 are the centres of the outermost voxels."""
    scale = [2 / (max(count - 1, 1) * grid.spacing) for count in (grid.voxels[axis], grid.voxels[0])]
    return torch.stack((across * scale[0], up * scale[1]), dim=-1)
