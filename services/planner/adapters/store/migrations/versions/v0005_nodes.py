"""Nodes that joined without the deployment file, and operators' orders about nodes."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
readable_from = "0004"
"""Such a planner plans as if no node had joined by itself, and keeps no orders."""


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "nodes",
        *(
            sa.Column(name, sa.Text, nullable=False)
            for name in ("name", "zone", "address", "ordered", "principal")
        ),
        sa.Column("ordered_at", sa.DateTime(timezone=True)),
        sa.Column("crc", sa.BigInteger),
        sa.PrimaryKeyConstraint("name", name="pk_nodes"),
    )


def downgrade() -> None:
    """Drop the table: nodes join again, and operators repeat their orders."""
    op.drop_table("nodes")
