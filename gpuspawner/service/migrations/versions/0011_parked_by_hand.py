"""Who has parked a session by hand and why, until when, and where it comes back."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

_COLUMNS = (("asked_by", sa.String(255)), ("why", sa.Text), ("back_ms", sa.BigInteger), ("card", sa.String(96)))


def upgrade() -> None:
    for name, kind in _COLUMNS:
        op.add_column("parkings", sa.Column(name, kind))


def downgrade() -> None:
    with op.batch_alter_table("parkings") as table:
        for name, _ in reversed(_COLUMNS):
            table.drop_column(name)
