"""Rectangles against rectangles, and rays against rectangles: collisions and lidar.

Both look at pairs of vehicles that are near enough, and at those in slices, so that the memory beside the pairs of
places is bounded.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from gpuspawner_examples.driving.vehicles import DIAGONAL, LENGTH, WIDTH, Vehicles

#: Rays times pairs that are looked at together; about 30 numbers are held for each.
SLICE = 1 << 18


def collided(vehicles: Vehicles) -> torch.Tensor:
    """Who touches somebody now (roads, places; bool): by the separating axis theorem on the rectangles' four axes."""
    hit = torch.zeros_like(vehicles.crashed).flatten()
    near = _near(vehicles, DIAGONAL).triu(1)
    for one, other in _pairs(near, SLICE):
        touch = rectangles_touch(*(_poses(vehicles, which) for which in (one, other)))
        hit[one[touch]] = True
        hit[other[touch]] = True
    return hit.view_as(vehicles.crashed)


def rectangles_touch(one: tuple[torch.Tensor, ...], other: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """Whether vehicles at `one` and `other` (each x, y, heading: m, m, rad) overlap or touch."""
    x, y, turned = other[0] - one[0], other[1] - one[1], (other[2] - one[2])
    cosine, sine = torch.cos(turned).abs(), torch.sin(turned).abs()
    along = (LENGTH + LENGTH * cosine + WIDTH * sine) / 2
    across = (WIDTH + LENGTH * sine + WIDTH * cosine) / 2
    touch = torch.ones_like(x, dtype=torch.bool)
    for heading in (one[2], other[2]):
        c, s = torch.cos(heading), torch.sin(heading)
        touch &= ((x * c + y * s).abs() <= along) & ((y * c - x * s).abs() <= across)
    return touch


def lidar(vehicles: Vehicles, rays: int, reach: float = 60.0, observers: int | None = None) -> torch.Tensor:
    """How far each ray goes until it meets a vehicle, at most `reach` m: (roads, observers, rays).

    Ray n points to 2 pi n / rays rad from x, from the middle of its vehicle, as in highway-env's `LidarObservation`.
    Vehicles whose middle is beyond `reach` are not seen. `observers`: only the first so many places of each road.
    """
    roads, places = vehicles.shape
    looking = places if observers is None else observers
    seen = torch.full((roads * places, rays), reach, device=vehicles.x.device, dtype=vehicles.x.dtype)
    near = _near(vehicles, reach)
    near[:, looking:] = False
    angles = torch.arange(rays, device=vehicles.x.device, dtype=vehicles.x.dtype) * (2 * math.pi / rays)
    for observer, obstacle in _pairs(near, max(1, SLICE // rays)):
        met = ray_distances(_poses(vehicles, observer), _poses(vehicles, obstacle), angles, reach)
        seen.scatter_reduce_(0, observer.unsqueeze(1).expand_as(met), met, "amin")
    return seen.view(roads, places, rays)[:, :looking]


def ray_distances(
    observer: tuple[torch.Tensor, ...], obstacle: tuple[torch.Tensor, ...], angles: torch.Tensor, reach: float
) -> torch.Tensor:
    """Metres from each observer to its obstacle along each ray, `reach` where it is missed: (pairs, rays).

    In the obstacle's own frame the rectangle is two slabs, and a ray meets it where it is inside of both.
    """
    c, s = torch.cos(obstacle[2]), torch.sin(obstacle[2])
    x, y = observer[0] - obstacle[0], observer[1] - obstacle[1]
    along, across = (x * c + y * s).unsqueeze(1), (y * c - x * s).unsqueeze(1)
    turned = angles - obstacle[2].unsqueeze(1)
    first = last = None
    for start, way, half in ((along, torch.cos(turned), LENGTH / 2), (across, torch.sin(turned), WIDTH / 2)):
        way = torch.where(way.abs() < 1e-9, 1e-9, way)  # a ray along a side meets it far away, or everywhere
        one, other = (-half - start) / way, (half - start) / way
        near, far = torch.minimum(one, other), torch.maximum(one, other)
        first = near if first is None else torch.maximum(first, near)
        last = far if last is None else torch.minimum(last, far)
    assert first is not None
    assert last is not None
    met = (first <= last) & (last >= 0) & (first <= reach)
    return torch.where(met, first.clamp(min=0), reach)


def _near(vehicles: Vehicles, reach: float) -> torch.Tensor:
    """Which pairs (roads, places, places; bool) of different vehicles are at most `reach` m apart, middle to middle."""
    x = vehicles.x.unsqueeze(2) - vehicles.x.unsqueeze(1)
    y = vehicles.y.unsqueeze(2) - vehicles.y.unsqueeze(1)
    near = x.square_().add_(y.square_()) <= reach**2
    near &= vehicles.present.unsqueeze(1) & vehicles.present.unsqueeze(2)
    near.diagonal(dim1=1, dim2=2).fill_(False)
    return near


def _pairs(near: torch.Tensor, most: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The pairs as places counted through all roads, in slices of at most `most`."""
    places = near.shape[1]
    for part in near.nonzero().split(most):
        road, one, other = part.unbind(1)
        yield road * places + one, road * places + other


def _poses(vehicles: Vehicles, which: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return tuple(values.flatten()[which] for values in (vehicles.x, vehicles.y, vehicles.heading))
