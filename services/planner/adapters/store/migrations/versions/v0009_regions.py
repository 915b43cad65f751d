"""Requests that clients of one region sent and another answered; none for earlier hours."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
readable_from = "0004"
"""Such a planner knows no other regions' part, and leaves what is there."""

KEY = ("hour", "model", "origin", "emitted_in")


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "account_regions",
        sa.Column("hour", sa.DateTime(timezone=True), nullable=False),
        *(sa.Column(name, sa.Text, nullable=False) for name in KEY[1:]),
        sa.Column("requests", sa.BigInteger, nullable=False),
        sa.Column("energy_j", sa.Double, nullable=False),
        sa.Column("carbon_gco2e", sa.Double, nullable=False),
        sa.Column("crc", sa.BigInteger),
        sa.PrimaryKeyConstraint(*KEY, name="pk_account_regions"),
    )


def downgrade() -> None:
    """Drop the table: whose clients sent what is no longer known."""
    op.drop_table("account_regions")
