"""A scan of a chest that breathes: which phase each view sees, with noise, and views sorted by phase."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gpuspawner_examples.ct.geometry import ConeBeam, even
from gpuspawner_examples.ct.phantoms import thorax


@dataclass(frozen=True, eq=False)
class Scan:
    """Projections (views, rows, columns), and the phase of the breath (0 to 1) at which each view was taken."""

    beam: ConeBeam
    projections: torch.Tensor
    phases: torch.Tensor

    def bins(self, count: int) -> list[torch.Tensor]:
        """The views for each of `count` phases 0, 1/count, …: those that are nearest to it."""
        nearest = torch.round(self.phases * count).long() % count
        return [torch.nonzero(nearest == number).flatten() for number in range(count)]


def breath(times: torch.Tensor, period: float = 4.0, uneven: float = 0.1, seed: int = 0) -> torch.Tensor:
    """The phases (0 to 1) at `times` in s, of breaths of `period` s; `uneven` is the spread of that, as a part."""
    chance = torch.Generator().manual_seed(seed)
    last = float(times.max()) if len(times) else 0.0
    breaths = int(last / period * 2) + 4
    lengths = period * (1 + uneven * torch.randn(breaths, generator=chance)).clamp(0.5, 1.5)
    begins = torch.cumsum(lengths, 0) - lengths[0]
    which = torch.searchsorted(begins, times.to(begins.dtype), right=True) - 1
    return (times - begins[which]) / lengths[which + 1]


def scan(
    beam: ConeBeam,
    *,
    seconds: float = 60.0,
    photons: float | None = 2e5,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> Scan:
    """One turn around the thorax in `seconds`, as a linear accelerator's imager does it; each view sees its own moment.

    The projections are exact integrals, not those of voxels. `photons` reach a pixel of the detector where nobody is in
    the way, and are counted with Poisson noise; None: without noise.
    """
    times = beam.angles / (2 * torch.pi) * seconds
    phases = breath(times, seed=seed)
    exact = thorax(phases).integrals(beam, device)
    if photons is not None:
        # drawn on the processor, so that a card has the same noise
        chance = torch.Generator().manual_seed(seed + 1)
        counted = torch.poisson(photons * torch.exp(-exact.cpu()), generator=chance).clamp(min=1)
        exact = -torch.log(counted / photons).to(device)
    return Scan(beam, exact, phases)


def machine(voxels: int, spacing: float, views: int) -> ConeBeam:
    """A cone beam with the distances of a treatment machine's imager, whose pixels on the axis are `spacing` mm wide.

    1,000 mm from the source to the axis and 1,536 mm to the detector, which covers `voxels` and a quarter more.
    """
    columns, rows = round(voxels * 1.25), round(voxels * 0.95)
    return ConeBeam(1000.0, 1536.0, rows, columns, spacing * 1.536, even(views))
