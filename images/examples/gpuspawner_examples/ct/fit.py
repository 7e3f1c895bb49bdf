"""Which size of reconstruction a share of a card holds, said before it begins, and anew when the share changes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from gpuspawner_runtime import elastic

from gpuspawner_examples.ct.breathing import machine
from gpuspawner_examples.ct.geometry import ConeBeam, Grid

#: Voxels along the longest edge.
SIZES = (24, 32, 40, 48, 64, 80, 96, 128, 160, 192, 256, 320, 384, 512)
_WIDTH = 336.0  # mm: the thorax and some air
_FLOAT = 4
#: PyTorch and the driver's context have some of a card before anything is computed.
_CONTEXT = 700 * 2**20


@dataclass(frozen=True)
class Size:
    """What one reconstruction by phases takes: voxels along x (three quarters along y and z), views, phases."""

    edge: int
    phases: int = 8

    @property
    def views(self) -> int:
        """Projections of the turn: four for each voxel along x, and 30 for each phase at least."""
        return max(30 * self.phases, 4 * self.edge)

    @property
    def grid(self) -> Grid:
        """The voxels."""
        depth = self.edge * 3 // 4
        return Grid((depth, depth, self.edge), _WIDTH / self.edge)

    @property
    def beam(self) -> ConeBeam:
        """The views."""
        return machine(self.edge, self.grid.spacing, self.views)

    @property
    def bytes(self) -> int:
        """Most memory that scan and reconstruction hold at once, in bytes.

        Counted: the volumes of all phases twice (stacking them holds both), twelve of one volume (prior, weights of
        four subsets, and what lowering the variation needs), the projections four times, and
        for one view the places at which its rays cross the planes, five times.
        """
        depth, _, edge = self.grid.voxels
        volume = depth * depth * edge
        views, rows, columns = self.beam.shape
        view = edge * rows * columns
        return _FLOAT * ((2 * self.phases + 24) * volume + 4 * views * rows * columns + 5 * view)

    def __str__(self) -> str:
        z, y, x = self.grid.voxels
        return f"{x} x {y} x {z} voxels of {self.grid.spacing:.1f} mm, {self.views} projections, {self.phases} phases"


def largest(memory: int, phases: int = 8) -> Size:
    """The largest size that fits into `memory` bytes; ValueError where not even the smallest does."""
    fitting = [size for edge in SIZES if (size := Size(edge, phases)).bytes <= memory]
    if not fitting:
        raise ValueError(f"memory is {memory} bytes: the smallest size needs {Size(SIZES[0], phases).bytes}.")
    return fitting[-1]


@dataclass(frozen=True)
class Fit:
    """A device, the size to compute there now, and a line that says why."""

    device: torch.device
    size: Size
    line: str


def fit(edge: int | None = None, phases: int = 8) -> Fit:
    """The device and the size for the share of now: ask again after a resize.

    On a card the largest size that the share's memory holds. On the processor, which a share does not make faster,
    `edge` voxels for an eighth of a card, and as many more as the share has more: a share twice as large has twice the
    voxels. `edge` limits the size on a card as well.
    """
    shares = elastic.shares()
    eighths = sum(share.eighths for share in shares) if shares else 0
    if torch.cuda.is_available():
        memory = elastic.memory_allowed() or torch.cuda.mem_get_info()[1]
        size = largest(memory - _CONTEXT, phases)
        said = f"{memory / 2**30:.1f} GiB of card memory hold {size}"
        if edge is not None and size.edge > edge:
            size = Size(edge, phases)
            said += f"; asked for are {edge} voxels"
        return Fit(torch.device("cuda"), size, f"On a card: {said}, which need {_gib(size)}.")
    wanted = (edge or 48) * max(1, eighths) ** (1 / 3)
    size = Size(min(SIZES, key=lambda each: abs(each - wanted)), phases)
    line = f"On the processor, since PyTorch finds no card that computes: {size}, which need {_gib(size)}."
    if shares:
        memory = sum(share.memory_bytes for share in shares)
        line += f" The share is {eighths}/8; its {memory / 2**30:.1f} GiB would hold {largest(memory, phases)}."
    return Fit(torch.device("cpu"), size, line)


def _gib(size: Size) -> str:
    mib = size.bytes / 2**20
    return f"{mib:.0f} MiB" if mib < 1024 else f"{mib / 1024:.1f} GiB"
