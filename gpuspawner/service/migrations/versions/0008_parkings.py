"""Sessions that were asked to save and were parked, until they are back."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "parkings",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("session", sa.String(32), nullable=False),
        sa.Column("user", sa.String(255), nullable=False),
        sa.Column("server", sa.String(255), nullable=False),
        sa.Column("state", sa.String(16), nullable=False, index=True),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("share", sa.String(64), nullable=False),
        sa.Column("since_ms", sa.BigInteger, nullable=False),
        sa.Column("wanted_by", sa.String(32), nullable=False),
        sa.Column("noticed_ms", sa.BigInteger, nullable=False, index=True),
        sa.Column("due_ms", sa.BigInteger, nullable=False),
        sa.Column("said", sa.Text),
        sa.Column("options", sa.Text),
    )


def downgrade() -> None:
    op.drop_table("parkings")
