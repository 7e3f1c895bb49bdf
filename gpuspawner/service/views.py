"""What the REST API shows of cards, sessions and ledger rows."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import asdict
from datetime import UTC, datetime

from gpuspawner.card import Card
from gpuspawner.fleet.base import CardState, Fleet, Grant, Launch, Notice, PodLaunch
from gpuspawner.fleet.placement import could_ever_start, most_together, no_room_reason, places, places_for_several
from gpuspawner.queue.forecast import Expected
from gpuspawner.service import schemas
from gpuspawner.service.cordons import THIS_MACHINE, Cordon
from gpuspawner.service.policy.book import View
from gpuspawner.service.store import LIVE
from gpuspawner.service.tables import AuditRow, LedgerRow, SessionRow
from gpuspawner.service.tariff import Pricing, money
from gpuspawner.share import EIGHTHS_PER_CARD, FRACTIONS, MAX_CARDS, GPUShare, eighths_text

#: From weak to strong.
_GRADES = ("advisory", "guarded", "kernel")
DEFAULT_SHARE = GPUShare(2)


def iso(milliseconds: int) -> str:
    """Milliseconds since the epoch as ISO 8601, UTC."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds")


def offers(
    fleet: Fleet,
    tariff: Pricing,
    view: View,
    choose_card: bool = False,
    burst: bool = False,
    waits: Callable[[GPUShare], Expected | None] = lambda _share: None,
) -> schemas.Offers:
    """All shares of all models that the fleet has now, and its cards where one may be chosen. What the `view` does not
    allow is there too, with the reason. `waits`: what is expected of a wait for a share."""
    by_model: dict[str, list[CardState]] = {}
    states = fleet.cards()
    for state in states:
        by_model.setdefault(state.card.model, []).append(state)
    found = []
    for model, cards in sorted(by_model.items()):
        several = [EIGHTHS_PER_CARD * count for count in range(2, min(most_together(cards), MAX_CARDS) + 1)]
        memory = min(state.card.memory_bytes for state in cards)
        shared = any(state.only_whole is None for state in cards)
        for eighths in (*(FRACTIONS if shared else (EIGHTHS_PER_CARD,)), *several):
            share = GPUShare(eighths)
            one = share.cards == 1
            theirs, forbidden = _theirs(view, share, cards)
            free = 0 if forbidden else _places(share, theirs)
            can_wait = forbidden is None and (free > 0 or could_ever_start(share, theirs))
            expected = waits(GPUShare(eighths, model)) if can_wait and not free else None
            found.append(
                schemas.Offer(
                    share=share.amount,
                    model=model,
                    model_name=cards[0].card.name,
                    eighths=eighths,
                    cards=share.cards,
                    memory_bytes=share.memory_bytes(memory),
                    price_per_hour=tariff.price(share, model),
                    available=free > 0,
                    free_places=free,
                    allowed=forbidden is None,
                    reason=None if free else forbidden or no_room_reason(share, theirs),
                    can_wait=can_wait,
                    expected_wait_low_seconds=None if expected is None else round(expected.low),
                    expected_wait_seconds=0 if free else None if expected is None else round(expected.high),
                    default=False,
                    grade=min((state.grade for state in cards), key=_GRADES.index),
                    resize=cards[0].resize if one else "none",
                )
            )
    default = next((offer for offer in found if offer.available and offer.eighths == DEFAULT_SHARE.eighths), None)
    default = default or next((offer for offer in found if offer.available), None)
    if default is not None:
        default.default = True
    return schemas.Offers(
        simulated=any(state.card.simulated for state in states),
        grade=fleet.grade,
        currency=tariff.currency,
        offers=found,
        burst=burst,
        cards=[_free_card(state) for state in states if view.of(GPUShare(0), [state])] if choose_card else None,
        environments=view.environments,
        no_card_reason=view.why_not(GPUShare(0), ()),
    )


def _theirs(view: View, share: GPUShare, cards: list[CardState]) -> tuple[list[CardState], str | None]:
    """The cards on which a person may start `share`, and why they may not where there is none."""
    theirs = view.of(share, cards)
    if not theirs:
        return [], view.why_not(share, cards)
    if share.cards > 1 and len(theirs) < len(cards):
        return [], "The policy does not give all cards, and several together need all of them."
    return theirs, None


def _places(share: GPUShare, cards: list[CardState]) -> int:
    if share.cards > 1:
        return places_for_several(share, cards)
    free_of_each = Counter(state.free_eighths for state in cards if state.fits is None)
    return places(share, free_of_each, [state for state in cards if state.fits is not None])


def _free_card(state: CardState) -> schemas.FreeCard:
    card = state.card
    return schemas.FreeCard(
        uuid=card.uuid,
        index=card.index,
        name=card.name,
        model=card.model,
        free_eighths=state.free_eighths,
        health=_health(state),
    )


def _health(state: CardState) -> schemas.CardHealth:
    return schemas.CardHealth(state=state.health.state, reason=state.health.reason)


def session(
    row: SessionRow, fleet: Fleet, tariff: Pricing, notices: Collection[Notice] = (), view: View | None = None
) -> schemas.Session:
    """A session as the API shows it. `view`: what its user may have; None where everything."""
    grant = fleet.grant(row.id)
    states = {state.card.uuid: state for state in fleet.cards(json.loads(row.cards))}
    cards = [state.card for state in states.values()]
    share = GPUShare.parse(row.share)
    live = grant is not None and not grant.ended and row.state in LIVE
    return schemas.Session(
        id=row.id,
        user=row.user,
        server=row.server,
        state=row.state,
        share=share.amount,
        eighths=share.eighths,
        model=row.model,
        cards=[
            schemas.CardInfo(uuid=card.uuid, index=card.index, name=card.name, health=_health(states[card.uuid]))
            for card in cards
        ],
        memory_bytes=share.memory_bytes(cards[0].memory_bytes) if live and cards else 0,
        memory_used_bytes=fleet.used_bytes(row.id) if grant else 0,
        price_per_hour=tariff.price(share, row.model),
        currency=tariff.currency,
        grade=min((states[card.uuid].grade for card in cards), key=_GRADES.index, default=fleet.grade),
        simulated=any(card.simulated for card in cards),
        created=iso(row.created_ms),
        ended=None if row.ended_ms is None else iso(row.ended_ms),
        end_reason=row.end_reason,
        resizable=live and share.cards == 1 and bool(cards) and states[cards[0].uuid].resize == "live",
        resize=states[cards[0].uuid].resize if share.cards == 1 and cards else "none",
        free_eighths=states[cards[0].uuid].free_eighths if live and share.cards == 1 and cards else None,
        options=_options(grant, states[cards[0].uuid], share, tariff, view)
        if grant and live and share.cards == 1 and cards
        else [],
        burst=grant.burst if grant and live else row.burst,
        notices=[_notice(each) for each in notices],
        kind=row.kind,
    )


def no_growth(session: schemas.Session, why: str | None) -> schemas.Session:
    """The same session where its user may have no more than it holds, and why."""
    for option in session.options if why is not None else ():
        if option.available and GPUShare.parse(option.share).eighths > session.eighths:
            option.available, option.reason = False, why
    return session


def no_start(offers: schemas.Offers, why: str | None) -> schemas.Offers:
    """The same offers to somebody who may start nothing with a card, and why."""
    for offer in offers.offers if why is not None else ():
        offer.available = offer.allowed = offer.can_wait = offer.default = False
        offer.free_places, offer.reason = 0, why
        offer.expected_wait_low_seconds = offer.expected_wait_seconds = None
    return offers


def started(session: schemas.Session, launch: Launch | PodLaunch) -> schemas.Started:
    """A new session and how to start it."""
    if isinstance(launch, PodLaunch):
        return schemas.Started(session=session, launch=None, pod=schemas.PodInfo(**asdict(launch)))
    return schemas.Started(session=session, launch=schemas.LaunchInfo(**asdict(launch)))


def _options(
    grant: Grant, state: CardState, current: GPUShare, tariff: Pricing, view: View | None
) -> list[schemas.ResizeOption]:
    free = state.free_eighths + grant.eighths_per_card
    card: Card = state.card
    others = f"Others hold {eighths_text(EIGHTHS_PER_CARD - free)} of this card."
    refused = "The card is out of service." if state.health.state == "failed" else others
    if state.cordoned:
        refused = f"Nothing grows on this card now: {state.cordoned}"
    found = []
    for eighths in FRACTIONS if state.only_whole is None else (EIGHTHS_PER_CARD,):
        share = GPUShare(eighths)
        forbidden = view.why_not(share, [state]) if view is not None and eighths > current.eighths else None
        fits = eighths <= free and forbidden is None
        found.append(
            schemas.ResizeOption(
                share=share.amount,
                memory_bytes=share.memory_bytes(card.memory_bytes),
                price_per_hour=tariff.price(share, card.model),
                available=fits,
                reason=None if fits else forbidden or refused,
                current=eighths == current.eighths,
                live=state.resize == "live",
            )
        )
    return found


def _notice(notice: Notice) -> schemas.Notice:
    deadline = None if notice.deadline is None else iso(round(notice.deadline * 1000))
    return schemas.Notice(
        code=notice.code, message=notice.message, since=iso(round(notice.since * 1000)), deadline=deadline
    )


def cordon(cordon: Cordon) -> schemas.Cordon:
    """A card or a node that gets nothing new, as the API shows it."""
    ends = None if cordon.ends_ms is None else iso(cordon.ends_ms)
    return schemas.Cordon(
        kind=cordon.kind,
        name=cordon.name or THIS_MACHINE,
        by=cordon.by,
        reason=cordon.reason,
        since=iso(cordon.since_ms),
        ends=ends,
    )


def holders(fleet: Fleet) -> schemas.Holders:
    """Every process that the driver shows on the fleet's cards."""
    return schemas.Holders(
        processes=[
            schemas.Holder(card=each.card, pid=each.pid, memory_used_bytes=each.used_bytes, session=each.session)
            for each in fleet.holders()
        ]
    )


def entry(row: LedgerRow) -> schemas.LedgerEntry:
    """A ledger row as the API shows it."""
    return schemas.LedgerEntry(
        id=row.id,
        at=iso(row.at_ms),
        session=row.session,
        user=row.user,
        server=row.server,
        kind=row.kind,
        model=row.model,
        cards=json.loads(row.cards),
        eighths=row.eighths,
        price_per_hour=money(row.price_micros),
        currency=row.currency,
        actor=row.actor,
        reason=row.reason,
        node=row.node,
        energy_mj=row.energy_mj,
        co2_ug=row.co2_ug,
        method=row.method,
        amount=None if row.amount_micros is None else money(row.amount_micros),
        corrects=row.corrects,
        project=row.project,
        hash=row.hash,
    )


def audit_entry(row: AuditRow) -> schemas.AuditEntry:
    """A row of the audit as the API shows it."""
    try:
        asked = json.loads(row.asked)
    except ValueError:  # it was cut
        asked = row.asked
    return schemas.AuditEntry(
        id=row.id,
        at=iso(row.at_ms),
        actor=row.actor,
        action=row.action,
        user=row.user,
        session=row.session,
        asked=asked,
        why=row.why,
        source=row.source,
        status=row.status,
        hash=row.hash,
    )
