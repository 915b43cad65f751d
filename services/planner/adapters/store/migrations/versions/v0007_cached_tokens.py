"""Tokens of prompts that servers had cached; 0 for earlier hours."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
readable_from = "0004"
"""Such a planner counts no cached tokens, and leaves those that are there."""


def upgrade() -> None:
    """Add the column."""
    with op.batch_alter_table("account_hours") as table:
        table.add_column(
            sa.Column("cached_input_tokens", sa.BigInteger, nullable=False, server_default="0")
        )


def downgrade() -> None:
    """Drop the column, and the counts in it."""
    op.drop_column("account_hours", "cached_input_tokens")
