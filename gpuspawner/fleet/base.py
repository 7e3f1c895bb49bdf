"""What the service needs of a fleet: where cards are, who holds them, and how to change that."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

from gpuspawner.card import Card
from gpuspawner.share import GPUShare

Grade = Literal["kernel", "guarded", "advisory"]
Resize = Literal["live", "restart", "none"]


HealthState = Literal["ok", "warning", "failed", "unknown"]


@dataclass(frozen=True)
class CardHealth:
    """Whether a card can be trusted with work, and one sentence why not; None where it can."""

    state: HealthState = "unknown"
    reason: str | None = None


@dataclass(frozen=True)
class CardState:
    """A card, the eighths (0 to 8) of it that a start can have now, and its health. A failed card gives none.

    `grade` and `resize`: how sessions on it are held, and what a change of the share means for one that runs. `fits`:
    how many sessions of each fraction could start, where free eighths do not say it (a card cut into slices).
    `only_whole`: why the card is given out in no fraction, in one sentence. `node`: the machine that it is in.
    `island`: cards of a node with the same number reach each other over NVLink. `cordoned`: why an administrator has
    taken it out of use for what is new; such a card gives nothing either.
    """

    card: Card
    free_eighths: int
    health: CardHealth = CardHealth()
    grade: Grade = "guarded"
    resize: Resize = "live"
    fits: Mapping[int, int] | None = None
    only_whole: str | None = None
    node: str = ""
    island: int | None = None
    cordoned: str | None = None

    def places(self, eighths: int) -> int:
        """How many sessions with such a part of a card could start on this one."""
        return self.free_eighths // eighths if self.fits is None else self.fits.get(eighths, 0)


@dataclass(frozen=True)
class CardReadings:
    """What a card's driver shows now; None where it does not say. Watts, degrees Celsius."""

    memory_used_bytes: int | None = None
    utilization_percent: int | None = None
    temperature_celsius: int | None = None
    power_watts: float | None = None


class Cordons:
    """Which cards (by uuid) and nodes (by name) get nothing new, and why. Thread-safe."""

    def __init__(self) -> None:
        self._cards: Mapping[str, str] = {}
        self._nodes: Mapping[str, str] = {}

    def replace(self, cards: Mapping[str, str], nodes: Mapping[str, str]) -> None:
        """From now on these."""
        self._cards, self._nodes = dict(cards), dict(nodes)

    def applied(self, states: list[CardState]) -> list[CardState]:
        """The same cards; those that get nothing new have nothing free."""
        cards, nodes = self._cards, self._nodes
        if not cards and not nodes:
            return states
        found = []
        for state in states:
            why = cards.get(state.card.uuid) or nodes.get(state.node)
            closed = replace(state, free_eighths=0, fits=None if state.fits is None else {}, cordoned=why)
            found.append(state if why is None else closed)
        return found


@dataclass(frozen=True)
class Grant:
    """A share in force for a session on certain cards. `owner`: the user and the server, and what was asked for at the
    start, where the fleet knows them; there the fleet is right about which sessions exist."""

    session: str
    cards: tuple[Card, ...]
    eighths_per_card: int
    ended: bool = False
    burst: bool = False
    owner: tuple[str, str, GPUShare] | None = None


@dataclass(frozen=True)
class Launch:
    """How to start a session's first process where the fleet is this machine."""

    argv_prefix: list[str]
    env: dict[str, str]
    home: str
    uid: int | None
    gid: int | None


@dataclass(frozen=True)
class PodLaunch:
    """How to make a session's pod: in which namespace, what its claim is called (None: it has no card), and the labels
    and annotations by which the pod is known as the session's."""

    namespace: str
    claim: str | None
    labels: Mapping[str, str]
    annotations: Mapping[str, str]


@dataclass(frozen=True)
class FleetChange:
    """Something that happened in the fleet by itself to a session."""

    session: str
    what: Literal["launched", "ended", "freed", "excess"]
    reason: str = field(default="")


@dataclass(frozen=True)
class Notice:
    """Something that a session's user should know. Times are seconds since the epoch; `deadline`, where there is one,
    is when something will be done."""

    code: str
    message: str
    since: float
    deadline: float | None = None


@dataclass(frozen=True)
class Holder:
    """A process that the driver shows on a card; `used_bytes` is None where it does not say how much it holds.
    `session` is None where the process belongs to none."""

    card: str
    pid: int
    used_bytes: int | None
    session: str | None


class Fleet(Protocol):
    """All nodes that one hub can reach. Methods may block; they are called from worker threads.

    Refusals are raised as NoRoom, InUse, NotFound, Conflict; a fleet that does not answer as Unavailable.
    """

    cordons: Cordons

    @property
    def grade(self) -> Grade:
        """How strongly sessions are held to their shares."""
        ...

    def cards(self, uuids: Collection[str] | None = None) -> list[CardState]:
        """Every card, or those of `uuids` that are there, with what is free of it now."""
        ...

    def grants(self) -> list[Grant]:
        """Every share in force, those of ended sessions whose memory is not gone yet included."""
        ...

    def grant(self, session: str) -> Grant | None:
        """The share in force of one session."""
        ...

    def start(
        self,
        session: str,
        user: str,
        share: GPUShare,
        card: str | None = None,
        *,
        burst: bool = False,
        server: str = "",
    ) -> tuple[Grant, Launch | PodLaunch]:
        """Place a share, on the card of uuid `card` where one is named, and put it in force for a new session of the
        user's server. With `burst` it may compute with what others leave idle."""
        ...

    @property
    def tells(self) -> bool:
        """Whether it can show notices to sessions."""
        ...

    def tell(self, session: str, notice: str | None) -> None:
        """Show a session a notice in the file that GPUSPAWNER_PREEMPTION_FILE names there, instead of the one before;
        None: no notice. Safe to repeat: a notice that is shown stays as it is."""
        ...

    def launch(self, session: str) -> Launch | PodLaunch:
        """How to start the first process of a session that has a share. NotFound when it has none any more."""
        ...

    def resize(self, session: str, eighths: int) -> None:
        """Change the eighths that a running session has of its card."""
        ...

    def set_burst(self, session: str, burst: bool) -> None:
        """Let a running session compute with what others leave idle, or no longer."""
        ...

    def end(self, session: str, reason: str) -> bool:
        """End a session's processes and its share; whether its eighths are free already."""
        ...

    def alive(self, session: str) -> bool:
        """Whether any process of the session runs."""
        ...

    def used_bytes(self, session: str) -> int | None:
        """Card memory that the driver shows for the session; None when unknown."""
        ...

    def busy(self) -> Mapping[str, bool | None]:
        """Whether the driver shows work of each session since the last question; None where it cannot say."""

    def energy_mj(self) -> Mapping[str, int]:
        """What the energy counters of the cards show, in millijoules since whenever, by uuid; without the cards whose
        driver has none or does not answer."""
        ...

    def readings(self) -> Mapping[str, CardReadings]:
        """What the drivers show of the cards now, by uuid; without those of which nothing is known here."""
        ...

    def notices(self, session: str) -> list[Notice]:
        """What the session's user should know now."""
        ...

    def holders(self) -> list[Holder]:
        """Every process that holds memory of a card, those of no session included."""
        ...

    def watch(self) -> list[FleetChange]:
        """What happened since the last look."""
        ...

    def close(self) -> None:
        """Let go of the fleet; sessions run on."""
        ...
