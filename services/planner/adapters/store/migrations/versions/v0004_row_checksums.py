"""A checksum in every row, which planners keep in SQLite files (`services.kit.row_checksums`)."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
readable_from = "0004"

TABLES = ("plans", "outcomes", "meta", "account_hours")


def upgrade() -> None:
    """Add the columns; `..opening` fills them in an SQLite file."""
    for name in TABLES:
        with op.batch_alter_table(name) as table:
            table.add_column(sa.Column("crc", sa.BigInteger))


def downgrade() -> None:
    """Drop the columns: a planner that does not know them would leave checksums of old values."""
    for name in TABLES:
        op.drop_column(name, "crc")
