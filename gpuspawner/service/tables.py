"""The service's tables. People's sessions, and the append-only ledger of who held what when."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Float, Index, Integer, String, Text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

# SQLite counts up by itself only for INTEGER keys.
_Id = BigInteger().with_variant(Integer, "sqlite")


class Base(DeclarativeBase):
    """The declarative base of all tables."""


class SessionRow(Base):
    """One session from its start to its end. Times are milliseconds since the epoch, UTC. `asked_ms`: when it was
    asked for, before `created_ms` where it waited; `run_seconds`, `deadline_ms`: what its owner said, or null."""

    __tablename__ = "sessions"
    __table_args__ = (Index("ix_sessions_user_server", "user", "server"),)

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    user: Mapped[str] = mapped_column(String(255))
    server: Mapped[str] = mapped_column(String(255))
    state: Mapped[str] = mapped_column(String(16), index=True)
    share: Mapped[str] = mapped_column(String(64))
    model: Mapped[str] = mapped_column(String(64))
    cards: Mapped[str] = mapped_column(Text)
    created_ms: Mapped[int] = mapped_column(BigInteger)
    ended_ms: Mapped[int | None] = mapped_column(BigInteger)
    end_reason: Mapped[str | None] = mapped_column(Text)
    burst: Mapped[bool] = mapped_column(Boolean, default=False)
    kind: Mapped[str] = mapped_column(String(32), default="interactive")
    project: Mapped[str | None] = mapped_column(String(255), default=None)
    asked_ms: Mapped[int | None] = mapped_column(BigInteger, default=None)
    run_seconds: Mapped[float | None] = mapped_column(Float, default=None)
    deadline_ms: Mapped[int | None] = mapped_column(BigInteger, default=None)


class LedgerRow(Base):
    """One change of a grant or of a card. Rows are never changed nor removed; the database refuses it. Times never go
    back from one row to the next.

    kind: `start`, `resize`, `excess`, `price` (another price from now on), `end` (the user's use ends), `free` (the
    driver shows none of its memory left); of no session: `card` (it is there, its node costs `cost_micros` per hour
    from now on, null where unknown), `gone`; `correction` (of the row `corrects`, by `amount_micros`).
    `eighths` is what the session holds from this row on; `price_micros` what that is charged per hour. `counter_mj`:
    what the energy counters of its cards showed, millijoules in all; `energy_mj` and `co2_ug` (micrograms): its part
    since its last row, by `method`; null where unknown. `project`: what its session counts to, by the policy file.
    `hash` is over the row and the hash before it.
    """

    __tablename__ = "ledger"

    id: Mapped[int] = mapped_column(_Id, primary_key=True, autoincrement=True)
    at_ms: Mapped[int] = mapped_column(BigInteger, index=True)
    session: Mapped[str] = mapped_column(String(32), index=True)
    user: Mapped[str] = mapped_column(String(255), index=True)
    server: Mapped[str] = mapped_column(String(255))
    kind: Mapped[str] = mapped_column(String(16))
    model: Mapped[str] = mapped_column(String(64))
    cards: Mapped[str] = mapped_column(Text)
    eighths: Mapped[int] = mapped_column(Integer)
    price_micros: Mapped[int] = mapped_column(BigInteger)
    currency: Mapped[str] = mapped_column(String(3))
    actor: Mapped[str] = mapped_column(String(255))
    reason: Mapped[str] = mapped_column(Text)
    node: Mapped[str | None] = mapped_column(String(255), default=None)
    cost_micros: Mapped[int | None] = mapped_column(BigInteger, default=None)
    counter_mj: Mapped[int | None] = mapped_column(BigInteger, default=None)
    energy_mj: Mapped[int | None] = mapped_column(BigInteger, default=None)
    co2_ug: Mapped[int | None] = mapped_column(BigInteger, default=None)
    method: Mapped[str | None] = mapped_column(String(255), default=None)
    amount_micros: Mapped[int | None] = mapped_column(BigInteger, default=None)
    corrects: Mapped[int | None] = mapped_column(BigInteger, default=None)
    project: Mapped[str | None] = mapped_column(String(255), default=None)
    prev: Mapped[str] = mapped_column(String(64))
    hash: Mapped[str] = mapped_column(String(64))


class UsageRow(Base):
    """What was used within `span` hours from the `hour`-th since the epoch on, worked out from the ledger's rows, which
    can be done again. `kind` as in the accounts; `sessions` used something then, `starts` of them nothing before. None:
    unknown."""

    __tablename__ = "usage"

    span: Mapped[int] = mapped_column(Integer, primary_key=True)
    hour: Mapped[int] = mapped_column(Integer, primary_key=True)
    kind: Mapped[str] = mapped_column(String(16), primary_key=True)
    user: Mapped[str] = mapped_column(String(255), primary_key=True)
    model: Mapped[str] = mapped_column(String(64), primary_key=True)
    project: Mapped[str] = mapped_column(String(255), primary_key=True)
    sessions: Mapped[int] = mapped_column(Integer)
    starts: Mapped[int] = mapped_column(Integer)
    eighth_seconds: Mapped[int] = mapped_column(BigInteger)
    charge_micros: Mapped[int] = mapped_column(BigInteger)
    cost_micros: Mapped[int | None] = mapped_column(BigInteger)
    energy_mj: Mapped[int | None] = mapped_column(BigInteger)
    co2_ug: Mapped[int | None] = mapped_column(BigInteger)


class MarkRow(Base):
    """Something that the service remembers by name, such as when it last looked at the fleet."""

    __tablename__ = "marks"

    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    value: Mapped[str] = mapped_column(Text)


class QueueRow(Base):
    """Somebody in the queue, and what is remembered of a session for it. `id` is the session's, from before it starts.

    state: `waiting` for a place; `placed`: it has its share, and its server is about to be started; `running`. `share`
    is what it asked for, with the model; it holds less while somebody more urgent needs the rest. `since_ms`: when it
    began to wait; never before an older row's. `run_seconds`: how long it will run, as its owner says.
    `forecast_seconds`: what was expected of its wait when it joined. `taken_by`: who was given its eighths last,
    `taken_ms` when. `changed_by`: who has set its class or deadline since it joined, and `changed_why`.
    """

    __tablename__ = "queue"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    user: Mapped[str] = mapped_column(String(255))
    server: Mapped[str] = mapped_column(String(255))
    state: Mapped[str] = mapped_column(String(16))
    kind: Mapped[str] = mapped_column(String(32))
    share: Mapped[str] = mapped_column(String(64))
    card: Mapped[str | None] = mapped_column(String(96), default=None)
    burst: Mapped[bool] = mapped_column(Boolean, default=False)
    environment: Mapped[str | None] = mapped_column(String(255), default=None)
    since_ms: Mapped[int] = mapped_column(BigInteger)
    run_seconds: Mapped[float | None] = mapped_column(Float, default=None)
    deadline_ms: Mapped[int | None] = mapped_column(BigInteger, default=None)
    forecast_seconds: Mapped[float | None] = mapped_column(Float, default=None)
    taken_by: Mapped[str | None] = mapped_column(String(32), default=None)
    taken_ms: Mapped[int | None] = mapped_column(BigInteger, default=None)
    changed_by: Mapped[str | None] = mapped_column(String(255), default=None)
    changed_why: Mapped[str | None] = mapped_column(Text, default=None)


class ParkingRow(Base):
    """A session that was asked to save for somebody more urgent, and what became of it.

    state: `noticed`, `saved` (it said so), `stopping` (its server is being stopped), `parked` (it waits to be started
    again); and over: `returned`, `failed` (it could not save), `silent` (it said nothing in time), `void` (nobody
    needed its room any more, or it ended), `given_up` (its user did not want to wait). `share` is what it asked for,
    `since_ms` when it first began to wait. `wanted_by`: the session for which it was, `budget`, or
    `admin`: that was `asked_by`, and `why`. `said`: what was saved where, or why not. `options`: with which its server
    is started again, JSON; `back_ms`: not before that; `card`: on that one alone.
    """

    __tablename__ = "parkings"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    session: Mapped[str] = mapped_column(String(32))
    user: Mapped[str] = mapped_column(String(255))
    server: Mapped[str] = mapped_column(String(255))
    state: Mapped[str] = mapped_column(String(16), index=True)
    kind: Mapped[str] = mapped_column(String(32))
    share: Mapped[str] = mapped_column(String(64))
    since_ms: Mapped[int] = mapped_column(BigInteger)
    wanted_by: Mapped[str] = mapped_column(String(32))
    noticed_ms: Mapped[int] = mapped_column(BigInteger, index=True)
    due_ms: Mapped[int] = mapped_column(BigInteger)
    said: Mapped[str | None] = mapped_column(Text, default=None)
    options: Mapped[str | None] = mapped_column(Text, default=None)
    asked_by: Mapped[str | None] = mapped_column(String(255), default=None)
    why: Mapped[str | None] = mapped_column(Text, default=None)
    back_ms: Mapped[int | None] = mapped_column(BigInteger, default=None)
    card: Mapped[str | None] = mapped_column(String(96), default=None)


class WaitRow(Base):
    """A wait that is over, seconds: what was expected of it when it began, null where nothing could be, and what it
    was. For how far what is expected is to be believed."""

    __tablename__ = "waits"

    id: Mapped[int] = mapped_column(_Id, primary_key=True, autoincrement=True)
    kind: Mapped[str] = mapped_column(String(32))
    forecast_seconds: Mapped[float] = mapped_column(Float)
    waited_seconds: Mapped[float] = mapped_column(Float)


class ReplyRow(Base):
    """The answer to a change that came with an idempotency key. `key`: a hash over it and the caller's token."""

    __tablename__ = "replies"

    key: Mapped[str] = mapped_column(String(64), primary_key=True)
    fingerprint: Mapped[str] = mapped_column(String(64))
    status: Mapped[int] = mapped_column(Integer)
    body: Mapped[str] = mapped_column(Text)
    at_ms: Mapped[int] = mapped_column(BigInteger, index=True)


class AuditRow(Base):
    """A change that somebody made, or was refused. `user`: whose session it was about. `asked`: the request's body,
    cut. Rows are never changed; `hash` is over the row and the hash before it."""

    __tablename__ = "audit"

    id: Mapped[int] = mapped_column(_Id, primary_key=True, autoincrement=True)
    at_ms: Mapped[int] = mapped_column(BigInteger, index=True)
    actor: Mapped[str] = mapped_column(String(255))
    action: Mapped[str] = mapped_column(String(255))
    user: Mapped[str] = mapped_column(String(255), index=True)
    session: Mapped[str] = mapped_column(String(32))
    asked: Mapped[str] = mapped_column(Text)
    why: Mapped[str] = mapped_column(String(255))
    source: Mapped[str] = mapped_column(String(255))
    status: Mapped[int] = mapped_column(Integer)
    prev: Mapped[str] = mapped_column(String(64))
    hash: Mapped[str] = mapped_column(String(64))
