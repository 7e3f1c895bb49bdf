"""Who waits for a share, of which class each session is, and how long others waited."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("sessions", sa.Column("kind", sa.String(32), nullable=False, server_default="interactive"))
    op.create_table(
        "queue",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("user", sa.String(255), nullable=False),
        sa.Column("server", sa.String(255), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("share", sa.String(64), nullable=False),
        sa.Column("card", sa.String(96)),
        sa.Column("burst", sa.Boolean, nullable=False),
        sa.Column("environment", sa.String(255)),
        sa.Column("since_ms", sa.BigInteger, nullable=False),
        sa.Column("run_seconds", sa.Float),
        sa.Column("deadline_ms", sa.BigInteger),
        sa.Column("forecast_seconds", sa.Float),
        sa.Column("taken_by", sa.String(32)),
    )
    op.create_table(
        "waits",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("forecast_seconds", sa.Float, nullable=False),
        sa.Column("waited_seconds", sa.Float, nullable=False),
    )


def downgrade() -> None:
    op.drop_table("waits")
    op.drop_table("queue")
    op.drop_column("sessions", "kind")
