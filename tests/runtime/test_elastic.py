"""A share that changes under way: the node's own writer changes it, and training follows."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from gpuspawner_runtime import RuntimeFault, elastic, run
from gpuspawner_runtime.elastic import CacheBudget, MicroBatches, Resize
from gpuspawner_runtime.steps import Stepper
from support.common import until
from torch import nn
from torch.utils.data import DataLoader

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT))
abi = pytest.importorskip("gpuspawner.node.limits.abi")

CARD = "GPU-12345678-1234-1234-1234-123456789abc"
GIB = 1 << 30


class Node:
    """What the node does to the limit file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def allow(self, eighths: int, **more: Any) -> None:
        abi.write_limits(self.path, [abi.CardLimit(CARD, eighths, eighths * 10 * GIB, **more)])


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    made = Node(tmp_path / "limit")
    made.allow(2)
    monkeypatch.setenv("GPUSPAWNER_LIMITS", str(made.path))
    elastic.reset()
    yield made
    elastic.reset()


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("GPUSPAWNER_LIMITS", str(tmp_path / "none"))
    elastic.reset()
    yield
    elastic.reset()


def test_the_share_is_read_as_the_node_wrote_it(node: Node) -> None:
    node.allow(4, burst=True)
    assert elastic.shares() == (elastic.Share(CARD, 4, 40 * GIB, burst=True),)
    assert elastic.memory_allowed() == 40 * GIB
    budget = CacheBudget(0.25)
    assert budget.bytes == 10 * GIB
    node.allow(1)
    assert budget.bytes == 10 * GIB // 4


@pytest.mark.parametrize("damage", ["cut", "magic", "version", "sum", "empty"])
def test_a_file_that_cannot_be_believed_is_unknown_and_nothing_breaks(node: Node, damage: str) -> None:
    content = bytearray(node.path.read_bytes())
    if damage == "cut":
        del content[100:]
    elif damage == "empty":
        content.clear()
    else:
        content[{"magic": 0, "version": 8, "sum": 1024 + 40}[damage]] ^= 0xFF
        content[2048 + 40] ^= damage == "sum"
    node.path.write_bytes(content)
    elastic.reset()
    assert elastic.shares() is None
    assert elastic.memory_allowed() is None
    assert elastic.check() is None


def test_without_a_hub_everything_is_unknown_and_nothing_is_called(alone: None) -> None:
    elastic.on_resize(lambda resize: pytest.fail("called"), soon=True)
    assert elastic.shares() is None
    assert CacheBudget(0.5).bytes is None
    assert elastic.check() is None


def test_a_resize_is_heard_at_the_next_update_and_once(node: Node) -> None:
    heard: list[Resize] = []
    elastic.on_resize(heard.append)
    elastic.on_resize(heard.append)
    model = nn.Linear(2, 1)
    stepper = Stepper(model, torch.optim.SGD(model.parameters(), lr=0.1), accumulate=2)
    stepper.step(model(torch.ones(1, 2)).mean())
    node.allow(4)
    assert heard == []
    stepper.step(model(torch.ones(1, 2)).mean())
    assert [(each.memory_before, each.memory_after, each.factor) for each in heard] == [(20 * GIB, 40 * GIB, 2.0)]
    # What changes ten times a second where computing time is lent is no resize.
    abi.move_compute(node.path, {CARD: (900, 0)})
    stepper.step(model(torch.ones(1, 2)).mean())
    stepper.step(model(torch.ones(1, 2)).mean())
    assert len(heard) == 1


def test_soon_means_without_a_step(node: Node) -> None:
    heard, done = [], threading.Event()

    def follow(resize: Resize) -> None:
        heard.append(threading.current_thread())
        done.set()

    elastic.on_resize(follow, soon=True)
    node.allow(8)
    assert done.wait(30)
    assert heard[0] is not threading.main_thread()


def test_a_function_that_fails_is_a_warning_and_the_others_are_called(node: Node) -> None:
    heard: list[Resize] = []

    def breaks(resize: Resize) -> None:
        raise OSError("no")

    elastic.on_resize(breaks)
    elastic.on_resize(heard.append)
    node.allow(4)
    with pytest.warns(UserWarning, match="breaks, called after a resize, failed: OSError: no"):
        elastic.check()
    assert len(heard) == 1


def test_a_cell_that_runs_again_registers_its_function_once(node: Node) -> None:
    notebook: dict[str, Any] = {"__name__": "__main__", "on_resize": elastic.on_resize, "heard": []}
    for _ in range(3):
        exec("@on_resize\ndef follow(resize):\n    heard.append(resize)", notebook)
    node.allow(4)
    elastic.check()
    assert len(notebook["heard"]) == 1


def parts_of(parts: MicroBatches, batch: Any) -> list[int]:
    return [len(part) for part in parts(batch)]


def test_micro_batches_follow_the_memory_and_the_update_stays(node: Node) -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    twin = nn.Linear(3, 1)
    twin.load_state_dict(model.state_dict())
    stepper = Stepper(model, torch.optim.SGD(model.parameters(), lr=0.1))
    plain = Stepper(twin, torch.optim.SGD(twin.parameters(), lr=0.1))
    parts = MicroBatches(stepper, size=8)
    sizes = []
    for eighths in (2, 4, 1, 2):
        node.allow(eighths)
        elastic.check()
        batch = torch.randn(20, 3)
        sizes.append([])
        for part in parts(batch):
            sizes[-1].append(len(part))
            result = stepper.step(model(part).square().mean())
        assert result.updated
        plain.step(twin(batch).square().mean())
        torch.testing.assert_close(model.weight, twin.weight, rtol=1e-5, atol=1e-6)
    assert sizes == [[6, 7, 7], [10, 10], [4, 4, 4, 4, 4], [6, 7, 7]]
    assert (stepper.updates, plain.updates) == (4, 4)


def test_a_run_counts_the_loaders_batches_and_resumes_exactly(alone: None) -> None:
    def trained(name: str, stop_after: int | None) -> tuple[list[torch.Tensor], int, int]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.2), nn.Linear(4, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        data = torch.randn(40, 3, generator=torch.Generator().manual_seed(1))
        with run(name, model=model, optimizer=optimizer, loader=DataLoader(data, 8, shuffle=True), epochs=2) as r:
            parts = MicroBatches(r.stepper, size=3)
            for number, batch in enumerate(r, 1):
                for part in parts(batch):
                    r.step(model(part).square().mean())
                if number == stop_after:
                    break
        return [parameter.detach() for parameter in model.parameters()], r.steps, r.stepper.updates

    straight, steps, updates = trained("straight", None)
    assert (steps, updates) == (10, 10)
    trained("stopped", 3)
    again, steps, _ = trained("stopped", None)
    assert steps == 10
    assert all(torch.equal(one, other) for one, other in zip(straight, again, strict=True))


def test_batches_of_several_tensors_are_split_alike(alone: None) -> None:
    model = nn.Linear(1, 1)
    parts = MicroBatches(Stepper(model, torch.optim.SGD(model.parameters(), lr=0.1)), size=2)
    batch = {"x": torch.arange(4), "pair": (torch.ones(4, 2), torch.tensor(7)), "name": "a"}
    first, second = parts(batch)
    assert first["x"].tolist() == [0, 1]
    assert second["x"].tolist() == [2, 3]
    assert second["pair"][0].shape == (2, 2)
    assert int(second["pair"][1]) == 7
    assert second["name"] == "a"
    with pytest.raises(RuntimeFault, match=r"\[2, 3\] samples"):
        list(parts((torch.ones(2), torch.ones(3))))


def test_one_that_is_gone_follows_no_more(node: Node) -> None:
    model = nn.Linear(1, 1)
    parts = MicroBatches(Stepper(model, torch.optim.SGD(model.parameters(), lr=0.1)), size=2)
    gone = weakref.ref(parts)
    del parts
    gc.collect()
    assert gone() is None
    node.allow(4)
    elastic.check()
    assert elastic._listeners == []


def test_before_a_shrink_caches_are_freed_and_the_answer_says_how_much(alone: None) -> None:
    cache = [bytearray(1000)]

    def free() -> int:
        size = sum(map(len, cache))
        cache.clear()
        return size

    def breaks() -> None:
        raise OSError("no")

    elastic.on_shrink(free)
    elastic.on_shrink(breaks)
    elastic.on_shrink(free)
    freed = elastic.free_caches()
    assert freed.bytes == 1000
    assert freed.failures == ("breaks could not free its cache: OSError: no",)
    assert elastic.free_caches().bytes == 0


def test_the_lab_extension_asks_and_hears_how_much(alone: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "extensions" / "lab"))
    lab = pytest.importorskip("gpuspawner_lab.shrink")
    elastic.on_shrink(lambda: 3 << 30)
    try:
        failures, freed = lab.free_and_count()
        assert (failures, freed) == ([], 3 << 30)
        elastic.on_shrink(lambda: 1 / 0)
        failures, freed = lab.free_and_count()
        assert "ZeroDivisionError" in failures[0]
    finally:
        lab.forget(elastic._for_the_extension)


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True])
def test_sizes_are_checked(alone: None, wrong: Any) -> None:
    with pytest.raises(RuntimeFault, match="size"):
        MicroBatches(None, size=wrong)


def test_parts_of_memory_are_checked() -> None:
    for wrong in (0, 1.5, -1):
        with pytest.raises(RuntimeFault, match="part"):
            CacheBudget(wrong)


def test_only_functions_can_be_called() -> None:
    for register in (elastic.on_resize, elastic.on_shrink):
        with pytest.raises(TypeError, match="takes a function"):
            register(3)  # type: ignore[type-var]


def test_the_thread_ends_when_nobody_listens_any_more(node: Node) -> None:
    def follow(resize: Resize) -> None:
        return None

    elastic.on_resize(follow, soon=True)
    thread = elastic._thread
    assert thread is not None
    assert thread.is_alive()
    elastic.forget(follow)
    until(lambda: not thread.is_alive(), 30, "the thread to end")
