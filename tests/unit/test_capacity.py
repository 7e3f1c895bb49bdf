"""The rule of what a card publishes, by example; what it is for stands in test_protocol.py."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuspawner.capacity import Allocation, Charge, Key, check_grow, published, requestable, room, start
from gpuspawner.errors import NoRoom
from gpuspawner.share import FRACTIONS


def charge(name: str, promised: int, limit: int, charged: int | None = None, *, held: bool = False) -> Charge:
    return Charge(Key(name, "s"), promised, limit, limit if charged is None else charged, held)


def test_a_grown_session_lowers_what_is_published_and_a_shrunk_one_raises_it() -> None:
    assert published([]) == 8
    assert published([charge("a", 2, 2)]) == 8
    assert published([charge("a", 2, 4)]) == 6
    assert published([charge("a", 4, 1)]) == 11
    assert published([charge("a", 2, 2)], {Key("a", "s"): 8}) == 2


def test_what_has_ended_counts_until_its_memory_is_gone_and_its_promise_no_longer() -> None:
    assert published([charge("a", 4, 0, 4, held=True)]) == 4
    assert published([charge("a", 1, 0, 8, held=True), charge("b", 1, 1, 8)], {Key("b", "s"): 8}) == 0


def test_a_policy_names_no_value_beyond_the_capacity() -> None:
    assert requestable(11) == [1, 2, 4, 8]
    assert requestable(3) == [1, 2]
    assert requestable(0) == []


def test_a_start_waits_for_ended_ones_and_is_refused_for_live_ones() -> None:
    assert start([charge("a", 4, 4)], 4) == "fits"
    assert start([charge("a", 4, 0, 6, held=True)], 4) == "wait"
    assert start([charge("a", 4, 6), charge("b", 1, 0, 1, held=True)], 4) == "refused"


def test_a_grow_leaves_room_for_who_is_starting() -> None:
    here = [charge("a", 2, 2), charge("b", 2, 2)]
    known = [Allocation(each.key, each.promised) for each in here]
    check_grow(here, here[0].key, 6, known)
    with pytest.raises(
        NoRoom,
        match=r"can have 1/2 of its card now: the rest .*, 1/4 of it by sessions that are starting\. 3/4 does not fit",
    ):
        check_grow(here, here[0].key, 6, [*known, Allocation(Key("c", "s"), 2)])


@pytest.mark.parametrize(
    ("promised", "limit", "charged", "held"), [(0, 1, 1, False), (1, 2, 1, False), (1, 9, 9, False), (1, 1, 1, True)]
)
def test_a_charge_that_cannot_be_is_refused(promised: int, limit: int, charged: int, held: bool) -> None:
    with pytest.raises(ValueError, match="not a charge"):
        Charge(Key("a", "s"), promised, limit, charged, held)


shares = st.sampled_from(FRACTIONS)


@given(st.lists(st.tuples(shares, shares, st.booleans()), max_size=8), st.lists(shares, max_size=4))
def test_the_scheduler_is_left_with_what_is_free(given: list[tuple[int, int, bool]], starting: list[int]) -> None:
    """published - what allocated claims promise = 8 - charged - promised to those that start."""
    charges: list[Charge] = []
    for at, (promised, charged, held) in enumerate(given):
        if charged <= room(charges):
            charges.append(charge(str(at), promised, 0 if held else charged, charged, held=held))
    promised_all = sum(each.promised for each in charges if not each.held) + sum(starting)
    assert published(charges) - promised_all == room(charges) - sum(starting)
