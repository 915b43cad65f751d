"""The first schema of migrations; takes over a file that was written before there were any."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
readable_from = "0001"

BEFORE_MIGRATIONS = ("plans", "outcomes", "meta")
REFUSED_BY_OLDER = "PRAGMA user_version = 2"
"""Older planners open an SQLite file only where its `user_version` is 0 or 1."""


def upgrade() -> None:
    """Create the tables; copy the rows of an older planner."""
    older = sa.inspect(op.get_bind()).has_table("plans")
    if older:
        op.execute("DROP INDEX plans_by_state")
        for name in BEFORE_MIGRATIONS:
            op.rename_table(name, f"old_{name}")
    _create()
    if older:
        _move_in()
        for name in ("outcomes", "plans", "meta"):
            op.drop_table(f"old_{name}")
    if op.get_context().dialect.name == "sqlite":
        op.execute(REFUSED_BY_OLDER)


def _create() -> None:
    op.create_table(
        "plans",
        sa.Column("version", sa.BigInteger, autoincrement=False),
        sa.Column("state", sa.Integer, nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("strategy", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("failure", sa.Text, nullable=False),
        sa.Column("payload", sa.LargeBinary, nullable=False),
        sa.Column("snapshot", sa.LargeBinary),
        sa.PrimaryKeyConstraint("version", name="pk_plans"),
    )
    op.create_index("ix_plans_state", "plans", ["state"])
    op.create_table(
        "outcomes",
        sa.Column("version", sa.BigInteger, autoincrement=False),
        sa.Column("since", sa.DateTime(timezone=True), nullable=False),
        sa.Column("active_s", sa.Double, nullable=False),
        sa.Column("requests", sa.BigInteger, nullable=False),
        sa.Column("energy_j", sa.Double, nullable=False),
        sa.Column("carbon_gco2e", sa.Double, nullable=False),
        sa.Column("latency_s", sa.JSON, nullable=False),
        sa.Column("accuracy", sa.JSON, nullable=False),
        sa.Column("answered", sa.JSON, nullable=False),
        sa.PrimaryKeyConstraint("version", name="pk_outcomes"),
        sa.ForeignKeyConstraint(["version"], ["plans.version"], name="fk_outcomes_plans"),
    )
    op.create_table(
        "meta",
        sa.Column("key", sa.Text),
        sa.Column("value", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_meta"),
    )


def _move_in() -> None:
    """Copy the old rows; only SQLite ever had them."""
    op.execute(
        "INSERT INTO plans (version, state, created_at, strategy, reason, failure, payload)"
        " SELECT version, state, strftime('%Y-%m-%d %H:%M:%f', created_at) || '000',"
        " strategy, reason, failure, payload FROM old_plans"
    )
    op.execute(
        "INSERT INTO outcomes SELECT version, strftime('%Y-%m-%d %H:%M:%f', since) || '000',"
        " active_s, requests, energy_j, carbon_gco2e, latency_s, '{}', '{}' FROM old_outcomes"
    )
    op.execute("INSERT INTO meta SELECT key, CAST(value AS BLOB) FROM old_meta")
