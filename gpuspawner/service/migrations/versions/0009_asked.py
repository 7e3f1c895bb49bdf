"""What a session's start said of the queue, kept after its end: for traces."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("sessions", sa.Column("asked_ms", sa.BigInteger))
    op.add_column("sessions", sa.Column("run_seconds", sa.Float))
    op.add_column("sessions", sa.Column("deadline_ms", sa.BigInteger))


def downgrade() -> None:
    op.drop_column("sessions", "deadline_ms")
    op.drop_column("sessions", "run_seconds")
    op.drop_column("sessions", "asked_ms")
