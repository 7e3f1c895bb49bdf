"""Where somebody could run: on what is free, on what others can spare, on what the less urgent would leave."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from gpuspawner.queue.board import Board, CardRoom, Running
from gpuspawner.queue.rules import CLASSES, Rules
from gpuspawner.share import FRACTIONS, GPUShare


@dataclass(frozen=True)
class Plan:
    """Cards for somebody, and what has to go for it: `shrinks` says what each keeps, `parks` who is stopped."""

    cards: tuple[str, ...]
    shrinks: tuple[tuple[str, int], ...] = ()
    parks: tuple[str, ...] = ()


def free_place(board: Board, share: GPUShare, barred: Collection[str] = ()) -> tuple[str, ...] | None:
    """Cards with room for `share`, the fullest first; several of one node and model. None where there are none."""
    fitting = (
        card
        for card in board.with_room(share.eighths_per_card)
        if card.is_model(share.model) and card.uuid not in barred
    )
    if share.cards == 0:
        return ()
    if share.cards == 1:
        first = next(fitting, None)
        return None if first is None else (first.uuid,)
    groups: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for card in fitting:
        groups[card.node, card.model].append(card.uuid)
    enough = [group for group in groups.values() if len(group) >= share.cards]
    return tuple(min(enough, key=len)[: share.cards]) if enough else None


def shrink_plan(board: Board, rules: Rules, share: GPUShare, rank: int, barred: Collection[str] = ()) -> Plan | None:
    """The card on which making less urgent sessions than `rank` smaller is enough, and costs the least."""
    if share.cards != 1:
        return None
    best: tuple[tuple[float, int], Plan] | None = None
    for card in _candidates(board, share, barred):
        found = _shrinks(board, rules, card, share.eighths, rank)
        if found is not None:
            cost = sum(_weight(board.running[name], board.running[name].eighths - keeps) for name, keeps in found)
            if best is None or (cost, len(found)) < best[0]:
                best = (cost, len(found)), Plan((card.uuid,), found)
    return best[1] if best else None


def park_plan(
    board: Board, rules: Rules, share: GPUShare, rank: int, now: float, barred: Collection[str] = ()
) -> Plan | None:
    """The cards on which stopping less urgent sessions than `rank` is enough, and costs the least."""
    if share.cards == 1:
        plans = [
            (cost, Plan((card.uuid,), (), parks))
            for card, cost, parks in _parks(board, rules, share, rank, now, barred)
        ]
        return min(plans, key=lambda each: (each[0], len(each[1].parks)))[1] if plans else None
    groups: defaultdict[tuple[str, str], list[tuple[float, str, tuple[str, ...]]]] = defaultdict(list)
    for card, cost, parks in _parks(board, rules, share, rank, now, barred):
        groups[card.node, card.model].append((cost, card.uuid, parks))
    best: tuple[float, Plan] | None = None
    for group in groups.values():
        chosen = sorted(group)[: share.cards]
        cost = sum(each[0] for each in chosen)
        if len(chosen) == share.cards and (best is None or cost < best[0]):
            parked = dict.fromkeys(name for _, _, parks in chosen for name in parks)
            best = cost, Plan(tuple(uuid for _, uuid, _ in chosen), (), tuple(parked))
    return best[1] if best else None


def earliest_place(board: Board, share: GPUShare, barred: Collection[str] = ()) -> tuple[tuple[str, ...], float]:
    """The cards that are first to have room for `share` by what is known of who runs, and when; infinity where nobody
    can know, and no cards where there can never be room."""
    found = []
    for card in _candidates(board, share, barred):
        found.append((_room_at(board, card, share.eighths_per_card), card))
    if share.cards == 1:
        if not found:
            return (), float("inf")
        when, card = min(found, key=lambda each: (each[0], -each[1].free))
        return (card.uuid,), when
    groups: defaultdict[tuple[str, str], list[tuple[float, str]]] = defaultdict(list)
    for when, card in found:
        groups[card.node, card.model].append((when, card.uuid))
    enough = [sorted(group)[: share.cards] for group in groups.values() if len(group) >= share.cards]
    if not enough:
        return (), float("inf")
    first = min(enough, key=lambda group: group[-1][0])
    return tuple(uuid for _, uuid in first), first[-1][0]


def _candidates(board: Board, share: GPUShare, barred: Collection[str] = ()) -> list[CardRoom]:
    found = board.of_model(share.model)
    return [card for card in found if card.uuid not in barred] if barred else found


def _room_at(board: Board, card: CardRoom, eighths: int) -> float:
    free = card.free
    if free >= eighths:
        return 0.0
    for ends, running in sorted(
        ((float("inf") if each.ends is None else each.ends, each) for each in board.on(card)), key=lambda each: each[0]
    ):
        free += running.eighths
        if free >= eighths:
            return ends
    return float("inf")


def _victims(board: Board, card: CardRoom, rank: int) -> list[Running]:
    """Less urgent sessions, the least urgent first, then the newest: they have the least to lose."""
    less = [each for each in board.on(card) if each.rank > rank]
    return sorted(less, key=lambda each: (-each.rank, -each.started))


def _shrinks(board: Board, rules: Rules, card: CardRoom, need: int, rank: int) -> tuple[tuple[str, int], ...] | None:
    if card.within_reach(rank) < need:
        return None
    lacking = need - card.free
    found: list[tuple[str, int]] = []
    for victim in _victims(board, card, rank):
        if lacking <= 0:
            break
        own = rules.classes[victim.asked.kind]
        if not own.shrinks or victim.asked.share.cards != 1:
            continue
        lower = [eighths for eighths in FRACTIONS if max(own.floor, victim.least) <= eighths < victim.eighths]
        if lower:
            # the largest that is enough, or all that it can spare
            keeps = max((each for each in lower if victim.eighths - each >= lacking), default=lower[0])
            found.append((victim.session, keeps))
            lacking -= victim.eighths - keeps
    return tuple(found) if lacking <= 0 else None


def _parks(
    board: Board, rules: Rules, share: GPUShare, rank: int, now: float, barred: Collection[str]
) -> Iterator[tuple[CardRoom, float, tuple[str, ...]]]:
    need = share.eighths_per_card
    for card in _candidates(board, share, barred):
        if card.within_reach(rank) < need:
            continue
        lacking = need - card.free
        parks: list[Running] = []
        for victim in _victims(board, card, rank):
            if lacking <= 0:
                break
            if victim.can_park and now >= victim.safe_until and rules.classes[victim.asked.kind].parks:
                parks.append(victim)
                lacking -= victim.eighths
        if lacking <= 0:
            cost = sum(_weight(each, each.eighths * len(each.cards)) for each in parks)
            yield card, cost, tuple(each.session for each in parks)


def _weight(victim: Running, eighths: int) -> float:
    """What taking so many eighths costs: four of one class are worth one of the class above."""
    return float(eighths * 4 ** (len(CLASSES) - 1 - victim.rank))
