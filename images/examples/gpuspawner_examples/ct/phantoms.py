"""Bodies made of ellipsoids: their voxels, and the exact integrals of their attenuation along rays."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from gpuspawner_examples.ct.geometry import ConeBeam, Grid, ParallelBeam, part

# A. C. Kak, M. Slaney, Principles of Computerized Tomographic Imaging (IEEE Press 1988), section 3.3, the ellipsoids of
# the head phantom of L. A. Shepp and B. F. Logan in three dimensions: centre x, y, z; half axes; degrees around z.
# The contrasts are ten times those of the head, so that they show, as H. Yu, Y. Ye and G. Wang have them
# (Katsevich-type algorithms for variable radius spiral cone-beam CT, 2004).
_HEAD = (
    (0, 0, 0, 0.69, 0.92, 0.9, 0, 1.0),
    (0, 0, 0, 0.6624, 0.874, 0.88, 0, -0.8),
    (-0.22, 0, -0.25, 0.41, 0.16, 0.21, 108, -0.2),
    (0.22, 0, -0.25, 0.31, 0.11, 0.22, 72, -0.2),
    (0, 0.35, -0.25, 0.21, 0.25, 0.5, 0, 0.2),
    (0, 0.1, -0.25, 0.046, 0.046, 0.046, 0, 0.2),
    (-0.08, -0.65, -0.25, 0.046, 0.023, 0.02, 0, 0.1),
    (0.06, -0.65, -0.25, 0.046, 0.023, 0.02, 90, 0.1),
    (0.06, -0.105, 0.625, 0.056, 0.04, 0.1, 90, 0.2),
    (0, 0.1, 0.625, 0.056, 0.056, 0.1, 0, -0.2),
)

#: How far a breath moves the tumour, in mm along x, y, z: towards the spine and towards the feet.
_TUMOUR_WAY = (0.0, 5.0, -16.0)
_TUMOUR_RADIUS = 13.0
#: Rays with their directions take many times what their integrals take.
_VIEWS_AT_ONCE = 8


@dataclass(frozen=True, eq=False)
class Ellipsoids:
    """Attenuation that is constant within ellipsoids, and adds up where they overlap, at one or several moments.

    `centres` and `half_axes` are (moments, ellipsoids, 3) as x, y, z in mm, `angles` (ellipsoids) around z in radians,
    `attenuation` (ellipsoids) in 1/mm.
    """

    centres: torch.Tensor
    half_axes: torch.Tensor
    angles: torch.Tensor
    attenuation: torch.Tensor

    @property
    def moments(self) -> int:
        """At how many moments the body is given."""
        return int(self.centres.shape[0])

    def voxels(
        self, grid: Grid, device: torch.device | str = "cpu", moment: int = 0, oversampling: int = 2
    ) -> torch.Tensor:
        """The volume at a moment, each voxel the mean of `oversampling`³ points in it."""
        fine = Grid(tuple(n * oversampling for n in grid.voxels), grid.spacing / oversampling)  # type: ignore[arg-type]
        z, y, x = (fine.axis(axis, device) for axis in range(3))
        points = (x[None, None, :], y[None, :, None], z[:, None, None])
        volume = torch.zeros(fine.voxels, device=device)
        for number in range(len(self.attenuation)):
            centre, half = (each[moment, number].tolist() for each in (self.centres, self.half_axes))
            cosine, sine = math.cos(float(self.angles[number])), math.sin(float(self.angles[number]))
            along, across, up = (point - middle for point, middle in zip(points, centre, strict=True))
            inside = ((along * cosine + across * sine) / half[0]) ** 2 + (
                (across * cosine - along * sine) / half[1]
            ) ** 2
            volume += self.attenuation[number].to(device) * ((inside + (up / half[2]) ** 2) <= 1)
        pooled: torch.Tensor = torch.nn.functional.avg_pool3d(volume[None, None], oversampling)[0, 0]
        return pooled

    def integrals(self, beam: ConeBeam, device: torch.device | str = "cpu") -> torch.Tensor:
        """The exact projections (views, rows, columns); view n sees moment n, or the only one there is.

        A ray that passes the unit sphere, into which an ellipsoid is mapped, runs 2·√(B² - A·C) / A in it, where A·t² +
        2·B·t + C = 0 is where it enters and leaves.
        """
        if self.moments not in (1, len(beam.angles)):
            raise ValueError(f"The body has {self.moments} moments: it must have one, or one for each view.")
        found = []
        for views in torch.arange(len(beam.angles)).split(_VIEWS_AT_ONCE):
            body = (
                self
                if self.moments == 1
                else replace(self, centres=self.centres[views], half_axes=self.half_axes[views])
            )
            found.append(body._along(*part(beam, views).rays(device)))
        return torch.cat(found)

    def parallel_integrals(self, beam: ParallelBeam, height: float = 0.0) -> torch.Tensor:
        """The exact projections (views, columns) of the plane at z = `height` mm."""
        cosine, sine = (f(beam.angles.to(torch.float32))[:, None, None] for f in (torch.cos, torch.sin))
        u = beam.offsets()[None, None, :]
        zero = torch.zeros_like(cosine * u)
        sources = torch.stack((-u * sine, u * cosine, zero + height), dim=-1)
        directions = torch.stack((zero - cosine, zero - sine, zero), dim=-1)
        return self._along(sources, directions)[:, 0]

    def _along(self, sources: torch.Tensor, directions: torch.Tensor) -> torch.Tensor:
        total = torch.zeros(directions.shape[:-1], device=directions.device)
        for number in range(len(self.attenuation)):
            centre = self.centres[:, number].to(directions.device)[:, None, None]
            half = self.half_axes[:, number].to(directions.device)[:, None, None]
            start = _turned(sources - centre, float(self.angles[number])) / half
            way = _turned(directions, float(self.angles[number])) / half
            a, b = (way * way).sum(-1), (start * way).sum(-1)
            # the nearest point to the middle, which keeps more digits than B² - A·C, since the source is far away
            nearest = start - (b / a)[..., None] * way
            total += (
                self.attenuation[number].to(total.device)
                * 2
                * ((1 - (nearest * nearest).sum(-1)).clamp(min=0) / a).sqrt()
            )
        return total


def shepp_logan(radius: float = 100.0) -> Ellipsoids:
    """The head phantom, in a ball of `radius` mm; its attenuation is 1/`radius` where the table has 1."""
    table = torch.tensor(_HEAD)
    return Ellipsoids(
        table[None, :, :3] * radius, table[None, :, 3:6] * radius, table[:, 6].deg2rad(), table[:, 7] / radius
    )


def depth(phase: torch.Tensor) -> torch.Tensor:
    """How far a breath is drawn in at a phase (0 to 1: one breath), from 0 at its beginning to 1 and back.

    sin⁴: more time is spent breathed out than in, as A. E. Lujan et al., Med. Phys. 26 (1999) 715 describe it.
    """
    return torch.sin(math.pi * phase) ** 4


def thorax(phase: torch.Tensor | float = 0.0) -> Ellipsoids:
    """A chest that breathes, with a tumour low in its right lung, at one or several phases of the breath (0 to 1).

    Attenuation is about that of tissues at 70 keV (water 0.0193 / mm, J. H. Hubbell, S. M. Seltzer, NIST XCOM); sizes
    are those of a slim adult, shortened along z, so that it ends within the cone. x is to the patient's left, y to the
    back, z to the head, as DICOM has them. The tumour lags behind the lung on
    its way towards the spine, so that its path is a loop.
    """
    phases = torch.as_tensor(phase, dtype=torch.float32).reshape(-1)
    drawn, late = depth(phases), depth(phases - 0.08)
    still = torch.zeros_like(drawn)
    lung = 62 + 9 * drawn  # half its height; its top stays where it is
    rise = -3 * drawn  # the chest wall, towards the front
    parts = [  # centre x, y, z; half axes; attenuation added
        ((still, rise, still), (still + 155, 100 - rise, still + 112), 0.0193),
        ((still - 78, rise, 82 - lung), (still + 46, 70 - rise, lung), -0.0145),
        ((still + 78, rise, 82 - lung), (still + 46, 70 - rise, lung), -0.0145),
        ((still + 6, rise - 22, -4 * drawn), (still + 24, still + 32, still + 38), 0.0025),
        ((still, still + 68, still), (still + 16, still + 18, still + 88), 0.0150),
        (tuple(tumour_path(phases, late).T), (still + _TUMOUR_RADIUS,) * 3, 0.0145),
    ]
    centres = torch.stack([torch.stack(tuple(centre), -1) for centre, _, _ in parts], 1)
    half = torch.stack([torch.stack(tuple(axes), -1) for _, axes, _ in parts], 1)
    return Ellipsoids(centres, half, torch.zeros(len(parts)), torch.tensor([added for *_, added in parts]))


def tumour_path(phase: torch.Tensor, late: torch.Tensor | None = None) -> torch.Tensor:
    """The centre of the thorax's tumour (phases, 3) as x, y, z in mm."""
    phases = torch.as_tensor(phase, dtype=torch.float32).reshape(-1)
    drawn = depth(phases)
    late = depth(phases - 0.08) if late is None else late
    x, y, z = _TUMOUR_WAY
    return torch.stack((-76 + x * drawn, 12 + y * late, 4 + z * drawn), -1)


def _turned(vectors: torch.Tensor, angle: float) -> torch.Tensor:
    """Into the frame of an ellipsoid that is turned by `angle` around z."""
    if angle == 0:
        return vectors
    cosine, sine = math.cos(angle), math.sin(angle)
    x, y, z = vectors.unbind(-1)
    return torch.stack((x * cosine + y * sine, y * cosine - x * sine, z), -1)
