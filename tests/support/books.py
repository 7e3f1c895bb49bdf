"""What the driver, the limit files and the databases of a machine say, and whether they agree."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter, defaultdict
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

from gpuspawner.node.limits import abi, launch
from gpuspawner.share import GPUShare
from gpuspawner.simulation import SimulatedCards

CARD_EIGHTHS = 8


class Node(Protocol):
    """A machine with simulated cards and its state folder."""

    @property
    def state(self) -> Path: ...

    @property
    def cards(self) -> SimulatedCards: ...


class Books:
    """The books of one machine. `clock`: a file with the seconds by which its service's clock is set forward."""

    #: A sitecustomize.py that sets the time of day, as an administrator or a time server may.
    CLOCK = """
import time
_time, _time_ns = time.time, time.time_ns
def _offset():
    try:
        with open("FILE") as file:
            return int(file.read() or 0)
    except (OSError, ValueError):
        return 0
time.time = lambda: _time() + _offset()
time.time_ns = lambda: _time_ns() + _offset() * 1_000_000_000
"""

    def __init__(self, node: Node, clock: Path) -> None:
        self.node = node
        self.clock = clock
        with node.cards.connect() as connection:
            cards = connection.state()["cards"]
        self.uuids = [card["uuid"] for card in cards]
        self.card_bytes = int(cards[0]["memory_bytes"])
        self._ledger: list[tuple[Any, ...]] = []

    def folder(self, session: str) -> Path:
        """A session's folder at the node."""
        return self.node.state / "node" / "sessions" / session

    def records(self) -> dict[str, tuple[tuple[str, ...], int, str]]:
        """The node's records: cards, eighths on each, `live` or `held`, by session."""
        with closing(sqlite3.connect(self.node.state / "node" / "agent.sqlite", timeout=20)) as database:
            rows = database.execute("SELECT session, cards, eighths, state FROM records").fetchall()
        return {session: (tuple(json.loads(cards)), eighths, state) for session, cards, eighths, state in rows}

    def _service(self, query: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.node.state / "service" / "service.sqlite", timeout=20)) as database:
            return database.execute(query).fetchall()

    def live(self) -> dict[str, str]:
        """The share of each session that the service takes to be alive."""
        return dict(self._service("SELECT id, share FROM sessions WHERE state IN ('starting', 'running')"))

    def being_ended(self) -> bool:
        """Whether a session has ended whose eighths are not free yet."""
        return any(state == "held" for _, _, state in self.records().values())

    def ended(self, session: str) -> bool:
        """Whether a session has given everything back, by every book."""
        (state,) = self._service(f"SELECT state FROM sessions WHERE id = '{session}'")[0]
        return state == "ended" and session not in self.records() and not launch.session_alive(self.folder(session))

    def free(self, card: int) -> int:
        """Eighths that are free on a card by the node's records."""
        return CARD_EIGHTHS - sum(eighths for cards, eighths, _ in self.records().values() if self.uuids[card] in cards)

    def fits(self, share: str) -> bool:
        """Whether a share could be started now."""
        wanted = GPUShare.parse(share)
        fitting = [card for card in range(len(self.uuids)) if self.free(card) >= wanted.eighths_per_card]
        return len(fitting) >= wanted.cards

    def limit(self, session: str) -> int:
        """Bytes that a session may use on its first card, by its limit file."""
        return abi.read_limits(launch.limit_path(self.folder(session)))[0].memory_bytes

    def used(self, session: str) -> int:
        """Bytes that the driver shows for a session on all its cards."""
        pids = launch.session_pids(self.folder(session))
        with self.node.cards.connect() as connection:
            processes = connection.state()["processes"]
        return sum(int(process["used_bytes"]) for process in processes if process["pid"] in pids)

    def card_used(self, card: int) -> int:
        """Bytes in use on a card, by the driver."""
        return self.node.cards.used_bytes(card)

    def never_over(self) -> None:
        """What holds at every moment, also while something is under way. AssertionError with what does not."""
        for what, sums in (("records", self._by_record()), ("limit files", self._by_file())):
            for uuid, eighths in sums.items():
                assert eighths <= CARD_EIGHTHS, f"{what}: {uuid} has {eighths} eighths"
        for session, (_, eighths, state) in self.records().items():
            if state == "live":
                allowed = self.card_bytes * eighths // CARD_EIGHTHS
                assert self._most_on_a_card(session) <= allowed, f"{session} uses more than {allowed} bytes"
        rows = self._service("SELECT id, at_ms, session, kind, cards, eighths, actor, reason FROM ledger ORDER BY id")
        assert rows[: len(self._ledger)] == self._ledger, "a row of the ledger was changed or lost"
        self._ledger = rows

    def _most_on_a_card(self, session: str) -> int:
        pids = launch.session_pids(self.folder(session))
        with self.node.cards.connect() as connection:
            processes = connection.state()["processes"]
        by_card: Counter[int] = Counter()
        for process in processes:
            if process["pid"] in pids:
                by_card[process["card"]] += int(process["used_bytes"])
        return max(by_card.values(), default=0)

    def _by_record(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for cards, eighths, _ in self.records().values():
            for uuid in cards:
                found[uuid] += eighths
        return found

    def _by_file(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for folder in (self.node.state / "node" / "sessions").iterdir():
            try:
                limits = abi.read_limits(launch.limit_path(folder))
            except FileNotFoundError:
                continue  # it is being removed
            for limit in limits:
                found[limit.uuid] += limit.eighths
        return found

    def explain(self, known: dict[str, str]) -> str:
        """What is not explained by the ledger, given the sessions that should live; empty where all is."""
        records, problems = self.records(), []
        rows: dict[str, list[tuple[str, int, int]]] = defaultdict(list)
        for session, kind, eighths, at in self._service("SELECT session, kind, eighths, at_ms FROM ledger ORDER BY id"):
            rows[session].append((kind, eighths, at))
        sessions = {row[0]: row[1:] for row in self._service("SELECT id, state, share, cards FROM sessions")}
        for session, (state, share, cards) in sessions.items():
            told = rows[session]
            kinds = [kind for kind, _, _ in told]
            tail = {"ending": ["end"], "ended": ["end", "free"]}.get(state, [])
            body = kinds[1 : len(kinds) - len(tail)]
            if kinds[:1] != ["start"] or set(body) - {"resize"} or kinds[len(kinds) - len(tail) :] != tail:
                problems.append(f"{session} is {state}, its rows are {kinds}")
            if any(later < earlier for (_, _, earlier), (_, _, later) in pairwise(told)):
                problems.append(f"{session} has rows that go back in time")
            record = records.get(session)
            if state == "ended":
                if record is not None:
                    problems.append(f"{session} has ended, and the node has a record of it")
                continue
            if record is None:
                problems.append(f"{session} is {state}, and the node has no record of it")
                continue
            if state != "ending" and record[2] == "live":
                on_node = record[1] * len(record[0])
                if not told[-1][1] == on_node == GPUShare.parse(share).eighths:
                    problems.append(
                        f"{session} has {share}, {on_node} eighths at the node and {told[-1][1]} by its rows"
                    )
                if sorted(json.loads(cards)) != sorted(record[0]):
                    problems.append(f"{session} has other cards at the node")
            elif state != "ending":
                problems.append(f"{session} is {state}, and its record {record[2]}")
        problems += [f"{session} has a record and no row" for session in records.keys() - sessions.keys()]
        live = {key: value[1] for key, value in sessions.items() if value[0] in ("starting", "running")}
        if live != known:
            problems.append(f"alive are {live}, expected {known}")
        return "; ".join(problems)
