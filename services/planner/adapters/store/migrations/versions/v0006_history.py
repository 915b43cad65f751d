"""The past as the planner saw it, in stretches of a minute, ten minutes and an hour."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
readable_from = "0004"
"""Such a planner records no history; what is there stays."""


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "history",
        sa.Column("step_s", sa.Integer, nullable=False),
        sa.Column("since_s", sa.BigInteger, nullable=False),
        sa.Column("point", sa.LargeBinary, nullable=False),
        sa.Column("crc", sa.BigInteger),
        sa.PrimaryKeyConstraint("step_s", "since_s", name="pk_history"),
    )


def downgrade() -> None:
    """Drop the table: history begins again with the newer planner."""
    op.drop_table("history")
