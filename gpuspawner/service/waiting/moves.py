"""Where a session may be moved: parked on its card, and back on another one."""

from __future__ import annotations

from collections.abc import Sequence

from gpuspawner.errors import Conflict, GPUSpawnerError, NotFound
from gpuspawner.fleet.base import CardState, Fleet, Grant
from gpuspawner.fleet.placement import place
from gpuspawner.service.policy.book import View
from gpuspawner.share import GPUShare


def why_not_there(share: GPUShare, grant: Grant | None, view: View, state: CardState) -> str | None:
    """Why a session that holds `grant` and asks for `share` cannot go to a card now; None where it can. `view`: what
    its user may have."""
    if grant is None or grant.ended or share.cards != 1 or len(grant.cards) != 1:
        return "Only a session on one card is moved."
    here = grant.cards[0]
    if state.card.uuid == here.uuid:
        return "It runs here."
    if state.card.model != here.model:
        return f"It is another model ({state.card.model}, not {here.model})."
    if state.cordoned:
        return f"Nothing starts on this card now: {state.cordoned}"
    forbidden = view.why_not(share, [state])
    if forbidden is not None:
        return forbidden
    try:
        place(GPUShare(share.eighths), [state])
    except GPUSpawnerError as error:
        return error.message
    return None


def places(
    share: GPUShare, grant: Grant | None, view: View, states: Sequence[CardState]
) -> list[tuple[CardState, str | None]]:
    """Every card with why the session cannot go there; those where it can first, the fullest of them first."""
    found = [(state, why_not_there(share, grant, view, state)) for state in states]
    return sorted(found, key=lambda each: (each[1] is not None, each[0].free_eighths, each[0].node, each[0].card.index))


def check(share: GPUShare, fleet: Fleet, session: str, view: View, card: str) -> None:
    """Whether a session can go to a card now. Raises NotFound, Conflict."""
    states = fleet.cards([card])
    if not states:
        raise NotFound("There is no card of that uuid in this fleet.", field="card", given=card)
    reason = why_not_there(share, fleet.grant(session), view, states[0])
    if reason is not None:
        raise Conflict(reason, code="no_room", field="card", given=card)
