"""What a size needs is what it takes, and the size follows the share."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from gpuspawner_examples.ct import fit as fitting
from gpuspawner_examples.ct.breathing import scan
from gpuspawner_examples.ct.fit import SIZES, Size, fit, largest
from gpuspawner_examples.ct.iterative import by_phase, of_all_views
from gpuspawner_runtime import elastic
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gpuspawner.node.limits import abi

CARD = "GPU-12345678-1234-1234-1234-123456789abc"


class Held(TorchDispatchMode):
    """Bytes of all tensors that live, as each operation leaves them; `most` is the largest sum."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self._seen: dict[int, int] = {}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **(kwargs or {}))
        for each in tree_leaves(made):
            if isinstance(each, torch.Tensor):
                self._count(each.untyped_storage())
        return made

    def _count(self, storage: Any) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._seen:
            return
        self._seen[key] = size
        self.now += size
        self.most = max(self.most, self.now)
        weakref.finalize(storage, self._gone, key)

    def _gone(self, key: int) -> None:
        self.now -= self._seen.pop(key)


@pytest.mark.parametrize("edge", [24, 32])
def test_a_run_holds_no_more_than_was_said_and_not_much_less(edge: int) -> None:
    size = Size(edge, phases=4)
    with Held() as held:
        taken = scan(size.beam)
        prior = of_all_views(taken.projections, size.grid, size.beam)
        by_phase(taken.projections, size.grid, size.beam, taken.bins(4), prior=prior, iterations=1)
    assert size.bytes / 3 < held.most <= size.bytes


def test_the_largest_size_that_fits_is_taken() -> None:
    for edge in (48, 128):
        needed = Size(edge).bytes
        assert largest(needed).edge == edge
        assert largest(needed - 1).edge == SIZES[SIZES.index(edge) - 1]
    with pytest.raises(ValueError, match="memory is 1000 bytes: the smallest size needs"):
        largest(1000)


@pytest.fixture
def allow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    """What the node does to the share of a card with 80 GiB."""

    def write(eighths: int) -> None:
        abi.write_limits(tmp_path / "limit", [abi.CardLimit(CARD, eighths, eighths * 10 * 2**30)])

    write(1)
    monkeypatch.setenv("GPUSPAWNER_LIMITS", str(tmp_path / "limit"))
    elastic.reset()
    yield write
    elastic.reset()


@pytest.mark.skipif(torch.cuda.is_available(), reason="with a card the share's memory decides, in the test beside")
def test_on_the_processor_a_larger_share_has_more_voxels_and_views(allow: Callable[[int], None]) -> None:
    before = fit(32)
    assert before.size.edge == 32
    assert before.line.startswith("On the processor, since PyTorch finds no card that computes: 32 x 24 x 24 voxels")
    assert "The share is 1/8; its 10.0 GiB would hold" in before.line
    allow(8)
    after = fit(32)
    assert after.size.edge == 64
    assert after.size.views > before.size.views


def test_on_a_card_the_memory_decides(allow: Callable[[int], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting.torch.cuda, "is_available", lambda: True)
    small = fit()
    allow(4)
    large = fit()
    assert small.size.bytes < 10 * 2**30 < large.size.bytes < 40 * 2**30
    assert str(large.device) == "cuda"
    assert large.line.startswith(f"On a card: 40.0 GiB of card memory hold {large.size}")
    assert fit(48).size.edge == 48
