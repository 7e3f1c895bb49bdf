"""Which cards a share goes to."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuspawner.card import GIB, Card
from gpuspawner.errors import NoRoom, NotFound
from gpuspawner.fleet.base import CardState
from gpuspawner.fleet.placement import no_room_reason, place, places, places_for_several
from gpuspawner.share import FRACTIONS, GPUShare


def cards(*free: int, name: str = "NVIDIA H100 80GB HBM3", first: int = 0) -> list[CardState]:
    return [CardState(Card(f"{name}-{i}", i, name, 80 * GIB), eighths) for i, eighths in enumerate(free, first)]


def test_the_fullest_card_that_fits_is_taken() -> None:
    assert place(GPUShare(1), cards(8, 1, 4)) == ("NVIDIA H100 80GB HBM3-1",)
    assert place(GPUShare(2), cards(8, 1, 4)) == ("NVIDIA H100 80GB HBM3-2",)
    assert place(GPUShare(8), cards(8, 1, 4)) == ("NVIDIA H100 80GB HBM3-0",)


def test_several_cards_are_whole_and_of_one_model() -> None:
    mixed = [*cards(8, 7), *cards(8, 8, name="NVIDIA A100-SXM4-80GB", first=2)]
    assert place(GPUShare(16), mixed) == ("NVIDIA A100-SXM4-80GB-2", "NVIDIA A100-SXM4-80GB-3")
    with pytest.raises(NoRoom):
        place(GPUShare(24), mixed)


@pytest.mark.parametrize(
    ("share", "free", "sentence"),
    [
        (GPUShare(8), (7, 7), "No whole card is free now."),
        (GPUShare(16), (8, 7), "Only 1 whole card is free now."),
        (GPUShare(4), (3, 1), "The most that is free on one card now is 3/8."),
        (GPUShare(1), (0, 0), "All of it is in use now."),
        (GPUShare(32), (8, 8), "There are only 2 such cards."),
        (GPUShare(16), (8,), "There is only 1 such card."),
    ],
)
def test_a_refusal_says_why(share: GPUShare, free: tuple[int, ...], sentence: str) -> None:
    with pytest.raises(NoRoom) as caught:
        place(share, cards(*free))
    assert caught.value.message == sentence == no_room_reason(share, cards(*free))


def test_an_unknown_model_names_those_that_are_there() -> None:
    with pytest.raises(NotFound, match="h100-80gb") as caught:
        place(GPUShare(1, "a100"), cards(8))
    assert caught.value.allowed == ["h100-80gb"]
    with pytest.raises(NotFound, match="no card"):
        place(GPUShare(1), [])


def how_many(share: GPUShare, states: list[CardState]) -> int:
    if share.cards > 1:
        return places_for_several(share, states)
    return places(share, Counter(state.free_eighths for state in states))


@given(st.sampled_from([*FRACTIONS, 16, 24]), st.lists(st.integers(0, 8), min_size=1, max_size=6))
def test_placed_exactly_when_there_is_a_place_and_only_where_it_fits(eighths: int, free: list[int]) -> None:
    share, states = GPUShare(eighths), cards(*free)
    left = {state.card.uuid: state.free_eighths for state in states}
    try:
        taken = place(share, states)
    except NoRoom:
        assert how_many(share, states) == 0
    else:
        assert how_many(share, states) > 0
        assert len(set(taken)) == share.cards
        assert all(left[uuid] >= share.eighths_per_card for uuid in taken)


def test_a_named_card_is_taken_or_refused() -> None:
    states = cards(8, 1, 4)
    name = states[0].card.uuid
    assert place(GPUShare(1), states, name) == (name,)
    with pytest.raises(NoRoom, match="1/8"):
        place(GPUShare(2), states, states[1].card.uuid)
    with pytest.raises(NotFound, match="uuid") as refused:
        place(GPUShare(1), states, "GPU-no-such-card")
    assert refused.value.field == "card"


def test_no_card_needs_no_card() -> None:
    assert place(GPUShare(0), []) == ()


def in_nodes(*nodes: tuple[int, ...], islands: tuple[int | None, ...] = ()) -> list[CardState]:
    """Cards with so many eighths free, node by node."""
    return [
        replace(state, node=f"n{at}", island=islands[index] if islands else None)
        for at, free in enumerate(nodes)
        for index, state in enumerate(cards(*free, first=8 * at))
    ]


def taken(share: GPUShare, states: list[CardState]) -> list[int]:
    return [int(uuid.rpartition("-")[2]) for uuid in place(share, states)]


def test_several_cards_are_of_one_node() -> None:
    assert taken(GPUShare(16), in_nodes((8,), (8,), (8, 8, 8))) == [16, 17]
    assert places_for_several(GPUShare(16), in_nodes((8,), (8,), (8, 8, 8), (8, 8))) == 2
    with pytest.raises(NoRoom, match="Only 1 whole card is free in one node now"):
        place(GPUShare(16), in_nodes((8, 4), (8, 4)))
    with pytest.raises(NoRoom, match="There are only 2 such cards in one node"):
        place(GPUShare(24), in_nodes((8, 8), (8, 8)))


def test_several_cards_are_of_the_smallest_island_that_has_enough() -> None:
    states = in_nodes((8, 8, 8, 8, 8, 8), islands=(0, 0, 0, 3, 3, None))
    assert taken(GPUShare(16), states) == [3, 4]
    assert taken(GPUShare(24), states) == [0, 1, 2]
    assert len(set(taken(GPUShare(40), states))) == 5


def test_a_whole_card_is_taken_where_the_fewest_whole_ones_are() -> None:
    assert taken(GPUShare(8), in_nodes((8, 8, 8), (8, 4), (8, 8))) == [8]
    assert taken(GPUShare(1), in_nodes((8, 8, 8), (8, 0), (8, 8))) == [8]
    assert taken(GPUShare(1), in_nodes((8, 8, 8), (8, 4), (8, 2))) == [17]
