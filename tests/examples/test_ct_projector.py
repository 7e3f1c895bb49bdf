"""Projections: against exact integrals, against scikit-image, and each the transpose of the backprojection."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from gpuspawner_examples.ct.geometry import ConeBeam, Grid, ParallelBeam, even
from gpuspawner_examples.ct.phantoms import Ellipsoids, shepp_logan, thorax
from gpuspawner_examples.ct.projector import backproject, project
from skimage.transform import radon


def one(centre: tuple[float, float, float], half: tuple[float, float, float], turned: float = 0.0) -> Ellipsoids:
    return Ellipsoids(
        torch.tensor([[centre]]), torch.tensor([[half]]), torch.tensor([turned]).deg2rad(), torch.tensor([0.02])
    )


def cone(views: int, rows: int = 20, columns: int = 30) -> ConeBeam:
    return ConeBeam(1000.0, 1500.0, rows, columns, 12.0, even(views))


def test_the_exact_integral_through_the_middle_is_the_diameter() -> None:
    # one pixel on the axis of rotation: the central ray, for sources on x and on y
    beam = ConeBeam(1000.0, 1500.0, 1, 1, 1.0, even(4))
    found = one((0, 0, 0), (30, 50, 10)).integrals(beam)[:, 0, 0]
    assert found.tolist() == pytest.approx([0.02 * 60, 0.02 * 100] * 2, rel=1e-5)
    turned = one((0, 0, 0), (30, 50, 10), 90).integrals(beam)[:, 0, 0]
    assert turned.tolist() == pytest.approx([0.02 * 100, 0.02 * 60] * 2, rel=1e-5)


def test_the_exact_integral_of_a_ball_is_its_chord() -> None:
    beam = ParallelBeam(21, 2.0, even(5, math.pi))
    found = one((0, 0, 0), (15, 15, 15)).parallel_integrals(beam, height=9.0)
    chord = 0.02 * 2 * (15**2 - 9**2 - beam.offsets() ** 2).clamp(min=0).sqrt()
    np.testing.assert_allclose(found, chord.expand(5, -1), atol=1e-3)


def test_a_shadow_falls_where_it_must() -> None:
    # a ball at y = 60, z = 30; seen from +x it is 1.5 times as far out on the detector, columns along y, rows along z
    beam = ConeBeam(1000.0, 1500.0, 41, 41, 10.0, even(1))
    exact = one((0, 60, 30), (10, 10, 10)).integrals(beam)[0]
    row, column = divmod(int(exact.argmax()), 41)
    assert (beam.rows_at()[row], beam.columns_at()[column]) == (pytest.approx(45, abs=5), pytest.approx(90, abs=5))


@pytest.mark.parametrize(("body", "width"), [(shepp_logan(100.0), 200), (thorax(0.4), 330)], ids=["head", "thorax"])
def test_projections_of_voxels_are_the_exact_integrals(body: Ellipsoids, width: float) -> None:
    errors = []
    for edge in (32, 64):
        grid = Grid((edge, edge, edge), width / edge)
        beam = ConeBeam(1000.0, 1500.0, 32, 48, 9.0, even(12))
        found, exact = project(body.voxels(grid), grid, beam), body.integrals(beam)
        errors.append(float((found - exact).norm() / exact.norm()))
    assert errors[1] < 0.08  # of the head most is its thin skull
    assert errors[1] < errors[0], "finer voxels are nearer to the truth"


BEAMS = {
    "cone": (Grid((10, 12, 14), 9.0), cone(9)),
    "fan": (Grid((1, 12, 14), 9.0), cone(9, rows=1)),
    "parallel": (Grid((3, 12, 14), 9.0), ParallelBeam(21, 9.0, even(9, math.pi))),
}


@pytest.mark.parametrize("name", BEAMS)
def test_backprojection_is_the_transpose_of_projection(name: str) -> None:
    grid, beam = BEAMS[name]
    chance = torch.Generator().manual_seed(0)
    volume = torch.rand(grid.voxels, generator=chance)
    projections = project(volume, grid, beam)
    given = torch.rand(projections.shape, generator=chance)
    there = (projections.double() * given).sum()
    back = (volume.double() * backproject(given, grid, beam)).sum()
    assert float(there) == pytest.approx(float(back), rel=1e-6)


def test_parallel_projections_are_those_of_scikit_image() -> None:
    edge = 129  # odd, so that both have the axis in the middle of a voxel
    grid = Grid((1, edge, edge), 1.0)
    image = shepp_logan(60.0).voxels(Grid((1, edge, edge), 1.0))
    degrees = np.arange(0, 180, 4.0)
    theirs = radon(image[0].numpy(), theta=degrees, circle=True)
    # scikit-image turns the image, whose rows run downwards
    angles = torch.from_numpy(-np.deg2rad(degrees + 90))
    found = project(image, grid, ParallelBeam(edge, 1.0, angles))[:, 0].numpy().T
    assert np.linalg.norm(found - theirs) / np.linalg.norm(theirs) < 0.01
    assert found.sum() == pytest.approx(theirs.sum(), rel=1e-3)
