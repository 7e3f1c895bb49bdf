"""The fleet and the queue as a `Board`, upon which `gpuspawner.queue` decides."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from gpuspawner.errors import Unavailable
from gpuspawner.fleet.base import CardState, Fleet, Grant
from gpuspawner.queue import CLASSES, Board, CardRoom, Rules, Waiting
from gpuspawner.service.policy.book import Book
from gpuspawner.service.tables import SessionRow
from gpuspawner.service.waiting.entries import Entry
from gpuspawner.share import EIGHTHS_PER_CARD, FRACTIONS, GPUShare


@dataclass
class Scene:
    """A board, the cards that are on it, and why those who wait and are not on it cannot be served now."""

    board: Board
    cards: dict[str, CardState]
    aside: dict[str, str] = field(default_factory=dict)
    #: Cards that are cut into slices: what fits there only the fleet can say.
    cut: list[CardState] = field(default_factory=list)


def scene(
    fleet: Fleet,
    book: Book,
    sessions: Iterable[SessionRow],
    rows: Mapping[str, Entry],
    waiting: Iterable[Entry],
    now: float,
    unwilling: Collection[str] = (),
) -> Scene:
    """What there is at `now` (seconds). `rows`: of the queue, by session. `waiting`: those of them who can be served.
    `unwilling`: sessions that could not be made smaller or larger a moment ago."""
    states = [state for state in fleet.cards() if state.health.state != "failed" and not state.cordoned]
    known = {state.card.uuid: state for state in states if state.fits is None}
    grants = {grant.session: grant for grant in fleet.grants()}
    running: list[tuple[SessionRow, Grant]] = []
    held: Counter[str] = Counter()
    for session in sessions:
        grant = grants.get(session.id)
        if grant is None or grant.ended or not grant.cards or any(card.uuid not in known for card in grant.cards):
            continue
        running.append((session, grant))
        for card in grant.cards:
            held[card.uuid] += grant.eighths_per_card
    found = Scene(
        Board(
            CardRoom(uuid, state.card.model, state.node, min(EIGHTHS_PER_CARD, state.free_eighths + held[uuid]))
            for uuid, state in known.items()
        ),
        known,
        cut=[state for state in states if state.fits is not None],
    )
    asked = [(row, GPUShare.parse(row.share)) for row in waiting]
    most_urgent = min((CLASSES.index(row.kind) for row, _ in asked), default=len(CLASSES))
    for session, grant in running:
        _run(found, fleet, session, grant, rows.get(session.id), now, session.id in unwilling, most_urgent)
    whole_only = frozenset(uuid for uuid, state in known.items() if state.only_whole is not None)
    for row, share in asked:
        _wait(found, book, row, share, whole_only)
    return found


def _run(
    found: Scene,
    fleet: Fleet,
    session: SessionRow,
    grant: Grant,
    row: Entry | None,
    now: float,
    unwilling: bool,
    most_urgent: int,
) -> None:
    uuids = tuple(card.uuid for card in grant.cards)
    if any(found.board.cards[uuid].free < grant.eighths_per_card for uuid in uuids):
        return  # it is changing in this moment; the next look sees it whole
    eighths = grant.eighths_per_card
    share = GPUShare.parse(row.share) if row is not None else GPUShare(eighths * len(uuids))
    if unwilling or share.cards != len(uuids) or share.eighths_per_card < eighths:
        share = GPUShare(eighths * len(uuids))
    started = session.created_ms / 1000
    seconds = row.run_seconds if row is not None else None
    asked = Waiting(session.id, session.user, session.kind, share, started, seconds)
    found.board.wait(asked)
    running = found.board.start(session.id, uuids, eighths, min(started, now))
    running.can_park = False
    if unwilling or any(found.cards[uuid].resize != "live" for uuid in uuids):
        running.least = eighths
    elif CLASSES.index(session.kind) > most_urgent:
        used = fleet.used_bytes(session.id)
        memory = min(card.memory_bytes for card in grant.cards)
        if used is not None:
            running.least = next((each for each in FRACTIONS if memory * each // EIGHTHS_PER_CARD >= used), eighths)


def _wait(found: Scene, book: Book, row: Entry, share: GPUShare, whole_only: frozenset[str]) -> None:
    never: frozenset[str] = frozenset()
    try:
        if not book.policy.open:
            never = book.barred(row.user, share, row.environment, list(found.cards.values()))
    except Unavailable as error:
        found.aside[row.id] = error.message
        return
    if row.card is not None:
        never |= {uuid for uuid in found.cards if uuid != row.card}
    if share.eighths_per_card < EIGHTHS_PER_CARD:
        never |= whole_only
    deadline = None if row.deadline_ms is None else row.deadline_ms / 1000
    found.board.wait(
        Waiting(row.id, row.user, row.kind, share, row.since_ms / 1000, row.run_seconds, deadline, never=never)
    )


def use_of(board: Board, rules: Rules, use: Mapping[str, float], now: float) -> None:
    """Put recent use (eighth-seconds by user) on a board."""
    for user, amount in use.items():
        board.used(user, amount, now, rules)
