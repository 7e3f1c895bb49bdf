"""What a period cost and what is charged for it, from the ledger's rows. Pure, in whole seconds and money.

A node's cost up to second t is c(t) = floor(rate * t / 3600), so that what it costs over any period is c(b) - c(a), and
periods add up however they are cut. Its n cards are 8n eighths; the i-th of them bears floor((c(t) + i) / 8n), which
add up to c(t) exactly (Hermite's identity: the sum over i < m of floor((x + i) / m) is x). A session bears what its
eighths do, and what no session bears is idle. Charges are cut the same way. Times are rounded down to the second.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from gpuspawner.share import EIGHTHS_PER_CARD

_HOUR = 3600


class Row(Protocol):
    """A ledger row."""

    id: Any
    at_ms: Any
    session: Any
    user: Any
    kind: Any
    model: Any
    cards: Any
    eighths: Any
    price_micros: Any
    node: Any
    cost_micros: Any
    energy_mj: Any
    co2_ug: Any
    amount_micros: Any
    project: Any


@dataclass
class Line:
    """What a session used, or what of a card nobody did, in a period. Money in millionths. None: unknown.

    kind: `session`, `reserved` (the session is over, its memory is not gone yet: the house bears it), `idle`.
    """

    kind: str
    user: str
    session: str
    model: str
    node: str | None = None
    card: str = ""
    eighth_seconds: int = 0
    cost_micros: int | None = 0
    charge_micros: int = 0
    energy_mj: int | None = 0
    co2_ug: int | None = 0
    project: str = ""
    #: whether the session held nothing before the period
    new: bool = False


@dataclass
class _Node:
    cost: int | None = None
    settled: int = 0
    cards: dict[str, str] = field(default_factory=dict)  # uuid -> model


@dataclass
class _Session:
    user: str
    model: str
    cards: list[str]
    node: str
    project: str = ""
    eighths: int = 0
    price: int = 0
    over: bool = False
    charged: int = 0
    used: bool = False


class Accounts:
    """The accounts of the seconds from `start` until before `end`. Rows are given in the order of the ledger."""

    def __init__(self, start: int, end: int) -> None:
        self.start, self.end = start, end
        self.lines: dict[tuple[str, str, str], Line] = {}
        #: what each node cost; None where unknown
        self.node_costs: dict[str, int | None] = {}
        self._nodes: dict[str, _Node] = {}
        self._where: dict[str, str] = {}  # card -> node
        self._sessions: dict[str, _Session] = {}
        self._on: dict[str, dict[str, None]] = {}  # node -> its sessions, in the order of their starts

    def after(self, end: int) -> Accounts:
        """Those of the seconds from the end of this period until before `end`. This one is of no use any more."""
        following = Accounts(self.end, end)
        following._nodes, following._where = self._nodes, self._where
        following._sessions, following._on = self._sessions, self._on
        return following

    def state(self) -> dict[str, Any]:
        """What is known at the end of the period, as values of JSON."""
        nodes = [[name, node.cost, node.settled, list(node.cards.items())] for name, node in self._nodes.items()]
        sessions = [[name, *vars(session).values()] for name, session in self._sessions.items()]
        return {"end": self.end, "nodes": nodes, "where": list(self._where.items()), "sessions": sessions}

    @classmethod
    def resumed(cls, state: dict[str, Any], end: int) -> Accounts:
        """Those of the seconds from the end of the period that `state` is of until before `end`."""
        made = cls(state["end"], end)
        made._nodes = {name: _Node(cost, settled, dict(cards)) for name, cost, settled, cards in state["nodes"]}
        made._where = dict(state["where"])
        for name, *values in state["sessions"]:
            session = made._sessions[name] = _Session(*values)
            made._on.setdefault(session.node, {})[name] = None
        return made

    def add(self, rows: Iterable[Row]) -> None:
        """Take notice of rows."""
        for row in rows:
            at = min(row.at_ms // 1000, self.end)
            if row.kind in ("card", "gone"):
                self._card(row, at)
            elif row.kind == "correction":
                if self.start <= row.at_ms // 1000 < self.end:
                    line = self._line("session", row.user, row.session, row.model, project=row.project or "")
                    line.charge_micros += row.amount_micros or 0
            else:
                self._session(row, at)

    def close(self) -> list[Line]:
        """Everything up to the end of the period; the lines that say anything."""
        for name in self._nodes:
            self._settle(name, self.end)
        for session, state in self._sessions.items():
            self._charge(session, state, self.end)
        return [line for line in self.lines.values() if _says_something(line)]

    def _card(self, row: Row, at: int) -> None:
        name = row.node or ""
        node = self._nodes.setdefault(name, _Node(settled=at))
        self._settle(name, at)
        node.cost = row.cost_micros
        for uuid in json.loads(row.cards):
            if row.kind == "card":
                node.cards[uuid], self._where[uuid] = row.model, name
            else:
                node.cards.pop(uuid, None)

    def _session(self, row: Row, at: int) -> None:
        state = self._sessions.get(row.session)
        if state is None:
            cards = json.loads(row.cards)
            node = self._where.get(cards[0], row.node or "") if cards else ""
            project = row.project or ""
            state = self._sessions[row.session] = _Session(row.user, row.model, cards, node, project, charged=at)
            state.used = at < self.start
            self._on.setdefault(node, {})[row.session] = None
        self._settle(state.node, at)
        self._charge(row.session, state, at)
        if self.start <= row.at_ms // 1000 < self.end and row.kind not in ("start", "free"):
            self._energy(row, state)
        if row.kind == "free":
            state.eighths = 0
            self._on[state.node].pop(row.session, None)
            del self._sessions[row.session]
        elif row.kind == "end":
            state.over, state.price = True, 0
        else:
            state.eighths, state.price = row.eighths, row.price_micros

    def _energy(self, row: Row, state: _Session) -> None:
        line = self._line("session", state.user, row.session, state.model, project=state.project)
        line.energy_mj = plus(line.energy_mj, row.energy_mj)
        line.co2_ug = plus(line.co2_ug, row.co2_ug)

    def _charge(self, session: str, state: _Session, at: int) -> None:
        begin, state.charged = max(state.charged, self.start), at
        if at > begin and not state.over:
            line = self._line("session", state.user, session, state.model, project=state.project)
            line.charge_micros += state.price * at // _HOUR - state.price * begin // _HOUR

    def _settle(self, name: str, at: int) -> None:
        node = self._nodes.get(name)
        if node is None:
            return
        begin, node.settled = max(node.settled, self.start), at
        if at <= begin:
            return
        slots = EIGHTHS_PER_CARD * len(node.cards)
        before = None if node.cost is None else node.cost * begin // _HOUR
        after = None if node.cost is None else node.cost * at // _HOUR
        spent = None if before is None or after is None else after - before
        self.node_costs[name] = plus(self.node_costs.get(name, 0), spent)
        if not slots:
            line = self._line("idle", "", f"node {name}", "")
            line.cost_micros = plus(line.cost_micros, spent)
            return
        place = {uuid: position * EIGHTHS_PER_CARD for position, uuid in enumerate(node.cards)}
        ends = {uuid: first + EIGHTHS_PER_CARD for uuid, first in place.items()}

        def bear(line: Line, uuid: str, eighths: int) -> None:
            first = place[uuid]
            last = place[uuid] = min(first + eighths, ends[uuid])
            line.eighth_seconds += (last - first) * (at - begin)
            if before is None or after is None:
                line.cost_micros = None
            elif line.cost_micros is not None:
                line.cost_micros += _borne(after, first, last, slots) - _borne(before, first, last, slots)

        for session in self._on.get(name, ()):
            state = self._sessions[session]
            kind = "reserved" if state.over else "session"
            line = self._line(kind, state.user, session, state.model, name, state.project)
            for uuid in state.cards:
                if uuid in place:
                    bear(line, uuid, state.eighths // len(state.cards))
            if line.eighth_seconds and not state.used:
                line.new = state.used = True
        for uuid, model in node.cards.items():
            if place[uuid] < ends[uuid]:
                bear(self._line("idle", "", uuid, model, name), uuid, ends[uuid] - place[uuid])

    def _line(self, kind: str, user: str, session: str, model: str, node: str | None = None, project: str = "") -> Line:
        line = self.lines.get((kind, user, session))
        if line is None:
            card = session if kind == "idle" else ""
            line = Line(kind, user, "" if card else session, model, node, card, project=project)
            self.lines[kind, user, session] = line
        return line


def _borne(cost: int, first: int, last: int, slots: int) -> int:
    """What the slots from `first` until before `last` (of `slots`) bear of a cost: the sum of (cost + i) // slots."""
    whole, rest = divmod(cost, slots)
    return (last - first) * whole + max(0, last + rest - slots) - max(0, first + rest - slots)


def _says_something(line: Line) -> bool:
    return bool(line.eighth_seconds or line.charge_micros or line.cost_micros or line.energy_mj)


def plus(sum_: int | None, more: int | None) -> int | None:
    return None if sum_ is None or more is None else sum_ + more


def statement(rows: Iterable[Row], start: int, end: int) -> list[Line]:
    """The lines of a period, in seconds since the epoch, from all rows that are about it."""
    accounts = Accounts(start, end)
    accounts.add(rows)
    return accounts.close()
