"""The ledger in a chain of hashes, with cards, costs, energy and corrections; when the service last looked."""

from __future__ import annotations

import hashlib
import json

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_NEW = ("node", "cost_micros", "counter_mj", "energy_mj", "co2_ug", "method", "amount_micros", "corrects")
_OLD = "id, at_ms, session, user, server, kind, model, cards, eighths, price_micros, currency, actor, reason"
_SQLITE = """
CREATE TRIGGER ledger_no_{verb} BEFORE {verb} ON ledger
BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END
"""


def _unlock() -> None:
    if op.get_bind().dialect.name == "sqlite":
        for verb in ("UPDATE", "DELETE"):
            op.execute(f"DROP TRIGGER IF EXISTS ledger_no_{verb}")
    else:
        op.execute("ALTER TABLE ledger DISABLE TRIGGER ledger_append_only")


def _lock() -> None:
    if op.get_bind().dialect.name == "sqlite":
        for verb in ("UPDATE", "DELETE"):
            op.execute(_SQLITE.format(verb=verb))
    else:
        op.execute("ALTER TABLE ledger ENABLE TRIGGER ledger_append_only")


def upgrade() -> None:
    for name in ("cost_micros", "counter_mj", "energy_mj", "co2_ug", "amount_micros", "corrects"):
        op.add_column("ledger", sa.Column(name, sa.BigInteger))
    op.add_column("ledger", sa.Column("node", sa.String(255)))
    op.add_column("ledger", sa.Column("method", sa.String(255)))
    op.add_column("ledger", sa.Column("prev", sa.String(64), nullable=False, server_default=""))
    op.add_column("ledger", sa.Column("hash", sa.String(64), nullable=False, server_default=""))
    _unlock()
    _chain()
    _lock()
    op.create_index("ix_ledger_at_ms", "ledger", ["at_ms"])
    op.create_table(
        "marks", sa.Column("name", sa.String(64), primary_key=True), sa.Column("value", sa.Text, nullable=False)
    )


def _chain() -> None:
    """The rows of before get their hashes: what they say is as it was."""
    connection, prev = op.get_bind(), ""
    names = [name.strip() for name in _OLD.split(",")]
    ledger = sa.table("ledger", *[sa.column(name) for name in (*names, "prev", "hash")])
    rows = connection.execute(sa.select(*[ledger.c[name] for name in names]).order_by(ledger.c.id)).all()
    for row in rows:
        content = {**dict(zip(names, row, strict=True)), **dict.fromkeys(_NEW), "prev": prev}
        text = json.dumps(content, sort_keys=True, separators=(",", ":"))
        new = hashlib.sha256(text.encode()).hexdigest()
        connection.execute(sa.update(ledger).where(ledger.c.id == row[0]).values(prev=prev, hash=new))
        prev = new


def downgrade() -> None:
    op.drop_table("marks")
    op.drop_index("ix_ledger_at_ms", "ledger")
    for name in (*_NEW, "prev", "hash"):
        op.drop_column("ledger", name)
