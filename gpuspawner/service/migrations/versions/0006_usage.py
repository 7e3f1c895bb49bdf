"""What was used by the hour and day, worked out from the ledger, and the project that a session counts to."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for table in ("sessions", "ledger"):
        op.add_column(table, sa.Column("project", sa.String(255)))
    op.create_table(
        "usage",
        sa.Column("span", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("hour", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("kind", sa.String(16), primary_key=True),
        sa.Column("user", sa.String(255), primary_key=True),
        sa.Column("model", sa.String(64), primary_key=True),
        sa.Column("project", sa.String(255), primary_key=True),
        sa.Column("sessions", sa.Integer, nullable=False),
        sa.Column("starts", sa.Integer, nullable=False),
        sa.Column("eighth_seconds", sa.BigInteger, nullable=False),
        sa.Column("charge_micros", sa.BigInteger, nullable=False),
        sa.Column("cost_micros", sa.BigInteger),
        sa.Column("energy_mj", sa.BigInteger),
        sa.Column("co2_ug", sa.BigInteger),
    )


def downgrade() -> None:
    op.drop_table("usage")
    op.execute("DELETE FROM marks WHERE name = 'usage'")
    for table in ("sessions", "ledger"):
        op.drop_column(table, "project")
