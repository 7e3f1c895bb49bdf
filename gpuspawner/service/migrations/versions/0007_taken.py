"""When eighths were taken from a session for somebody more urgent."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("queue", sa.Column("taken_ms", sa.BigInteger))


def downgrade() -> None:
    op.drop_column("queue", "taken_ms")
