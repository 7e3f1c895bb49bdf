"""Which cards a new share goes to. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpuspawner.errors import NoRoom, NotFound
from gpuspawner.fleet.base import CardState
from gpuspawner.share import EIGHTHS_PER_CARD, GPUShare, eighths_text


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
    matching = [state for state in cards if state.card.is_model(share.model)]
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
    fitting = sorted(
        (state for state in matching if state.places(need) and _joins(state, share)),
        key=lambda state: (state.free_eighths, state.card.index, state.card.uuid),
    )
    if share.cards > 1:
        # Cards of one session are of one model, whichever has enough.
        by_model: dict[str, list[CardState]] = {}
        for state in fitting:
            by_model.setdefault(state.card.model, []).append(state)
        fitting = next((group for group in by_model.values() if len(group) >= share.cards), [])
    if len(fitting) < share.cards:
        raise NoRoom(no_room_reason(share, matching), field="share", given=str(share))
    return tuple(state.card.uuid for state in fitting[: share.cards])


def places(share: GPUShare, free: Mapping[int, int], cut: Sequence[CardState] = ()) -> int:
    """How many sessions could start with `share` now on cards of one model, of which `free` counts how many have how
    many eighths free. `cut`: those of the cards whose free eighths do not say it (slices, whole cards); they are not in
    `free`."""
    need = share.eighths_per_card
    found = sum(eighths // need * count for eighths, count in free.items())
    return (found + sum(state.places(need) for state in cut if _joins(state, share))) // share.cards


def _joins(state: CardState, share: GPUShare) -> bool:
    """Whether a card can be one of those of a session; slices cannot be joined with other cards."""
    return share.cards == 1 or state.resize != "restart"


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
    if share.cards > len(cards):
        return f"There {'is' if len(cards) == 1 else 'are'} only {len(cards)} such card{'s'[: len(cards) != 1]}."
    if share.eighths_per_card == 8:
        free = sum(state.free_eighths == 8 for state in cards)
        if free == 0:
            return "No whole card is free now."
        return f"Only {free} whole card{' is' if free == 1 else 's are'} free now."
    if all(state.resize == "restart" for state in cards):
        return "No slice of that size fits beside those that the card is cut into now."
    most = max(state.free_eighths for state in cards)
    if most == 0:
        return "All of it is in use now."
    return f"The most that is free on one card now is {eighths_text(most)}."
