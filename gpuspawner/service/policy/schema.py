"""The policy file as pydantic models: what may stand in it, and what each field means."""

from __future__ import annotations

import re
from collections.abc import Collection
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from gpuspawner.queue.rules import CLASSES
from gpuspawner.share import ALLOWED, GPUShare, ShareError

Right = Literal["telemetry", "use", "resize", "hand-over", "prioritise"]
#: Those that a rule gives which names none.
RIGHTS: tuple[Right, ...] = ("telemetry", "use", "resize", "hand-over")
#: As `gpuspawner.queue.rules.CLASSES` has them.
Kind = Literal["inference-urgent", "interactive", "training", "batch"]
_MODEL = r"^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$"
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,62}=[A-Za-z0-9._/-]{1,63}\Z", re.ASCII)
#: Grams of carbon dioxide per kilowatt hour that no grid of the world reaches.
MOST_GRAMS = 5000
_UUID = re.compile(r"[A-Za-z0-9-]{8,96}\Z", re.ASCII)


def _amount(given: Any) -> Any:
    """A share without a model. YAML reads 1 as a number; here it can only be meant as text."""
    text = str(given) if type(given) is int else given
    try:
        share = GPUShare.parse(text)
    except ShareError as error:
        raise ValueError(f"{given!r} is no share; allowed: {ALLOWED}") from error
    if share.model is not None:
        raise ValueError("a share without a model; models have a field of their own")
    return share.amount


def _moment(given: Any) -> Any:
    """A date is its first moment, UTC; a time without an offset would mean something else on another machine."""
    if isinstance(given, str):
        given = datetime.fromisoformat(given) if "T" in given or " " in given else date.fromisoformat(given)
    if isinstance(given, datetime):
        if given.tzinfo is None:
            raise ValueError("a time needs its offset, such as 2027-01-31T18:00:00+01:00")
        return given
    if isinstance(given, date):
        return datetime.combine(given, time(), UTC)
    raise ValueError("a date such as 2027-01-31, or a time with its offset")


def _card(given: str) -> str:
    if not (_LABEL.match(given) or ("=" not in given and _UUID.match(given))):
        raise ValueError("a label such as dataset=test, or a card's uuid")
    return given


def _money(given: Any) -> Any:
    """Decimal text or a whole number: a float is no exact price."""
    if type(given) not in (str, int):
        raise ValueError('money is text in quotes, such as "3.20"')
    if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,6})?", str(given), re.ASCII):
        raise ValueError("money has at most six decimal places and no sign")
    return int(Decimal(str(given)) * 1_000_000)


def _zone(given: str) -> str:
    try:
        ZoneInfo(given)
    except Exception as error:
        raise ValueError("a time zone of the IANA list, such as Europe/Berlin") from error
    return given


def _web(given: str) -> str:
    """A secret may go with it, so it is encrypted or stays on this machine."""
    try:
        url = urlsplit(given)
        local = url.scheme == "http" and url.hostname in ("127.0.0.1", "::1", "localhost")
        good = url.hostname and (url.scheme == "https" or local) and url.username is None and url.port != 0
    except ValueError:
        good = False
    if not good:
        raise ValueError("an https:// address without a name and password in it")
    return given


Amount = Annotated[str, BeforeValidator(_amount)]
Moment = Annotated[datetime, BeforeValidator(_moment)]
Money = Annotated[int, BeforeValidator(_money), Field(json_schema_extra={"description": "money as decimal text"})]
CardName = Annotated[str, AfterValidator(_card)]
Model = Annotated[str, Field(pattern=_MODEL)]
Name = Annotated[str, Field(min_length=1, max_length=255)]
Names = Annotated[list[Name], Field(max_length=1000)]


class Part(BaseModel):
    """A part of the file: unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=False)


class Allow(Part):
    """What may be started. A field that is left out allows all of its kind."""

    models: list[Model] | None = Field(None, description="card models or families, such as `h100`")
    nodes: Names | None = Field(None, description="machines, by name; on one machine it is the empty name")
    shares: list[Amount] | None = Field(None, description="shares by size: 1/8, 1/4, 1/2, 1, 2, none")
    cards: list[CardName] | None = Field(None, description="cards by label (`dataset=test`) or uuid")
    environments: Names | None = Field(None, description="environments or images, by name")
    sessions: Annotated[int, Field(strict=True, ge=0, le=1000)] | None = Field(
        None, description="how many at once, sessions without a card included"
    )


class Over(Part):
    """Whose sessions a rule's rights are about."""

    groups: Names = Field(default_factory=list, description="members of any of these groups")
    users: Names = Field(default_factory=list, description="these users")

    @model_validator(mode="after")
    def _somebody(self) -> Over:
        if not (self.groups or self.users):
            raise ValueError("name groups or users")
        return self


class Rule(Part):
    """What some people may do."""

    name: Name = Field(description="how refusals and `gpuspawner policy explain` call it")
    groups: Names = Field(default_factory=list, description="for members of any of these JupyterHub groups")
    roles: Names = Field(default_factory=list, description="for holders of any of these JupyterHub roles")
    users: Names = Field(default_factory=list, description="for these users; with no groups, roles or users: all")
    since: Moment | None = Field(None, alias="from", description="from when on the rule holds")
    until: Moment | None = Field(None, description="until when the rule holds")
    allow: Allow | None = Field(None, description="what may be started; left out: nothing by this rule")
    rights: list[Right] = Field(
        default_factory=lambda: list(RIGHTS),
        description="rights on a share: see its `telemetry`, `use` it (start it), `resize` it, `hand-over` eighths; "
        "left out: these. Besides, `prioritise`: set class and deadline of who waits, as far as `queue` allows",
    )
    over: Over | None = Field(None, description="whose sessions the rights are about; left out: one's own")

    @model_validator(mode="after")
    def _about_others(self) -> Rule:
        if self.over is not None and self.allow is not None:
            raise ValueError("allow: a rule over others gives rights and starts nothing")
        if self.over is not None and "use" in self.rights:
            raise ValueError("rights: use of other people's servers is JupyterHub's access:servers")
        return self

    @property
    def for_all(self) -> bool:
        """Whether it names nobody."""
        return not (self.groups or self.roles or self.users)


class Labelled(Part):
    """Labels of a card."""

    uuid: Annotated[str, Field(pattern=r"^[A-Za-z0-9-]{8,96}$")]
    labels: dict[str, str] = Field(description="such as `dataset: test`")


class Prices(Part):
    """What is charged from a moment on. The newest that has begun counts, whole."""

    since: Moment | None = Field(None, alias="from", description="from when on; left out: always")
    whole_card: dict[Model, Money] = Field(
        default_factory=dict, description="per hour, by model or family; the model goes first"
    )
    other: Money | None = Field(None, description="per hour for every other model; left out: 2.00")
    percent: dict[Amount, Annotated[int, Field(strict=True, ge=0, le=100)]] = Field(
        default_factory=dict, description="of the whole card's price for 1/8, 1/4 and 1/2; left out: 25, 40, 65"
    )

    @model_validator(mode="after")
    def _parts(self) -> Prices:
        wrong = [amount for amount in self.percent if amount not in ("1/8", "1/4", "1/2")]
        if wrong:
            raise ValueError(f"percent: {wrong[0]} is not 1/8, 1/4 or 1/2")
        return self


class NodeCost(Part):
    """What a node costs its owner."""

    node: Name | Literal[""] | None = Field(None, description="its name; left out: every node that is not named")
    per_hour: Money = Field(description="with cards, power and room")
    since: Moment | None = Field(None, alias="from", description="from when on; left out: always")


class Grid(Part):
    """How much carbon dioxide a kilowatt hour stands for."""

    grams_per_kwh: Annotated[int, Field(strict=True, ge=0, le=MOST_GRAMS)]
    source: Name = Field(description="where the figure is from; it stands in every row as its method")
    since: Moment | None = Field(None, alias="from", description="from when on; left out: always")


class GridSource(Part):
    """A service on the web that says how much a kilowatt hour stands for now, asked with GET for JSON. While it says
    nothing of use, `grid` counts."""

    url: Annotated[str, AfterValidator(_web)] = Field(
        description="begins with `https://`, or on this machine `http://`"
    )
    value: Annotated[str, Field(pattern=r"^[^.]{1,64}(\.[^.]{1,64}){0,9}$")] = Field(
        description="where the figure stands in the answer, in g/kWh: `carbonIntensity`, `data.0.intensity.actual`"
    )
    source: Name = Field(description="who says it; it stands in every row as its method, after `live`")
    token_header: Annotated[str, Field(pattern=r"^[A-Za-z0-9-]{1,64}$")] | None = Field(
        None, description="the header for the secret in the file that the service's `GPUSPAWNER_GRID_TOKEN_FILE` names"
    )
    every_minutes: Annotated[int, Field(strict=True, ge=1, le=1440)] = Field(15, description="how often it is asked")
    hold_minutes: Annotated[int, Field(strict=True, ge=1, le=10080)] = Field(
        120, description="for how long an answer counts while none follows"
    )


class Budget(Part):
    """How much may be used. At `warn` percent its users are told; at 100 nothing starts or grows, and after `grace`
    what runs is shrunk to 1/8."""

    name: Name
    groups: Names = Field(default_factory=list, description="each of these groups has it, all members together")
    users: Names = Field(default_factory=list, description="each of these users has it")
    each: Annotated[bool, Field(strict=True)] = Field(
        False, description="every member of the groups has one of their own (no groups: every user)"
    )
    eighth_hours: Annotated[int, Field(strict=True, ge=0, le=10**9)] | None = Field(
        None, description="eighth-hours within `days`"
    )
    days: Annotated[int, Field(strict=True, ge=1, le=366)] = Field(30, description="the rolling window, in days")
    money: Money | None = Field(None, description="charged within a calendar month")
    warn: list[Annotated[int, Field(strict=True, ge=1, le=99)]] = Field(
        default_factory=lambda: [80, 95], description="percent at which its users are told"
    )
    grace_minutes: Annotated[int, Field(strict=True, ge=0, le=10**6)] = Field(
        60, description="from the end of the budget until what runs is shrunk to 1/8"
    )
    park_minutes: Annotated[int, Field(strict=True, ge=0, le=10**6)] | None = Field(
        None,
        description="from then until what runs is saved and parked, where parking is switched on; what cannot be saved "
        "runs on; left out: nothing is parked",
    )

    @model_validator(mode="after")
    def _of_something(self) -> Budget:
        if (self.eighth_hours is None) == (self.money is None):
            raise ValueError("give eighth_hours or money, not both")
        if not (self.groups or self.users or self.each):
            raise ValueError("name groups or users, or say each: true")
        return self


class QueueClass(Part):
    """Of which class the work of some people is when they wait for a share. The first entry that is about somebody
    counts; who is in none is `interactive`, and may ask for that and what is less urgent."""

    groups: Names = Field(default_factory=list, description="for members of any of these groups")
    users: Names = Field(default_factory=list, description="for these users; with no groups or users: all")
    default: Kind = Field("interactive", description="the class of a start that names none")
    highest: Kind | None = Field(None, description="the most urgent that they may ask for; left out: `default`")

    @model_validator(mode="after")
    def _within(self) -> QueueClass:
        if self.highest is not None and CLASSES.index(self.highest) > CLASSES.index(self.default):
            raise ValueError("highest: less urgent than default")
        return self


#: So long who was given a notice rests, where the policy says nothing.
REST_MINUTES = 30


class ParkingClass(Part):
    """Whether and how the sessions of one class are parked for more urgent ones, where parking is switched on."""

    kind: Literal["interactive", "training", "batch"] = Field(alias="class", description="the class")
    park: Annotated[bool, Field(strict=True)] = Field(
        True, description="whether they are parked at all; a class that is not listed: training and batch are"
    )
    notice_seconds: Annotated[int, Field(strict=True, ge=1, le=3600)] = Field(
        60, description="how long they have to save; who has not by then is not stopped"
    )
    rest_minutes: Annotated[int, Field(strict=True, ge=0, le=10080)] = Field(
        REST_MINUTES, description="so long after a notice its user is given no other"
    )
    floor: Literal["1/8", "1/4", "1/2", "1"] = Field(
        "1/8", description="what is left to them when they are made smaller"
    )


class Project(Part):
    """What sessions count to in reports. The first project counts that a session belongs to when it starts."""

    name: Name
    groups: Names = Field(default_factory=list, description="sessions of members of any of these groups")
    users: Names = Field(default_factory=list, description="sessions of these users; with no groups and users: of all")
    servers: Names = Field(default_factory=list, description="only named servers of these names; left out: any")

    @model_validator(mode="after")
    def _of_something(self) -> Project:
        if not (self.groups or self.users or self.servers):
            raise ValueError("name groups, users or servers")
        return self

    def has(self, user: str, server: str, groups: Collection[str]) -> bool:
        """Whether a server of a user in these groups belongs to it."""
        theirs = user in self.users or not set(self.groups).isdisjoint(groups)
        return (theirs or not (self.users or self.groups)) and (not self.servers or server in self.servers)


class PolicyFile(Part):
    """The whole file."""

    version: Literal[1]
    currency: Annotated[str, Field(pattern=r"^[A-Z]{3}$")] = Field("EUR", description="three letters of ISO 4217")
    timezone: Annotated[str, AfterValidator(_zone)] = Field("UTC", description="in which months begin")
    rules: list[Rule] | None = Field(
        None, description="left out: everybody may start everything; else nobody may but by a rule"
    )
    cards: list[Labelled] = Field(default_factory=list, description="labels of cards")
    budgets: list[Budget] = Field(default_factory=list)
    projects: list[Project] = Field(default_factory=list, description="what sessions count to in reports")
    prices: list[Prices] = Field(default_factory=list, description="left out: the built-in prices")
    costs: list[NodeCost] = Field(default_factory=list, description="left out: costs are unknown")
    grid: list[Grid] = Field(default_factory=list, description="left out: carbon dioxide is unknown")
    grid_live: GridSource | None = Field(None, description="left out: the figures of `grid` alone")
    parking: list[ParkingClass] = Field(
        default_factory=list, description="how sessions are parked, by class; left out: the built-in rules"
    )
    queue: list[QueueClass] = Field(
        default_factory=list, description="who goes first: classes by group; left out: everybody is `interactive`"
    )

    @model_validator(mode="after")
    def _unique(self) -> PolicyFile:
        for what, names in (
            ("rules", [rule.name for rule in self.rules or []]),
            ("budgets", [budget.name for budget in self.budgets]),
            ("projects", [project.name for project in self.projects]),
            ("cards", [card.uuid for card in self.cards]),
            ("parking", [str(each.kind) for each in self.parking]),
        ):
            twice = {name for name in names if names.count(name) > 1}
            if twice:
                raise ValueError(f"{what}: {min(twice)!r} stands there twice")
        return self
