"""How far a reconstruction is from the truth. PSNR and SSIM are scikit-image's."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from skimage.metrics import peak_signal_noise_ratio, structural_similarity

from gpuspawner_examples.ct.geometry import Grid


@dataclass(frozen=True)
class Quality:
    """`rmse` in the unit of the volume, `psnr` in dB and `ssim` (1 at best) by the truth's range."""

    rmse: float
    psnr: float
    ssim: float


def quality(volume: torch.Tensor, truth: torch.Tensor) -> Quality:
    """Of a volume or slice against the truth of the same shape; ValueError for another."""
    if volume.shape != truth.shape:
        raise ValueError(f"volume is {tuple(volume.shape)}: it must be as the truth, {tuple(truth.shape)}.")
    found, right = volume.cpu().numpy(), truth.cpu().numpy()
    span = float(right.max() - right.min())
    return Quality(
        rmse(volume, truth),
        float(peak_signal_noise_ratio(right, found, data_range=span)),
        float(structural_similarity(right, found, data_range=span)),
    )


def rmse(volume: torch.Tensor, truth: torch.Tensor, where: torch.Tensor | None = None) -> float:
    """The root of the mean squared error, of all voxels or of those in the mask `where`."""
    error = (volume - truth) if where is None else (volume - truth)[where]
    return float(error.square().mean().sqrt())


def near(grid: Grid, points: torch.Tensor, radius: float, device: torch.device | str = "cpu") -> torch.Tensor:
    """The voxels within `radius` mm of one of `points` (n, 3) as x, y, z in mm: a mask (z, y, x)."""
    z, y, x = (grid.axis(axis, device) for axis in range(3))
    mask = torch.zeros(grid.voxels, dtype=torch.bool, device=device)
    for point in points.tolist():
        squares = ((x - point[0]) ** 2)[None, None, :] + ((y - point[1]) ** 2)[None, :, None]
        mask |= squares + ((z - point[2]) ** 2)[:, None, None] <= radius**2
    return mask


def centre_of(volume: torch.Tensor, grid: Grid, where: torch.Tensor, threshold: float) -> torch.Tensor:
    """The centre (x, y, z) in mm of what is above `threshold` within a mask, each voxel counted by how far it is above.

    Unknown (NaN) where nothing is.
    """
    weight = (volume - threshold).clamp(min=0) * where
    z, y, x = (grid.axis(axis, volume.device) for axis in range(3))
    total = weight.sum()
    return (
        torch.stack([(weight.sum((0, 1)) * x).sum(), (weight.sum((0, 2)) * y).sum(), (weight.sum((1, 2)) * z).sum()])
        / total
    )
