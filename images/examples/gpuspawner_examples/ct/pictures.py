"""The pictures of the notebook: slices, errors, the tumour's path, and a body drawn in three dimensions."""

from __future__ import annotations

import ctypes.util
import os
from collections.abc import Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pyvista
import torch

from gpuspawner_examples.ct.geometry import Grid

#: Attenuation in 1/mm from black to white: from air to a little above soft tissue.
GREY = (0.0, 0.028)


def coronal(volume: torch.Tensor, grid: Grid, y: float = 12.0) -> Any:
    """The slice from left to right and feet to head at `y` mm, head up."""
    at = int((grid.axis(1) - y).abs().argmin())
    return np.asarray(volume[:, at].cpu().flip(0))


def slices(rows: dict[str, Sequence[torch.Tensor]], titles: Sequence[str], grid: Grid, y: float = 12.0) -> Any:
    """A figure with a row for each method and a column for each phase."""
    figure, axes = plt.subplots(
        len(rows), len(titles), figsize=(2.3 * len(titles), 1.85 * len(rows)), squeeze=False, layout="constrained"
    )
    for number, (name, volumes) in enumerate(rows.items()):
        line: Any = axes[number]
        for axis, volume, title in zip(line, volumes, titles, strict=True):
            _image(axis, coronal(volume, grid, y), GREY, "gray", grid)
            if number == 0:
                axis.set_title(title, fontsize=9)
        line[0].set_ylabel(name, fontsize=9)
    return figure


def errors(rows: dict[str, torch.Tensor], truth: torch.Tensor, grid: Grid, y: float = 12.0) -> Any:
    """A figure of reconstruction less truth, in percent of water's attenuation."""
    figure, axes = plt.subplots(1, len(rows), figsize=(3.1 * len(rows), 2.5), squeeze=False, layout="constrained")
    for axis, (name, volume) in zip(axes[0], rows.items(), strict=True):
        off = 100 * (coronal(volume, grid, y) - coronal(truth, grid, y)) / 0.0193
        shown = _image(axis, off, (-50, 50), "RdBu_r", grid)
        axis.set_title(name, fontsize=9)
    figure.colorbar(shown, ax=axes[0].tolist(), label="% of water", shrink=0.8)
    return figure


def sinogram(projections: torch.Tensor, phases: torch.Tensor) -> Any:
    """A figure of one row of the detector over all views, and the phase of each."""
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(7.5, 3.2), width_ratios=(3, 1), sharey=True, layout="constrained"
    )
    shown = left.imshow(projections[:, projections.shape[1] // 2].cpu(), aspect="auto", cmap="gray", origin="lower")
    left.set(xlabel="column of the detector", ylabel="view")
    figure.colorbar(shown, ax=left, label="sum of attenuation")
    right.plot(phases, np.arange(len(phases)), ".", markersize=3)
    right.set(xlabel="phase of the breath", xlim=(0, 1))
    return figure


def path(true: torch.Tensor, found: torch.Tensor) -> Any:
    """A figure of the tumour's centre (phases, 3) in mm over the breath."""
    figure, axis = plt.subplots(figsize=(7.2, 3.0), layout="constrained")
    phases = np.arange(len(found)) / len(found)
    finer = np.arange(len(true)) / len(true)
    for number, name in ((2, "up and down"), (1, "front and back")):
        (line,) = axis.plot(finer, true[:, number] - true[0, number], label=f"{name}, as it is")
        moved = found[:, number] - found[0, number]
        axis.plot(phases, moved, "o", color=line.get_color(), label=f"{name}, as reconstructed")
    axis.set(xlabel="phase of the breath", ylabel="way of the tumour's centre, mm", xlim=(0, 1))
    figure.legend(fontsize=7, loc="outside right upper")
    axis.grid(alpha=0.3)
    return figure


def body(volume: torch.Tensor, grid: Grid, window: tuple[int, int] = (560, 440)) -> Any:
    """The chest drawn in three dimensions, by pyvista without a display: an image (rows, columns, 3).

    Skin as glass, lungs blue, bone ivory, the tumour red. Raises OSError without a display and without libEGL.
    """
    image = pyvista.ImageData(dimensions=tuple(reversed(grid.voxels)), spacing=(grid.spacing,) * 3)
    image.origin = tuple(float(grid.axis(axis)[0]) for axis in (2, 1, 0))
    image["attenuation"] = volume.cpu().numpy().ravel()
    if "DISPLAY" not in os.environ:
        if ctypes.util.find_library("EGL") is None:  # VTK would end the process
            raise OSError("Drawing in three dimensions needs libEGL, as Mesa has it (on Debian: libegl1).")
        # else VTK looks for a display first, and says so
        os.environ.setdefault("VTK_DEFAULT_OPENGL_WINDOW", "vtkEGLRenderWindow")
    plotter = pyvista.Plotter(off_screen=True, window_size=list(window))
    plotter.set_background("white")
    for name, level, colour, opacity in _surfaces(volume, grid, image):
        surface = image.contour([level], scalars=name)
        if surface.n_points:
            smooth = surface.smooth_taubin(n_iter=20)
            plotter.add_mesh(smooth, color=colour, opacity=opacity, specular=0.3, smooth_shading=True)
    plotter.camera_position = [(-260, -640, 150), (0, 0, 0), (0, 0, 1)]
    plotter.camera.zoom(1.25)
    drawn = plotter.screenshot(return_img=True)
    plotter.close()
    return np.asarray(drawn)


def _surfaces(volume: torch.Tensor, grid: Grid, image: Any) -> list[tuple[str, float, str, float]]:
    """What is drawn: the name of the data on `image`, the level of its surface, colour and opacity."""
    z, y, x = torch.meshgrid(*(grid.axis(axis) for axis in range(3)), indexing="ij")
    found = volume.cpu()
    inside = (x / 147) ** 2 + ((y + 2) / 94) ** 2 + (z / 105) ** 2 < 1
    beside = inside & (x.abs() > 30)
    low = torch.where(inside, 0.0193 - found, torch.zeros(()))  # the lungs, by what they lack
    tumour = torch.where(beside & ((x + 76) ** 2 + (y - 12) ** 2 + (z + 4) ** 2 < 32**2), found, torch.zeros(()))
    filled = torch.where(inside, torch.full((), 0.0193), found)
    for name, values in (("lungs", low), ("tumour", tumour), ("skin", filled)):
        image[name] = values.numpy().ravel()
    return [  # from the inside to the outside, since what is seen through is drawn over what is there
        ("attenuation", 0.0265, "#efe6cf", 1.0),
        ("tumour", 0.0125, "#c62828", 1.0),
        ("lungs", 0.0085, "#6d9fd0", 0.35),
        ("skin", 0.010, "#d9a98c", 0.2),
    ]


def _image(axis: Any, values: Any, limits: tuple[float, float], colours: str, grid: Grid) -> Any:
    axis.set_xticks([])
    axis.set_yticks([])
    return axis.imshow(values, cmap=colours, vmin=limits[0], vmax=limits[1], interpolation="nearest")
