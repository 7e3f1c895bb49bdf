"""Sessions and the append-only ledger."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_SQLITE = """
CREATE TRIGGER ledger_no_{verb} BEFORE {verb} ON ledger
BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END
"""
_POSTGRESQL = """
CREATE FUNCTION ledger_append_only() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'the ledger is append-only'; END $$;
CREATE TRIGGER ledger_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON ledger
FOR EACH STATEMENT EXECUTE FUNCTION ledger_append_only();
"""


def upgrade() -> None:
    op.create_table(
        "sessions",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("user", sa.String(255), nullable=False),
        sa.Column("server", sa.String(255), nullable=False),
        sa.Column("state", sa.String(16), nullable=False, index=True),
        sa.Column("share", sa.String(64), nullable=False),
        sa.Column("model", sa.String(64), nullable=False),
        sa.Column("cards", sa.Text, nullable=False),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.Column("ended_ms", sa.BigInteger),
        sa.Column("end_reason", sa.Text),
    )
    op.create_index("ix_sessions_user_server", "sessions", ["user", "server"])
    op.create_table(
        "ledger",
        sa.Column(
            "id",
            sa.BigInteger().with_variant(sa.Integer, "sqlite"),
            primary_key=True,
            autoincrement=True,
        ),
        sa.Column("at_ms", sa.BigInteger, nullable=False),
        sa.Column("session", sa.String(32), nullable=False, index=True),
        sa.Column("user", sa.String(255), nullable=False, index=True),
        sa.Column("server", sa.String(255), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("model", sa.String(64), nullable=False),
        sa.Column("cards", sa.Text, nullable=False),
        sa.Column("eighths", sa.Integer, nullable=False),
        sa.Column("price_micros", sa.BigInteger, nullable=False),
        sa.Column("currency", sa.String(3), nullable=False),
        sa.Column("actor", sa.String(255), nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
    )
    if op.get_bind().dialect.name == "sqlite":
        for verb in ("UPDATE", "DELETE"):
            op.execute(_SQLITE.format(verb=verb))
    else:
        op.execute(_POSTGRESQL)


def downgrade() -> None:
    raise NotImplementedError("The ledger is not removed.")
