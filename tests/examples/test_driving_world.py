"""Worlds of vehicles: the same seed, batches against single runs, growth, memory, and the share they follow."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from gpuspawner_examples.driving import Drive, RingRoad, Spread, StraightRoad, Vehicles, World, pick  # noqa: E402
from gpuspawner_runtime import elastic  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_flatten  # noqa: E402

abi = pytest.importorskip("gpuspawner.node.limits.abi")
CARD = "GPU-6f1c43a2-9d0e-4a57-8d5e-2b1f5f0a77c1"
GIB = 1 << 30


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tensors this small are done sooner by one thread, above all where others compute too."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def same(one: Vehicles, other: Vehicles) -> bool:
    return all(torch.equal(values, getattr(other, name)) for name, values in one.items())


def test_the_same_seed_gives_the_same_traffic_and_another_seed_another() -> None:
    worlds = [World(RingRoad(length=800), 40, places=30, seed=seed) for seed in (3, 3, 4)]
    for world in worlds:
        for _ in range(20):
            world.step()
        world.grow(10)
        world.step()
    assert same(worlds[0].state, worlds[1].state)
    assert torch.equal(worlds[0].seen, worlds[1].seen)
    assert not torch.equal(worlds[0].state.x, worlds[2].state.x)


@pytest.mark.parametrize("road", [StraightRoad(length=400), RingRoad(length=400)])
def test_a_batch_of_roads_is_each_road_by_itself(road: Any) -> None:
    """To rounding: vectors of another length are computed by other instructions at their ends."""
    batch = World(road, 3 * 25, places=25, seed=5, dtype=torch.float64)
    single = []
    for index in range(3):
        alone = World(road, 25, places=25, seed=5, dtype=torch.float64)
        alone.state = batch.state.of(slice(index, index + 1))
        single.append(alone)
    for _ in range(40):
        batch.step()
        for alone in single:
            alone.step()
    for index, alone in enumerate(single):
        for name, values in batch.state.of(slice(index, index + 1)).items():
            torch.testing.assert_close(values, getattr(alone.state, name), rtol=0, atol=1e-9, msg=name)
        torch.testing.assert_close(batch.seen[index], alone.seen[0], rtol=0, atol=1e-6)
    assert (batch.state.target != single[0].state.target[:1]).any(), "the roads differ"


def test_growth_leaves_everybody_else_as_they_were_and_nobody_vanishes() -> None:
    world = World(RingRoad(length=1000), 30, places=60, seed=1)
    for _ in range(45):
        world.step()
    before = world.state
    world.grow(100)
    assert world.vehicles == 130
    assert world.steps == 45
    assert world.state.shape[0] >= 3
    kept = before.present
    for name, values in before.items():
        assert torch.equal(getattr(world.state, name)[:1][kept], values[kept]), name
    for _ in range(45):
        world.step()
    assert world.vehicles == 130
    assert world.crashed == 0
    assert float(world.state.speed[world.state.present].min()) > 0


def test_new_vehicles_get_gaps_and_where_there_are_none_another_road() -> None:
    world = World(RingRoad(lanes=1, length=300), 20, places=20, rays=0)
    world.grow(1)
    assert world.state.present.sum(1).tolist() == [20, 1]
    full = World(StraightRoad(lanes=2, length=200), 10, places=40, rays=0)
    full.grow(30)
    state = full.state
    for road in range(state.shape[0]):
        there = state.present[road]
        x, y = state.x[road][there], state.y[road][there]
        apart = (x[:, None] - x[None]).abs() + 1e9 * ((y[:, None] - y[None]).abs() > 1) + 1e9 * torch.eye(len(x))
        assert float(apart.min()) >= 7.0
    assert full.vehicles == 40


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="places is 100: on this road it must be from 1 to 42"):
        World(RingRoad(lanes=1, length=300), 1, places=100)
    with pytest.raises(ValueError, match="more is -1"):
        World(RingRoad(), 1).grow(-1)


class Peak(TorchDispatchMode):
    """Counts the bytes of tensors that are alive at once, of those that operations make."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for tensor in tree_flatten(result)[0]:
            if isinstance(tensor, torch.Tensor):
                self._add(tensor.untyped_storage())
        return result

    def _add(self, storage: Any) -> None:
        where, size = storage.data_ptr(), storage.nbytes()
        if size == 0 or where in self._known:
            return
        self._known.add(where)
        self.now += size
        self.most = max(self.most, self.now)
        weakref.finalize(storage, self._drop, where, size)

    def _drop(self, where: int, size: int) -> None:
        if where in self._known:
            self._known.discard(where)
            self.now -= size


@pytest.mark.parametrize(("road", "rays"), [(RingRoad(length=3000), 16), (StraightRoad(length=400), 16)])
def test_memory_is_at_most_what_is_said_and_not_far_from_it(road: Any, rays: int) -> None:
    """The straight road is so short that most see each other: the worst case."""
    world = World(road, 800, places=200, rays=rays)
    world.step()
    with Peak() as peak:
        world.step()
    said = world.bytes_for_each * 800 + beside()
    assert peak.most <= said
    assert peak.most >= said / 8
    assert world.fitting(said) == 800
    assert world.fitting(said - 1) == 600
    assert world.fitting(1) == 0


def beside() -> int:
    from gpuspawner_examples.driving import memory

    return memory.bytes_beside()


class Node:
    """What the node does to the limit file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def share(self, eighths: int) -> None:
        abi.write_limits(self.path, [abi.CardLimit(CARD, eighths, eighths * 10 * GIB)])


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    made = Node(tmp_path / "limit")
    made.share(1)
    monkeypatch.setenv("GPUSPAWNER_LIMITS", str(made.path))
    elastic.reset()
    yield made
    elastic.reset()


def test_a_larger_share_is_spread_into_between_two_steps(node: Node) -> None:
    world = World(RingRoad(length=1500), 50, places=50, seed=2)
    with Drive(world) as drive:
        drive.wait(lambda: world.steps >= 5)
        node.share(4)
        drive.wait(lambda: world.vehicles == 200 and drive.log[-1][1] == 200)
        node.share(2)
        last = world.steps
        drive.wait(lambda: world.steps >= last + 5)
        node.share(4)
        drive.wait(lambda: world.steps >= last + 10)
    steps = [step for step, _, _ in drive.log]
    assert steps == list(range(1, len(steps) + 1)), "no step is left out"
    ((at, before, after),) = drive.spread.grown
    assert (before, after) == (50, 200)
    counts = [vehicles for _, vehicles, _ in drive.log]
    assert counts == [50] * at + [200] * (len(counts) - at), "a smaller share makes nobody vanish"


def test_a_share_takes_no_more_vehicles_than_fit(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(RingRoad(length=1500), 50, places=50)
    monkeypatch.setattr(world, "fitting", lambda memory: 100 if memory == int(0.8 * 40 * GIB) else 0)
    spread = Spread(world)
    node.share(4)
    spread.check()
    spread.check()
    assert spread.grown == [(0, 50, 100)]
    spread.close()
    node.share(8)
    spread.check()
    assert world.vehicles == 100


def test_traffic_grows_by_hand_while_it_drives() -> None:
    world = World(RingRoad(length=1500), 20, places=20)
    with Drive(world) as drive:
        drive.grow(30)
        drive.wait(lambda: world.vehicles == 50)


def test_a_step_that_fails_is_told_to_who_drives() -> None:
    world = World(RingRoad(), 10, places=10)
    drive = Drive(world, watch=lambda _: 1 / 0, every=2).start()
    with pytest.raises(ZeroDivisionError):
        drive.wait(lambda: world.steps > 100)
    with pytest.raises(ZeroDivisionError):
        drive.stop()
    assert world.steps == 2


def test_without_a_card_the_processor_computes_and_says_so() -> None:
    device, line = pick()
    if not torch.cuda.is_available():
        assert device.type == "cpu"
        assert line == "computed on the processor: there is no card here that PyTorch can use"
