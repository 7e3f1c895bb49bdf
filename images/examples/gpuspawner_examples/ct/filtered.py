"""Filtered backprojection: of parallel beams, and of cone and fan beams by the method of Feldkamp, Davis and Kress.

Filter and weights: A. C. Kak, M. Slaney, Principles of Computerized Tomographic Imaging (IEEE Press 1988), sections 3.3
to 3.6. L. A. Feldkamp, L. C. Davis, J. W. Kress, J. Opt. Soc. Am. A 1 (1984) 612.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch

from gpuspawner_examples.ct.geometry import ConeBeam, Grid, ParallelBeam

Window = Literal["ram-lak", "shepp-logan", "cosine", "hann"]


def ramp(samples: int, pitch: float, window: Window = "ram-lak", device: torch.device | str = "cpu") -> torch.Tensor:
    """The ramp filter's response at the frequencies of `rfft` for `samples` that lie `pitch` mm apart, in 1/mm.

    It is the transform of the band-limited impulse response (Kak and Slaney, equation 3.61) and not |f| itself, which
    would lose the mean. Raises ValueError for a window that there is not.
    """
    if window not in get_args(Window):
        raise ValueError(f"window is {window!r}: it must be one of {', '.join(get_args(Window))}.")
    distance = torch.fft.fftfreq(samples, 1 / samples, dtype=torch.float64)
    odd = distance.long() % 2 != 0
    impulse = torch.where(odd, -1 / (math.pi * distance.where(odd, torch.ones(())) * pitch) ** 2, 0.0)
    impulse[0] = 1 / (4 * pitch**2)
    response = torch.fft.rfft(impulse).real * pitch
    part = torch.fft.rfftfreq(samples, dtype=torch.float64) * 2  # of the highest frequency
    if window == "shepp-logan":
        response = response * torch.sinc(part / 2)
    elif window == "cosine":
        response = response * torch.cos(math.pi / 2 * part)
    elif window == "hann":
        response = response * (0.5 + 0.5 * torch.cos(math.pi * part))
    return response.to(device, torch.float32)


def filtered(projections: torch.Tensor, pitch: float, window: Window = "ram-lak") -> torch.Tensor:
    """Projections (…, columns), filtered along the columns."""
    columns = projections.shape[-1]
    samples = 2 ** math.ceil(math.log2(2 * columns))  # a convolution must not come back at the other end
    response = ramp(samples, pitch, window, projections.device)
    spectrum = torch.fft.rfft(projections, n=samples) * response
    return torch.fft.irfft(spectrum, n=samples)[..., :columns]


def fbp(projections: torch.Tensor, grid: Grid, beam: ParallelBeam, window: Window = "ram-lak") -> torch.Tensor:
    """A volume (z, y, x) in 1/mm from parallel projections (views, slices, columns) over half a turn."""
    device = projections.device
    ready = filtered(projections, beam.pitch, window) * (math.pi / len(beam.angles))
    volume = grid.zeros(device)
    x, y = grid.axis(2, device)[None, :], grid.axis(1, device)[:, None]
    scale = 2 / ((beam.columns - 1) * beam.pitch)
    where = torch.zeros((1, grid.voxels[1], grid.voxels[2], 2), device=device)
    for view, angle in enumerate(beam.angles.tolist()):
        torch.add(x * (-math.sin(angle) * scale), y * (math.cos(angle) * scale), out=where[0, ..., 0])
        volume += torch.nn.functional.grid_sample(ready[view][None, :, None], where, align_corners=True)[0]
    return volume


def fdk(
    projections: torch.Tensor,
    grid: Grid,
    beam: ConeBeam,
    window: Window = "ram-lak",
    weights: torch.Tensor | None = None,
) -> torch.Tensor:
    """A volume (z, y, x) in 1/mm from cone-beam projections (views, rows, columns) over a whole turn.

    `weights` are the angles in radians that each view stands for; without them the views lie evenly. Exact in the
    plane of the source's circle, and nearly so close to it.
    """
    device = projections.device
    count = len(beam.angles)
    spans = torch.full((count,), 2 * math.pi / count) if weights is None else weights
    far, near = beam.source_to_detector, beam.source_to_axis
    u, v = beam.columns_at(device)[None, :], beam.rows_at(device)[:, None]
    slant = far / (far**2 + u**2 + v**2).sqrt()
    volume = grid.zeros(device)
    z = grid.axis(0, device)[:, None, None]
    x, y = grid.axis(2, device)[None, :], grid.axis(1, device)[:, None]
    scale_u, scale_v = (2 / (max(n - 1, 1) * beam.pitch) for n in (beam.columns, beam.rows))
    where = torch.zeros((1, *grid.voxels, 2), device=device)
    for view, angle in enumerate(beam.angles.tolist()):
        away = near - x * math.cos(angle) - y * math.sin(angle)  # from the source, along the central ray
        where[0, ..., 0] = (y * math.cos(angle) - x * math.sin(angle)) * (far * scale_u) / away
        where[0, ..., 1] = z * (far * scale_v) / away
        # filtered as if the detector stood on the axis, where its pitch is smaller
        ready = filtered(projections[view] * slant, beam.pitch * near / far, window)
        flat = where.view(1, grid.voxels[0] * grid.voxels[1], grid.voxels[2], 2)
        sampled = torch.nn.functional.grid_sample(ready[None, None], flat, align_corners=True)
        volume += sampled.view(grid.voxels) * (float(spans[view]) / 2 * (near / away) ** 2)
    return volume


def spans(angles: torch.Tensor) -> torch.Tensor:
    """The angle that each of some views of a whole turn stands for: half of the way to its neighbours on both sides."""
    order = torch.argsort(angles)
    ordered = angles[order]
    gaps = torch.diff(ordered, append=ordered[:1] + 2 * math.pi)
    found = torch.empty_like(ordered)
    found[order] = (gaps + gaps.roll(1)) / 2
    return found
