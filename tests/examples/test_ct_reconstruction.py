"""Reconstructions: filtered backprojection against scikit-image and the truth, and phases against all views at once."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from gpuspawner_examples.ct.breathing import Scan, machine, scan
from gpuspawner_examples.ct.filtered import Window, fbp, fdk, filtered, ramp, spans
from gpuspawner_examples.ct.fit import Size
from gpuspawner_examples.ct.geometry import ConeBeam, Grid, ParallelBeam, even
from gpuspawner_examples.ct.iterative import by_phase, lower_variation, of_all_views, os_sart
from gpuspawner_examples.ct.phantoms import shepp_logan, thorax, tumour_path
from gpuspawner_examples.ct.projector import project
from gpuspawner_examples.ct.quality import centre_of, near, quality, rmse
from skimage.transform import iradon, radon


def test_parallel_reconstruction_is_no_worse_than_that_of_scikit_image() -> None:
    edge = 129
    grid = Grid((1, edge, edge), 1.0)
    image = shepp_logan(60.0).voxels(grid, oversampling=4)
    degrees = np.arange(0, 180, 1.0)
    theirs = iradon(radon(image[0].numpy(), theta=degrees, circle=True), theta=degrees, circle=True)
    beam = ParallelBeam(edge, 1.0, torch.from_numpy(-np.deg2rad(degrees + 90)))
    found = fbp(project(image, grid, beam), grid, beam)
    circle = near(grid, torch.zeros((1, 3)), edge / 2)  # theirs is 0 outside
    assert rmse(found, image, circle) <= rmse(torch.from_numpy(theirs)[None], image, circle)


def test_filtered_backprojection_is_linear() -> None:
    grid, beam = Grid((2, 24, 24), 8.0), ParallelBeam(33, 8.0, even(40, math.pi))
    one, other = torch.rand((2, 40, 2, 33), generator=torch.Generator().manual_seed(0))
    together = fbp(2 * one - 3 * other, grid, beam)
    torch.testing.assert_close(together, 2 * fbp(one, grid, beam) - 3 * fbp(other, grid, beam), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("window", ["ram-lak", "shepp-logan", "cosine", "hann"])
def test_every_window_keeps_slow_changes_and_only_they_damp_fast_ones(window: Window) -> None:
    response, plain = ramp(256, 1.0, window), ramp(256, 1.0)
    frequencies = torch.fft.rfftfreq(256)
    np.testing.assert_allclose(plain[1:], frequencies[1:], atol=2e-3)
    assert response[4] == pytest.approx(float(plain[4]), rel=0.01)
    assert (response[-1] < 0.7 * plain[-1]) == (window != "ram-lak")


def test_an_unknown_window_is_refused() -> None:
    with pytest.raises(ValueError, match="window is 'box': it must be one of ram-lak"):
        filtered(torch.zeros(1, 1, 8), 1.0, "box")  # type: ignore[arg-type]


def test_the_middle_slice_of_a_cone_is_right() -> None:
    size = Size(48)
    truth, found = thorax(0.0).voxels(size.grid), fdk(thorax(0.0).integrals(size.beam), size.grid, size.beam)
    middle = size.grid.voxels[0] // 2
    assert quality(found[middle], truth[middle]).ssim > 0.95
    # in the middle of heart and lung, away from edges
    for x, y in ((6.0, -20.0), (78.0, 0.0)):
        where = near(size.grid, torch.tensor([[x, y, 0.0]]), 14)
        assert float(found[where].mean()) == pytest.approx(float(truth[where].mean()), rel=0.03)


def test_a_fan_is_a_cone_with_one_row() -> None:
    grid = Grid((1, 65, 65), 3.4)
    beam = ConeBeam(1000.0, 1500.0, 1, 97, 4.0, even(180))
    truth = shepp_logan(100.0).voxels(grid, oversampling=4)
    exact = shepp_logan(100.0).integrals(beam)
    found = fdk(exact, grid, beam, "hann")
    inside = near(grid, torch.tensor([[0.0, 20.0, 0.0]]), 20)
    assert float(found[inside].mean()) == pytest.approx(float(truth[inside].mean()), rel=0.03)


def test_uneven_views_stand_for_the_angles_around_them() -> None:
    angles = torch.tensor([0.0, 3.0, 1.0])
    turn = 2 * math.pi
    np.testing.assert_allclose(spans(angles), [(1 + turn - 3) / 2, (2 + turn - 3) / 2, 1.5], rtol=1e-6)


def test_iterations_come_nearer_and_need_fewer_views() -> None:
    size = Size(32)
    beam = machine(32, size.grid.spacing, 20)
    truth, exact = thorax(0.0).voxels(size.grid), thorax(0.0).integrals(beam)
    errors: list[float] = []
    os_sart(exact, size.grid, beam, iterations=5, variation=5e-5, after=lambda _, v: errors.append(rmse(v, truth)))
    assert errors[-1] < 0.7 * errors[0]
    assert errors[-1] < 0.7 * rmse(fdk(exact, size.grid, beam), truth)


def test_variation_is_lowered_and_the_mean_stays() -> None:
    noisy = torch.randn((8, 9, 10), generator=torch.Generator().manual_seed(0))
    calm = lower_variation(noisy, 0.3)
    assert float(calm.diff(dim=0).abs().sum()) < 0.7 * float(noisy.diff(dim=0).abs().sum())
    assert float(calm.mean()) == pytest.approx(float(noisy.mean()), abs=1e-6)


@pytest.fixture(scope="module")
def taken() -> Scan:
    return scan(Size(32).beam)


def test_views_are_sorted_by_phase(taken: Scan) -> None:
    bins = taken.bins(8)
    assert sorted(torch.cat(bins).tolist()) == list(range(len(taken.phases)))
    for number, views in enumerate(bins):
        away = (taken.phases[views] - number / 8 + 0.5) % 1 - 0.5
        assert float(away.abs().max()) <= 1 / 16 + 1e-6
        assert len(views) >= 20


def test_phases_show_the_tumour_that_all_views_together_smear(taken: Scan) -> None:
    """Within 22 mm of its path the error of all views at once is more than 1.8 times that of the phase breathed in."""
    size = Size(32)
    bins = taken.bins(8)
    prior = of_all_views(taken.projections, size.grid, size.beam)
    drawn, out = by_phase(taken.projections, size.grid, size.beam, [bins[4], bins[0]], prior=prior)
    around = near(size.grid, tumour_path(torch.arange(8) / 8), 22)
    for found, phase, factor in ((drawn, 0.5, 1.8), (out, 0.0, 1.5)):
        truth = thorax(phase).voxels(size.grid)
        assert rmse(prior, truth, around) > factor * rmse(found, truth, around)
        assert rmse(found, truth) < rmse(prior, truth), "nor is the rest of the chest worse"
    way = centre_of(out, size.grid, around, 0.0125) - centre_of(drawn, size.grid, around, 0.0125)
    assert float(way[2]) == pytest.approx(16, abs=5.3), "mm towards the feet, to half a voxel"
