"""The service's tables. People's sessions, and the append-only ledger of who held what when."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Index, Integer, String, Text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

# SQLite counts up by itself only for INTEGER keys.
_Id = BigInteger().with_variant(Integer, "sqlite")


class Base(DeclarativeBase):
    """The declarative base of all tables."""


class SessionRow(Base):
    """One session from its request to its end. Times are milliseconds since the epoch, UTC."""

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


class LedgerRow(Base):
    """One change of a grant. Rows are never changed nor removed; the database refuses it.

    kind: `start`, `resize`, `end` (the user's use ends), `free` (the driver shows none of its memory left).
    `eighths` is what the session holds from this row on; `price_micros` what that is charged per hour.
    """

    __tablename__ = "ledger"

    id: Mapped[int] = mapped_column(_Id, primary_key=True, autoincrement=True)
    at_ms: Mapped[int] = mapped_column(BigInteger)
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
