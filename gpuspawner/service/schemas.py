"""The REST API's bodies. Bytes are bytes, prices decimal text per hour; unknown is null."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt, StrictStr

from gpuspawner.service.waiting.schemas import Kind, Parking, Strict

Grade = Literal["kernel", "guarded", "advisory"]
Resize = Literal["live", "restart", "none"]
SessionState = Literal["starting", "running", "ending", "ended"]


class SessionRequest(Strict):
    """A new session for a user's server. `share` is checked by GPUShare."""

    user: StrictStr = Field(min_length=1, max_length=255)
    server: StrictStr = Field(default="", max_length=255)
    share: Any
    model: Any = None
    card: StrictStr | None = Field(default=None, max_length=96, description="uuid, where cards may be chosen")
    burst: StrictBool | None = Field(
        default=None, description="may compute with what others leave idle; null: as the operator has set it"
    )
    environment: StrictStr | None = Field(default=None, max_length=255, description="what runs in it, for the policy")
    wait: StrictBool = Field(default=False, description="whether to wait in the queue where there is no room")
    kind: Kind | None = Field(default=None, description="its class; null: as the policy says")
    run_seconds: StrictInt | StrictFloat | None = Field(
        default=None, gt=0, le=1e8, allow_inf_nan=False, description="how long it will run, where that is known"
    )
    deadline: AwareDatetime | None = Field(default=None, description="when it must be done")


class ResizeRequest(Strict):
    """Another share for a running session, or whether it may compute with what others leave idle, or both."""

    share: Any = None
    burst: StrictBool | None = None


class Offer(BaseModel):
    """A share that could be started, and whether it can be now."""

    share: str
    model: str
    model_name: str
    eighths: int
    cards: int
    memory_bytes: int = Field(description="on each of its cards")
    price_per_hour: str
    available: bool
    free_places: int = Field(description="how many sessions could start with it now")
    allowed: bool = Field(description="whether the policy gives it to whoever this is for")
    reason: str | None = Field(description="why it is not available")
    can_wait: bool = Field(default=False, description="whether a start may wait in the queue until it is available")
    expected_wait_low_seconds: int | None = Field(
        default=None, description="the shortest that such a wait will probably be; null where that is not known"
    )
    expected_wait_seconds: int | None = Field(
        description="the longest that it will probably be; 0 where it is available, null where that is not known"
    )
    default: bool
    grade: Grade
    resize: Resize = Field(description="what a change of the share means for a session that runs")


class CardHealth(BaseModel):
    """Whether a card can be trusted with work."""

    state: Literal["ok", "warning", "failed", "unknown"]
    reason: str | None = Field(description="one sentence; null where the card is ok")


class FreeCard(BaseModel):
    """A card that a start may name, and what is free of it."""

    uuid: str
    index: int
    name: str
    model: str
    free_eighths: int
    health: CardHealth


class KindOffer(BaseModel):
    """A class of work that may be asked for."""

    name: Kind
    default: bool = Field(description="whether a start that does not say is of it")


class Offers(BaseModel):
    """Everything that can be started here."""

    simulated: bool
    grade: Grade
    currency: str
    offers: list[Offer]
    burst: bool = Field(description="whether a start that does not say may compute with what others leave idle")
    cards: list[FreeCard] | None = Field(description="null where nobody may choose the exact card")
    environments: list[str] | None = Field(default=None, description="which the policy allows; null: all")
    kinds: list[KindOffer] = Field(
        default_factory=list, description="the classes of work that may be asked for, the most urgent first"
    )
    no_card_reason: str | None = Field(default=None, description="why no session without a card may be started")
    policy_problem: str | None = Field(
        default=None, description="for administrators: why the policy file on disk is not what is in force"
    )


class CardInfo(BaseModel):
    """A card as a session sees it."""

    uuid: str
    index: int
    name: str
    health: CardHealth


class ResizeOption(BaseModel):
    """A share that a session could change to."""

    share: str
    memory_bytes: int
    price_per_hour: str
    available: bool
    reason: str | None
    current: bool
    live: bool = Field(description="whether it changes while the session runs; else the server must be started again")


class Notice(BaseModel):
    """Something that a session's user should know; `deadline`: when something will be done, null where nothing is."""

    code: str
    message: str
    since: str
    deadline: str | None


class Session(BaseModel):
    """A session and its share. `memory_bytes` is what it may use on each card."""

    id: str
    user: str
    server: str
    state: SessionState
    share: str
    eighths: int
    model: str
    cards: list[CardInfo]
    memory_bytes: int
    memory_used_bytes: int | None
    price_per_hour: str
    currency: str
    grade: Grade
    simulated: bool
    created: str
    ended: str | None
    end_reason: str | None
    resizable: bool
    resize: Resize
    options: list[ResizeOption]
    notices: list[Notice]
    burst: bool = Field(description="whether it may compute with what others leave idle")
    kind: str = Field(default="interactive", description="its class in the queue")
    free_eighths: int | None = Field(
        default=None, description="of its card, held by nobody; null without a live session on one card"
    )
    parking: Parking | None = Field(default=None, description="that it was asked to save; null where it was not")
    park_reason: str | None = Field(default=None, description="why nobody can park it now; null where one can")


class Activity(Strict):
    """How long nothing was done in a session, by whoever says it."""

    idle_seconds: StrictInt | StrictFloat = Field(ge=0, le=1e9, allow_inf_nan=False)


class Idle(BaseModel):
    """How long a session has been idle by all that is known; null where nobody watches. `due`: it may be stopped."""

    idle_seconds: float | None
    due: bool


class LaunchInfo(BaseModel):
    """How the spawner starts the session's first process."""

    argv_prefix: list[str]
    env: dict[str, str]
    home: str
    uid: int | None
    gid: int | None


class PodInfo(BaseModel):
    """How the spawner makes the session's pod on a cluster. `claim` is null where the session has no card."""

    namespace: str
    claim: str | None
    labels: dict[str, str]
    annotations: dict[str, str]


class Started(BaseModel):
    """A new session and how to start it: on a machine by `launch`, on a cluster by `pod`; the other one is null."""

    session: Session
    launch: LaunchInfo | None
    pod: PodInfo | None = None


class Resized(BaseModel):
    """A resized session; `applied_ms` from the request's arrival to the new limit in force."""

    session: Session
    applied_ms: float


class Sessions(BaseModel):
    """A list of sessions. `next`: what to give as `after` for those that follow; null where none do."""

    sessions: list[Session]
    next: str | None = None


class LedgerEntry(BaseModel):
    """One ledger row."""

    id: int
    at: str
    session: str
    user: str
    server: str
    kind: Literal["start", "resize", "excess", "price", "end", "free", "card", "gone", "correction"]
    model: str
    cards: list[str]
    eighths: int
    price_per_hour: str
    currency: str
    actor: str
    reason: str
    node: str | None = None
    energy_mj: int | None = None
    co2_ug: int | None = None
    method: str | None = Field(default=None, description="how energy and carbon dioxide were found out")
    amount: str | None = Field(default=None, description="of a correction")
    corrects: int | None = None
    project: str | None = None
    hash: str = ""


class Events(BaseModel):
    """Ledger rows, newest first. `next`: what to give as `before` for older ones; null where there are none."""

    events: list[LedgerEntry]
    next: int | None = None


class AuditEntry(BaseModel):
    """A change that `actor` made to `user`'s session or was refused (`status`), from where and why."""

    id: int
    at: str
    actor: str
    action: str
    user: str
    session: str
    asked: Any
    why: str
    source: str
    status: int
    hash: str


class Audit(BaseModel):
    """Rows of the audit, newest first. `problem`: where its chain of hashes is broken."""

    entries: list[AuditEntry]
    next: int | None
    problem: str | None


class Cordon(BaseModel):
    """A card (by uuid) or a node (by name) on which nothing starts or grows. `ends`: when what runs there is ended;
    null: it stays."""

    kind: Literal["card", "node"]
    name: str
    by: str
    reason: str
    since: str
    ends: str | None


class Cordons(BaseModel):
    """All of them."""

    cordons: list[Cordon]


class CordonTarget(Strict):
    """Which card or node."""

    kind: Literal["card", "node"]
    name: StrictStr = Field(min_length=1, max_length=255)


class CordonRequest(CordonTarget):
    """Nothing starts or grows there from now on; with `drain_seconds` what runs is ended after so long."""

    reason: StrictStr = Field(min_length=1, max_length=255)
    drain_seconds: StrictInt | None = Field(default=None, ge=0, le=7 * 86400)


class Holder(BaseModel):
    """A process that holds memory of a card. `session` is null where it belongs to none."""

    card: str
    pid: int
    memory_used_bytes: int | None
    session: str | None


class Holders(BaseModel):
    """Every process that the driver shows."""

    processes: list[Holder]


class Health(BaseModel):
    """Whether the service answers, and how many cards it has."""

    status: Literal["ok"]
    version: str
    cards: int


class PolicyState(BaseModel):
    """The policy in force. `problem`: why the file on disk is another one. `digest`: SHA-256 of the file in force."""

    digest: str | None
    problem: str | None
    restricted: bool = Field(description="whether there are rules; without them everybody may start everything")
    rules: list[str]
    currency: str


class Explained(BaseModel):
    """What the policy means for a user now."""

    user: str
    groups: list[str]
    roles: list[str]
    restricted: bool
    rules: list[dict[str, Any]] = Field(description="the rules that are about the user now, as the file has them")
    rights: list[str] = Field(description="on the user's own sessions")
    sessions: int | None = Field(description="how many at once; null: no limit")
    environments: list[str] | None = Field(description="null: all")
    starts: list[dict[str, Any]] = Field(description="for each model and share, whether it is allowed, and why not")


class CostSum(BaseModel):
    """What some sessions used together. `cost`: their part of what the nodes cost; `charge`: by the tariff."""

    name: str
    sessions: int
    eighth_seconds: int
    charge: str
    cost: str | None = Field(description="null: unknown")
    energy_mj: int | None = Field(description="millijoules; null: unknown for one of them at least")
    co2_ug: int | None = Field(description="micrograms; null: unknown for one of them at least")


class CostReport(BaseModel):
    """A period's accounts. The costs of `sums` and of `idle` are together what the nodes cost, exactly."""

    start: str
    end: str
    by: str
    currency: str
    sums: list[CostSum]
    idle: CostSum | None = Field(description="what nobody used; null in the report of one user")
    node_cost: str | None
    charge: str


class Verified(BaseModel):
    """Whether the ledger's chain is whole. `head`: to be noted elsewhere and compared with later."""

    ok: bool
    rows: int
    head: str
    problem: str | None


class Correction(Strict):
    """Charge a session more or less than a row says."""

    row: StrictInt = Field(ge=1, le=2**62)
    amount: StrictStr = Field(pattern=r"^-?[0-9]{1,9}(\.[0-9]{1,6})?$", description="decimal text; below 0: given back")
    reason: StrictStr = Field(min_length=1, max_length=1000)

    @property
    def micros(self) -> int:
        """The amount in millionths."""
        return int(Decimal(self.amount) * 1_000_000)


class ErrorBody(BaseModel):
    """What went wrong: a stable code, one plain sentence, and where it applies the field."""

    model_config = ConfigDict(extra="allow")

    code: str
    message: str
    field: str | None = None
    given: Any = None
    allowed: Any = None


class Error(BaseModel):
    """The body of every 4xx and 5xx answer."""

    error: ErrorBody
