"""`cinquefoil data`: published traces and measurements that benchmarks and documentation read."""

from pathlib import Path
from typing import Annotated

import typer

from services.cli.commands.options import Json, group

app = group(
    "data", "Fetches published traces and measurements; lists them with licence and citation."
)

Folder = Annotated[
    Path | None,
    typer.Option(
        envvar="CINQUEFOIL_DATA",
        help="Folder of data. Default: cinquefoil/data in the user's data folder.",
    ),
]


@app.command("list")
def list_(folder: Folder = None, json: Json = False) -> None:
    """List the data sets, how many of their files are here, and their licences."""
    from services.cli.data import show_list
    from services.datasets.catalog import folder as default

    show_list(folder or default(), as_json=json)


@app.command()
def fetch(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="See `data list`.")],
    folder: Folder = None,
    source: Annotated[
        Path | None,
        typer.Option("--from", help="Copy from this folder instead: no network is used."),
    ] = None,
) -> None:
    """Download data sets; each file must have the SHA-256 of the catalog.

    Files that exist stay; an interrupted download resumes.

    For example:

    - `cinquefoil data fetch parvagpu clover`
    - `cinquefoil data fetch parvagpu --from /media/stick/data`
    """
    from services.cli.data import fetch as work
    from services.datasets.catalog import folder as default

    work(names, folder or default(), source)
