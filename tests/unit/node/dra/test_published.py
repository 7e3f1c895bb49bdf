"""The sum that the scheduler sees of each card."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuspawner import capacity
from gpuspawner.node.dra.claims import Part, Prepared
from gpuspawner.node.dra.published import Device, charges, key_of
from gpuspawner.node.health import OK, Health
from gpuspawner.node.records import Record

CARDS = {"GPU-1": "gpu-1", "GPU-2": "gpu-2"}
FAILED = Health("failed", "XID 79: fallen off the bus.")


def record(
    session: str, count: int, state: str = "live", *, over: int = 0, cards: tuple[str, ...] = ("GPU-1",)
) -> Record:
    return Record(session, "ann", cards, count, state, False, 0.0, over=over)  # type: ignore[arg-type]


def claim(session: str, promised: int, devices: tuple[str, ...] = ("gpu-1",)) -> Prepared:
    parts = tuple(Part("card", "node", device, f"share-{device}", promised) for device in devices)
    return Prepared(session, "hub", session, f"uid-{session}", parts, ())


def eighths(records: list[Record], claims: dict[str, Prepared], targets: dict[str, int]) -> dict[str, int]:
    growing = {key_of(claims[name].uid, claims[name].parts[0]): count for name, count in targets.items()}
    found = charges(CARDS, records, claims)
    return {uuid: capacity.published(each.values(), growing) for uuid, each in found.items()}


@pytest.mark.parametrize(
    ("records", "promised", "targets", "expected"),
    [
        ([], {}, {}, 8),
        ([record("a", 2)], {"a": 2}, {}, 8),  # as promised: the scheduler's sum is right by itself
        ([record("a", 4)], {"a": 2}, {}, 6),  # grown
        ([record("a", 1)], {"a": 4}, {}, 11),  # shrunk
        ([record("a", 1, over=3)], {"a": 4}, {}, 8),  # shrunk by force and still in use
        ([record("a", 2)], {"a": 2}, {"a": 8}, 2),  # about to grow
        ([record("a", 4)], {"a": 2}, {"a": 1}, 6),  # a target below what is charged changes nothing
        ([record("a", 4, "held")], {"a": 4}, {}, 4),  # ended: the promise is over, its memory is not free
        ([record("a", 4, "held")], {}, {}, 4),
        ([record("a", 2), record("b", 1, "held")], {"a": 4, "b": 1}, {}, 9),
    ],
)
def test_the_sum(records: list[Record], promised: dict[str, int], targets: dict[str, int], expected: int) -> None:
    claims = {session: claim(session, count) for session, count in promised.items()}
    assert eighths(records, claims, targets) == {"GPU-1": expected, "GPU-2": 8}


def test_several_whole_cards_count_on_each() -> None:
    both = ("GPU-1", "GPU-2")
    held, live = record("a", 8, "held", cards=both), record("a", 8, cards=both)
    claims = {"a": claim("a", 8, ("gpu-1", "gpu-2"))}
    assert eighths([live], claims, {}) == {"GPU-1": 8, "GPU-2": 8}
    assert eighths([held], claims, {}) == {"GPU-1": 0, "GPU-2": 0}


@given(st.lists(st.tuples(st.sampled_from([1, 2, 4]), st.integers(0, 8), st.integers(0, 8), st.booleans()), max_size=8))
def test_what_the_scheduler_may_add_is_what_is_free(sessions: list[tuple[int, int, int, bool]]) -> None:
    """Published less the promises of live claims, which is all the scheduler adds, is eight less what is charged."""
    records, claims, total = [], {}, 0
    for number, (promised, in_force, over, live) in enumerate(sessions):
        if total + in_force + over > 8:
            continue
        total += in_force + over
        name = f"s{number}"
        records.append(record(name, in_force, "live" if live else "held", over=over))
        claims[name] = claim(name, promised)
    published = eighths(records, claims, {})["GPU-1"]
    promises = sum(claims[r.session].parts[0].eighths for r in records if r.state == "live")
    assert published - promises == 8 - total


@pytest.mark.parametrize(
    ("count", "values"), [(0, None), (1, "1"), (3, "1 2"), (4, "1 2 4"), (8, "1 2 4 8"), (13, "1 2 4 8")]
)
def test_no_value_beyond_what_there_is_may_be_asked_for(count: int, values: str | None) -> None:
    capacity = Device("gpu-1", {}).shown(count, OK, 0.0)["capacity"]["eighths"]
    assert capacity["value"] == str(count)
    assert capacity.get("requestPolicy") == (
        None if values is None else {"default": "1", "validValues": values.split()}
    )


def test_a_failed_card_is_tainted_and_no_other() -> None:
    assert "taints" not in Device("gpu-1", {}).shown(8, OK, 0.0)
    assert "taints" not in Device("gpu-1", {}).shown(8, Health("warning", "Hot."), 0.0)
    taint = Device("gpu-1", {}).shown(8, FAILED, 0.0)["taints"][0]
    assert (taint["effect"], taint["timeAdded"]) == ("NoSchedule", "1970-01-01T00:00:00Z")
