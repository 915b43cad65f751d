"""Alembic's entry: migrates the connection that `..opening` hands over."""

from __future__ import annotations

from alembic import context

from services.planner.adapters.store.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    transaction_per_migration=False,
)
context.run_migrations()
