"""Cost of energy in the account, EUR; 0 for earlier hours."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
readable_from = "0004"
"""Such a planner counts no cost, and leaves what is there."""


def upgrade() -> None:
    """Add the column."""
    with op.batch_alter_table("account_hours") as table:
        table.add_column(sa.Column("cost_eur", sa.Double, nullable=False, server_default="0"))


def downgrade() -> None:
    """Drop the column, and the costs in it."""
    op.drop_column("account_hours", "cost_eur")
