"""A crowd of processes in one session, some killed: never a byte over by the driver's own figure, and nothing left."""

from __future__ import annotations

from pathlib import Path

from bench import exactness
from support.limits import CUDA, cards, outside, wait_until

from gpuspawner.node.limits import abi, measure


def test_a_crowd_never_gets_a_byte_over_and_leaves_nothing(tmp_path: Path) -> None:
    with cards(tmp_path / "cards", "1*h100-80gb") as made:
        [context] = measure.context_bytes(made.driver()).values()
        limit = 32 * context + (32 << 20)  # room for half of them to have a context
        with outside(tmp_path, made) as out:
            out.limit(abi.CardLimit(made.uuids()[0], 1, limit, context))
            found = exactness.crowd(tmp_path, made.driver().cuda, out.environment, 64)
            assert found.killed > 0
            assert found.ended > 0
            assert limit - (1 << 20) <= found.peak <= limit
            wait_until(lambda: made.used() == 0, "the card's being empty")
            assert out.server(CUDA).run("info()") == [limit - context, limit]
            [row] = out.usage()
            assert row.bytes == context
