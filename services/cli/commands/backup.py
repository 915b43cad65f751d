"""`cinquefoil backup`, `restore` and `planner downgrade`: the planner's database."""

from pathlib import Path
from typing import Annotated

import typer

from services.cli.commands.options import DEPLOYMENT, Config

File = Annotated[Path, typer.Argument(help="The backup.")]


def backup(file: File, config: Config = DEPLOYMENT) -> None:
    """Copy the planner's database to a file: plans, pin, settings, account. The planner may run.

    A PostgreSQL database is copied by `pg_dump`; the message has the command.
    """
    from services.kit.config.loader import load
    from services.planner.adapters.store.backup import back_up

    back_up(load(config).planner.database, file)
    typer.echo(f"{file}: {file.stat().st_size / 1024:.0f} KiB, checked")


def restore(file: File, config: Config = DEPLOYMENT) -> None:
    """Put a backup in the place of the planner's database; the planner must not run.

    The database that was there is kept beside it, as NAME.before-TIME.
    """
    from services.kit.config.loader import load
    from services.planner.adapters.store import backup as store

    database = load(config).planner.database
    before = store.restore(database, file)
    typer.echo(f"{database}: restored from {file}")
    if before is not None:
        typer.echo(f"what was there is {before}")


async def downgrade(
    revision: Annotated[str, typer.Argument(help="The older planner's schema, for example 0003.")],
    config: Config = DEPLOYMENT,
) -> None:
    """Take the database's schema back to that of an older planner; no planner may run.

    The older planner's error names its schema; 0003 is the oldest.
    """
    from services.kit.config.loader import load
    from services.kit.database.address import address, shown
    from services.planner.adapters.store.opening import SETTING
    from services.planner.adapters.store.opening import downgrade as take_back

    database = load(config).planner.database
    before = await take_back(database, revision)
    typer.echo(f"{shown(address(database, SETTING))}: schema {before} -> {revision}")
