"""Reconstruction by iteration, which bears few and unevenly spread views: OS-SART with total variation, and a prior.

OS-SART: A. H. Andersen, A. C. Kak, Ultrason. Imaging 6 (1984) 81, with ordered subsets. Total variation: A. Chambolle,
J. Math. Imaging Vis. 20 (2004) 89. That what differs from a reconstruction of all views is sparse: G.-H. Chen, J. Tang,
S. Leng, Med. Phys. 35 (2008) 660.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from gpuspawner_examples.ct.filtered import fdk
from gpuspawner_examples.ct.geometry import Beam, ConeBeam, Grid, part
from gpuspawner_examples.ct.projector import backproject, project

_TINY = 1e-6


def os_sart(
    projections: torch.Tensor,
    grid: Grid,
    beam: Beam,
    *,
    iterations: int = 5,
    subsets: int = 8,
    relaxation: float = 0.9,
    variation: float = 0.0,
    start: torch.Tensor | None = None,
    prior: torch.Tensor | None = None,
    likeness: float = 0.5,
    after: Callable[[int, torch.Tensor], object] | None = None,
) -> torch.Tensor:
    """A volume (z, y, x) in 1/mm, none of it below 0, from projections (views, rows, columns).

    In each iteration every view counts once, by `subsets` steps; then total variation is lowered by `variation` (a
    weight in 1/mm: about the noise of a voxel; 0 leaves it). With a `prior`, the part `likeness` of that is done to the
    difference from it. `after` is called with the number of the iteration and the volume.
    """
    views = len(beam.angles)
    if projections.shape[0] != views:
        raise ValueError(f"There are {projections.shape[0]} projections: there must be one for each of {views} angles.")
    volume = grid.zeros(projections.device) if start is None else start.clone()
    parts = [torch.arange(first, views, min(subsets, views)) for first in range(min(subsets, views))]
    beams = [part(beam, which) for which in parts]
    ones = torch.ones_like(volume)
    rays = [project(ones, grid, each) for each in beams]  # how long each ray is within the grid
    touched = [backproject(torch.ones_like(length), grid, each) for each, length in zip(beams, rays, strict=True)]
    for iteration in range(iterations):
        for which, each, length, weight in zip(parts, beams, rays, touched, strict=True):
            residual = projections[which] - project(volume, grid, each)
            # a ray that only grazes the grid knows little of it
            residual = torch.where(length > grid.spacing, residual / length.clamp(min=_TINY), 0.0)
            volume += relaxation * backproject(residual, grid, each) / weight.clamp(min=grid.spacing)
            volume.clamp_(min=0)
        if variation > 0:
            smooth = lower_variation(volume, variation)
            if prior is not None:
                smooth = (1 - likeness) * smooth + likeness * (prior + lower_variation(volume - prior, variation))
            volume = smooth.clamp_(min=0)
        if after is not None:
            after(iteration, volume)
    return volume


def by_phase(
    projections: torch.Tensor,
    grid: Grid,
    beam: ConeBeam,
    bins: Sequence[torch.Tensor],
    *,
    prior: torch.Tensor,
    iterations: int = 8,
    variation: float = 5e-5,
    after: Callable[[int, torch.Tensor], object] | None = None,
) -> torch.Tensor:
    """A volume for each phase of the breath: (phases, z, y, x), each from the views in its bin, beginning with `prior`.

    `prior` is what all views together give; where nothing moves it is right already.
    """
    volumes = []
    for number, views in enumerate(bins):
        volume = os_sart(
            projections[views],
            grid,
            part(beam, views),
            iterations=iterations,
            subsets=4,
            variation=variation,
            start=prior,
            prior=prior,
        )
        volumes.append(volume)
        if after is not None:
            after(number, volume)
    return torch.stack(volumes)


def of_all_views(projections: torch.Tensor, grid: Grid, beam: ConeBeam, variation: float = 5e-5) -> torch.Tensor:
    """What all views give (z, y, x), as if nobody breathed: sharp where nothing moves, smeared where it does."""
    return lower_variation(fdk(projections, grid, beam, "shepp-logan"), variation).clamp_(min=0)


def lower_variation(volume: torch.Tensor, weight: float, steps: int = 12) -> torch.Tensor:
    """The volume v with the least |v - volume|² / 2 + weight · TV(v), nearly: Chambolle's iteration."""
    # a step of 1/12 converges in three dimensions (Chambolle 2004, theorem 3.1, has 1/8 for two)
    dual = torch.zeros((3, *volume.shape), device=volume.device)
    for _ in range(steps):
        slope = _gradient(_divergence(dual) - volume / weight)
        dual = (dual + slope / 12) / (1 + slope.norm(dim=0, keepdim=True) / 12)
    return volume - weight * _divergence(dual)


def _gradient(volume: torch.Tensor) -> torch.Tensor:
    slope = torch.zeros((3, *volume.shape), device=volume.device)
    for axis in range(3):
        slope[axis].narrow(axis, 0, volume.shape[axis] - 1).copy_(volume.diff(dim=axis))
    return slope


def _divergence(field: torch.Tensor) -> torch.Tensor:
    """Less the transpose of `_gradient`."""
    total = torch.zeros_like(field[0])
    for axis in range(3):
        inner = field[axis].narrow(axis, 0, field.shape[axis + 1] - 1)
        total.narrow(axis, 0, inner.shape[axis]).add_(inner)
        total.narrow(axis, 1, inner.shape[axis]).sub_(inner)
    return total
