"""Energy and carbon by hour; accounts of before keep their totals, hours begin here."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
readable_from = "0002"

AMOUNTS = (
    *("energy_j", "idle_j", "unattributed_j"),
    *("carbon_gco2e", "idle_gco2e", "unattributed_gco2e"),
    *("idle_share_j", "idle_share_gco2e", "embodied_gco2e"),
    *("base_energy_j", "base_carbon_gco2e"),
)
COUNTS = ("requests", "input_tokens", "output_tokens")


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "account_hours",
        sa.Column("hour", sa.DateTime(timezone=True), nullable=False),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("zone", "node", "model")),
        *(sa.Column(name, sa.Double, nullable=False) for name in AMOUNTS),
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in COUNTS),
        sa.PrimaryKeyConstraint("hour", "zone", "node", "model", name="pk_account_hours"),
    )
