"""Which cards a new share goes to. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import attrgetter

from gpuspawner.errors import NoRoom, NotFound
from gpuspawner.fleet.base import CardState
from gpuspawner.share import EIGHTHS_PER_CARD, GPUShare, eighths_text

_order = attrgetter("node", "card.index", "card.uuid")


def place(share: GPUShare, cards: Sequence[CardState], card: str | None = None) -> tuple[str, ...]:
    """The uuids for `share`: on the fullest card that still fits it, so that whole cards stay whole, or on `card`.

    Raises NotFound for a model or card that the fleet does not have, NoRoom when nothing fits now.
    """
    if not share.cards:
        return ()
    if card is not None:
        cards = [state for state in cards if state.card.uuid == card]
        if not cards:
            raise NotFound("There is no card of that uuid in this fleet.", field="card", given=card)
    matching = cards if share.model is None else [state for state in cards if state.card.is_model(share.model)]
    if not matching:
        models = sorted({state.card.model for state in cards})
        raise NotFound(
            f"No card of model {share.model!r} here. This fleet has: {', '.join(models) or 'no card'}."
            if share.model
            else "This fleet has no card.",
            field="model",
            given=share.model,
            allowed=models,
        )
    need = share.eighths_per_card
    fitting = [state for state in matching if state.places(need) and (share.cards == 1 or _joins(state, share))]
    if len(fitting) < share.cards:
        raise NoRoom(no_room_reason(share, matching), field="share", given=str(share))
    whole = Counter(_island(state) for state in fitting if state.free_eighths == EIGHTHS_PER_CARD)
    if share.cards == 1:
        return (_tightest(fitting, whole).card.uuid,)
    fitting.sort(key=lambda state: (state.free_eighths, whole[_island(state)], *_order(state)))
    together = _together(share.cards, fitting)
    if not together:
        raise NoRoom(no_room_reason(share, matching), field="share", given=str(share))
    return tuple(state.card.uuid for state in together[: share.cards])


def _tightest(fitting: Sequence[CardState], whole: Mapping[tuple[str, int | None], int]) -> CardState:
    """The fullest card; of whole ones, or ones as full, that with the fewest whole cards beside it. A fleet has
    thousands, so they are narrowed down and not sorted."""
    least = min(map(attrgetter("free_eighths"), fitting))
    fitting = [state for state in fitting if state.free_eighths == least]
    if whole:
        fewest = min(whole[_island(state)] for state in fitting)
        fitting = [state for state in fitting if whole[_island(state)] == fewest]
    return min(fitting, key=_order)


def _island(state: CardState) -> tuple[str, int | None]:
    return state.node, state.island


def _together(count: int, fitting: Sequence[CardState]) -> list[CardState]:
    """Cards of one node and one model, of which there are `count` at least: where it goes those of one island, and of
    several such groups the smallest. Empty where there are none."""
    islands: defaultdict[tuple[str, str, int], list[CardState]] = defaultdict(list)
    nodes: defaultdict[tuple[str, str], list[CardState]] = defaultdict(list)
    for state in fitting:
        nodes[state.node, state.card.model].append(state)
        if state.island is not None:
            islands[state.node, state.card.model, state.island].append(state)
    for groups in (islands.values(), nodes.values()):
        enough = [group for group in groups if len(group) >= count]
        if enough:
            return min(enough, key=len)
    return []


def places(share: GPUShare, free: Mapping[int, int], cut: Sequence[CardState] = ()) -> int:
    """How many sessions could start with `share`, a part of a card or a whole one, now on cards of one model, of which
    `free` counts how many have how many eighths free. `cut`: those of the cards whose free eighths do not say it
    (slices, whole cards); they are not in `free`."""
    need = share.eighths_per_card
    found = sum(eighths // need * count for eighths, count in free.items())
    return found + sum(state.places(need) for state in cut)


def places_for_several(share: GPUShare, states: Sequence[CardState]) -> int:
    """How many sessions could start with several whole cards each; those of one session are in one node."""
    whole = Counter(state.node for state in states if state.places(EIGHTHS_PER_CARD) and _joins(state, share))
    return sum(count // share.cards for count in whole.values())


def could_ever_start(share: GPUShare, states: Sequence[CardState], card: str | None = None) -> bool:
    """Whether `share` would fit if nobody held anything of the cards that are in service."""
    free = [
        replace(state, free_eighths=EIGHTHS_PER_CARD, fits=None)
        for state in states
        if (state.only_whole is None or share.eighths_per_card == EIGHTHS_PER_CARD)
        and state.health.state != "failed"
        and not state.cordoned
    ]
    try:
        return bool(place(share, free, card))
    except (NoRoom, NotFound):
        return False


def _joins(state: CardState, share: GPUShare) -> bool:
    """Whether a card can be one of those of a session; slices cannot be joined with other cards."""
    return share.cards == 1 or state.resize != "restart"


def most_together(states: Sequence[CardState]) -> int:
    """The most cards of any node."""
    return max(Counter(state.node for state in states).values(), default=0)


def no_room_reason(share: GPUShare, cards: Sequence[CardState]) -> str:
    """Why `share` does not fit on these cards now, in a sentence."""
    if share.eighths < EIGHTHS_PER_CARD:
        shared = [state for state in cards if state.only_whole is None]
        if cards and not shared:
            return cards[0].only_whole or ""
        cards = shared
    failed = [state.health.reason for state in cards if state.health.state == "failed"]
    if len(failed) == len(cards):
        which = "The card is" if len(cards) == 1 else "All such cards are"
        return f"{which} out of service. {failed[0] or ''}".strip()
    cards = [state for state in cards if state.health.state != "failed"]
    if all(state.cordoned for state in cards):
        return f"Nothing new is started on it: {cards[0].cordoned}"
    cards = [state for state in cards if not state.cordoned]
    most = most_together(cards)
    where = "" if most == len(cards) else " in one node"
    if share.cards > most:
        return f"There {'is' if most == 1 else 'are'} only {most} such card{'s'[: most != 1]}{where}."
    if share.eighths_per_card == EIGHTHS_PER_CARD:
        free = max(Counter(state.node for state in cards if state.free_eighths == EIGHTHS_PER_CARD).values(), default=0)
        if free == 0:
            return "No whole card is free now."
        return f"Only {free} whole card{' is' if free == 1 else 's are'} free{where} now."
    if all(state.resize == "restart" for state in cards):
        return "No slice of that size fits beside those that the card is cut into now."
    free = max(state.free_eighths for state in cards)
    if free == 0:
        return "All of it is in use now."
    return f"The most that is free on one card now is {eighths_text(free)}."
