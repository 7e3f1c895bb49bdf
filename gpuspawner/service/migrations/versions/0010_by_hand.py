"""Who has changed the class or deadline of somebody who waits, and why."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("queue", sa.Column("changed_by", sa.String(255)))
    op.add_column("queue", sa.Column("changed_why", sa.Text))


def downgrade() -> None:
    with op.batch_alter_table("queue") as table:
        table.drop_column("changed_why")
        table.drop_column("changed_by")
