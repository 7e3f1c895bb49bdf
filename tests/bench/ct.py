"""Projecting and reconstructing a slice by `gpuspawner_examples.ct`, over scikit-image's `radon` and `iradon`.

The head phantom in 257 x 257 pixels, 360 views over half a turn, the same ramp filter; one thread for both, on the
processor. By turns, each of the two first as often; the median of the ratios of neighbours. The error is against the
phantom's pixels, within the circle that both reconstruct, and must be no larger than scikit-image's.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from gpuspawner_examples.ct.filtered import fbp
from gpuspawner_examples.ct.geometry import Grid, ParallelBeam, even
from gpuspawner_examples.ct.phantoms import shepp_logan
from gpuspawner_examples.ct.projector import project
from gpuspawner_examples.ct.quality import near, rmse
from skimage.transform import iradon, radon

PIXELS, VIEWS, ROUNDS = 257, 360, 10


def timed(call: Callable[[], object]) -> float:
    """Seconds that a call takes."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def main() -> None:
    """Print both errors and times, and the ratio last."""
    torch.set_num_threads(1)
    grid = Grid((1, PIXELS, PIXELS), 1.0)
    image = shepp_logan(PIXELS / 2.1).voxels(grid, oversampling=4)
    pixels = image[0].numpy()
    beam = ParallelBeam(PIXELS, 1.0, even(VIEWS, np.pi))
    degrees = np.rad2deg(beam.angles.numpy())

    def ours() -> torch.Tensor:
        return fbp(project(image, grid, beam), grid, beam)

    def theirs() -> np.ndarray:
        return iradon(radon(pixels, theta=degrees, circle=True), theta=degrees, circle=True)

    circle = near(grid, torch.zeros((1, 3)), PIXELS / 2)
    largest = float(image.max())
    our_error, their_error = (
        rmse(found, image, circle) / largest for found in (ours(), torch.from_numpy(theirs())[None])
    )
    pairs = []
    for number in range(ROUNDS):
        if number % 2:
            mine, other = timed(ours), timed(theirs)
        else:
            other, mine = timed(theirs), timed(ours)
        pairs.append((mine, other))
    mine, other = (1000 * statistics.median(times) for times in zip(*pairs, strict=True))
    print(f"{PIXELS} x {PIXELS} pixels, {VIEWS} views, one thread")
    print(f"here          {mine:8.1f} ms, error {our_error:.5f} of the largest value")
    print(f"scikit-image  {other:8.1f} ms, error {their_error:.5f}")
    if our_error > their_error:
        raise SystemExit("The error is larger than scikit-image's: the times do not compare.")
    print(statistics.median(mine / other for mine, other in pairs), "ratio")


if __name__ == "__main__":
    main()
