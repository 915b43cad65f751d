"""Errors of savings by source; they are unknown for earlier hours."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
readable_from = "0003"

ERRORS = ("profile_error_gco2e", "meter_error_gco2e", "intensity_error_gco2e")


def upgrade() -> None:
    """Add the columns."""
    with op.batch_alter_table("account_hours") as table:
        for name in ERRORS:
            table.add_column(sa.Column(name, sa.Double, nullable=False, server_default="0"))
