"""The fleet of one machine: its agent, in this process."""

from __future__ import annotations

import threading
from collections.abc import Collection
from pathlib import Path

from gpuspawner.card import Card
from gpuspawner.fleet.base import (
    CardHealth,
    CardReadings,
    CardState,
    Cordons,
    FleetChange,
    Grade,
    Grant,
    Holder,
    Launch,
    Notice,
)
from gpuspawner.fleet.placement import place
from gpuspawner.node.agent import Agent
from gpuspawner.node.gate import Policy
from gpuspawner.node.limits.launch import show_notice
from gpuspawner.node.records import Record
from gpuspawner.node.starting import Started
from gpuspawner.share import GPUShare


class LocalFleet:
    """One machine as a fleet."""

    def __init__(self, state: Path) -> None:
        self._agent = Agent(state, policy=Policy.from_env())
        self._placing = threading.Lock()
        self.cordons = Cordons()

    @property
    def grade(self) -> Grade:
        """How strongly sessions are held to their shares on this machine."""
        return self._agent.grade

    def cards(self, uuids: Collection[str] | None = None) -> list[CardState]:
        """Every card, or those of `uuids` that are there, with what is free of it now."""
        free = self._agent.free()
        wanted = [card for card in self._agent.cards() if uuids is None or card.uuid in uuids]
        return self.cordons.applied([self._state(card, free.get(card.uuid, 0)) for card in wanted])

    def _state(self, card: Card, free: int) -> CardState:
        health = self._agent.health(card.uuid)
        fits = self._agent.fits(card.uuid)
        return CardState(
            card,
            max(0, free) if health.usable else 0,
            CardHealth(health.state, health.reason),
            self._agent.grade_of(card.uuid),
            self._agent.resize_of(card.uuid),
            {} if fits is not None and not health.usable else fits,
            self._agent.only_whole(card.uuid),
        )

    def grants(self) -> list[Grant]:
        """Every share in force on this machine."""
        return [self._grant(record) for record in self._agent.records()]

    def grant(self, session: str) -> Grant | None:
        """The share in force of one session."""
        record = self._agent.record(session)
        return None if record is None else self._grant(record)

    def start(
        self,
        session: str,
        user: str,
        share: GPUShare,
        card: str | None = None,
        *,
        burst: bool = False,
        server: str = "",
    ) -> tuple[Grant, Launch]:
        """Place a share, put it in force, and say how to start its first process."""
        with self._placing:
            where = place(share, self.cards(), card)
            started = self._agent.start(session, user, where, share.eighths_per_card, burst=burst)
        return self._grant(started.record), _launch(started)

    @property
    def tells(self) -> bool:
        """Sessions see a file of the node's."""
        return True

    def tell(self, session: str, notice: str | None) -> None:
        """Show a notice to a session."""
        record = self._agent.record(session)
        if record is not None and record.state != "held":
            show_notice(self._agent.folder_of(session), notice)

    def launch(self, session: str) -> Launch:
        """How to start the first process of a session that has a share."""
        return _launch(self._agent.launch_of(session))

    def resize(self, session: str, eighths: int) -> None:
        """Change the eighths that a running session has of its card."""
        self._agent.resize(session, eighths)

    def set_burst(self, session: str, burst: bool) -> None:
        """Let a running session compute with what others leave idle, or no longer."""
        self._agent.set_burst(session, burst)

    def end(self, session: str, reason: str) -> bool:
        """End a session's processes and its share."""
        return self._agent.end(session, reason)

    def alive(self, session: str) -> bool:
        """Whether any process of the session runs."""
        return self._agent.alive(session)

    def used_bytes(self, session: str) -> int | None:
        """Card memory that the driver shows for the session; None when unknown."""
        return self._agent.used_bytes(session)

    def energy_mj(self) -> dict[str, int]:
        """What the energy counters of the cards show, in millijoules since whenever, by uuid."""
        return self._agent.energy_mj()

    def readings(self) -> dict[str, CardReadings]:
        """What the drivers show of the cards now, by uuid."""
        return {
            uuid: CardReadings(now.memory_used_bytes, now.utilization_percent, now.temperature, now.power_watts)
            for uuid, now in self._agent.readings().items()
        }

    def notices(self, session: str) -> list[Notice]:
        """What the session's user should know now."""
        return [Notice(each.code, each.message, each.since, each.deadline) for each in self._agent.notices(session)]

    def holders(self) -> list[Holder]:
        """Every process that holds memory of a card."""
        return [Holder(each.card, each.pid, each.used_bytes, each.session) for each in self._agent.holders()]

    def busy(self) -> dict[str, bool | None]:
        """Whether the driver shows work of each session since the last question."""
        return self._agent.busy()

    def watch(self) -> list[FleetChange]:
        """What happened since the last look."""
        return [FleetChange(change.session, change.what, change.reason) for change in self._agent.watch()]

    def close(self) -> None:
        """Let another process own the machine's cards; sessions run on."""
        self._agent.close()

    def _grant(self, record: Record) -> Grant:
        cards = {card.uuid: card for card in self._agent.cards()}
        return Grant(
            session=record.session,
            cards=tuple(cards[uuid] for uuid in record.cards if uuid in cards),
            eighths_per_card=record.eighths,
            ended=record.state == "held",
            burst=record.burst,
        )


def _launch(started: Started) -> Launch:
    return Launch(
        argv_prefix=started.argv_prefix,
        env=started.env,
        home=str(started.home),
        uid=started.uid,
        gid=started.uid,
    )
