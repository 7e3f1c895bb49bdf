"""What is looked at before a share is put in force: that the card has room, is well, and can change while in use."""

from __future__ import annotations

from collections.abc import Mapping

from gpuspawner.capacity import at_most
from gpuspawner.card import Card
from gpuspawner.errors import Conflict, NoRoom, NotFound
from gpuspawner.node.health_watch import HealthWatch
from gpuspawner.node.limits.choice import Enforcers
from gpuspawner.node.records import Records
from gpuspawner.share import EIGHTHS_PER_CARD, eighths_text


class Admission:
    """The checks of a machine's agent, which calls them under its lock. `cards`: by uuid."""

    def __init__(self, cards: Mapping[str, Card], records: Records, health: HealthWatch, enforcers: Enforcers) -> None:
        self._cards = cards
        self._records = records
        self._health = health
        self._enforcers = enforcers

    def free(self, without: str | None = None) -> dict[str, int]:
        """Eighths free on each card, by uuid, as if session `without` had none."""
        taken = self._records.charged(without)
        return {uuid: EIGHTHS_PER_CARD - taken[uuid] for uuid in self._cards}

    def check_room(self, session: str, cards: tuple[str, ...], eighths: int) -> None:
        """Whether a session may have `eighths` of each card. Raises NotFound for a card, NoRoom."""
        free = self.free(without=session)
        for uuid in cards:
            if uuid not in free:
                raise NotFound(f"There is no card {uuid} on this machine.", field="card", given=uuid)
            self.check_kind(uuid, eighths, alone=len(cards) == 1)
            if eighths > free[uuid]:
                message = at_most(free[uuid], eighths)
                if not self._records.get(session):
                    message = f"Only {eighths_text(free[uuid])} of the card is free now, so {eighths_text(eighths)} "
                    message = f"{message}does not fit.".replace("Only nothing", "Nothing")
                raise NoRoom(message, free_eighths=free[uuid])

    def check_kind(self, uuid: str, eighths: int, *, alone: bool = True) -> None:
        """Whether a card gives out such a share at all; `alone`: to a session without other cards. Raises NoRoom."""
        enforcer = self._enforcers.of(uuid)
        if not enforcer.allows(eighths):
            raise NoRoom(
                enforcer.only_whole or "There is no such share of this card.",
                field="share",
                given=eighths_text(eighths),
                allowed="whole cards",
            )
        if not alone and enforcer.name == "mig":
            raise NoRoom("A card that is cut into slices (MIG) cannot be joined with others.", field="share")

    def check_health(self, cards: tuple[str, ...]) -> None:
        """A failed card gives out no eighths any more; those that are held on it stay. Raises Conflict."""
        known = [uuid for uuid in cards if uuid in self._cards]
        self._health.look(known, fresh=True)
        for uuid in known:
            health = self._health.of(uuid)
            if not health.usable:
                raise Conflict(
                    f"The card is out of service: {health.reason} Choose another one.",
                    code="card_failed",
                    field="card",
                    given=uuid,
                )

    def check_live_resize(self, uuid: str) -> None:
        """Whether a session's share of the card can change while it runs. Raises Conflict."""
        resize = self._enforcers.of(uuid).resize
        if resize == "restart":
            raise Conflict(
                "This session holds a slice that the card itself was cut into (MIG); a slice cannot change while it is "
                "in use. Save your work, stop the server, and start it with the share that you want.",
                code="resize_needs_restart",
            )
        if resize == "none":
            raise Conflict("This card is given out whole; its sessions cannot be resized.", code="not_resizable")
