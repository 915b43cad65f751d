"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer


def group(name: str, help_text: str) -> typer.Typer:
    """Return a group of commands, which prints its help if none of them is named."""
    return typer.Typer(name=name, help=help_text, no_args_is_help=True)


Config = Annotated[
    Path, typer.Option("--config", "-c", envvar="CINQUEFOIL_CONFIG", help="Deployment file.")
]
DEPLOYMENT = Path("cinquefoil.yaml")

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
ForceIdle = Annotated[
    bool, typer.Option("--force-idle", help="Have the planner move what runs on the GPU.")
]
LAST_VERSION = 10**9
"""Plans are never that many; beyond, no message could carry the number."""

Version = Annotated[
    int, typer.Argument(min=0, max=LAST_VERSION, help="Plan version; 0: the newest.")
]
