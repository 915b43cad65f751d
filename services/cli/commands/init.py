"""`cinquefoil init`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def init(
    folder: Annotated[Path, typer.Argument(help="Folder to write into.", file_okay=False)] = Path(),
) -> None:
    """Write the example deployment, cinquefoil.yaml, and its client, infer.py, into a folder.

    Existing files are kept. `cinquefoil up` starts what the file describes.
    """
    from services.local.example import write_missing

    folder.mkdir(parents=True, exist_ok=True)
    written = write_missing(folder)
    typer.echo(f"wrote {', '.join(map(str, written))}" if written else "every file exists already")
