"""Lists data sets: what they hold, how much of each is here, and their licences."""

from pathlib import Path

from rich.console import Console

from services.cli.console.tables import table
from services.datasets.catalog import DataSet, catalog
from services.datasets.fetch import present


def show_list(folder: Path, *, as_json: bool) -> None:
    """Print every data set, and how many of its files the folder has."""
    console = Console()
    if as_json:
        console.print_json(
            data={
                name: {**each.model_dump(mode="json"), "files_here": _here(each, folder)}
                for name, each in catalog().items()
            }
        )
        return
    rows = table("", "data set", ">files here", ">MB", "holds", "licence")
    for name, each in catalog().items():
        size_bytes = sum(file.size_bytes for file in each.files)
        counted = f"{_here(each, folder)}/{len(each.files)}"
        rows.add_row(name, counted, f"{size_bytes / 1e6:.1f}", each.holds, each.licence)
    console.print(rows)
    console.print(f"They lie in {folder}.", highlight=False, soft_wrap=True)


def _here(found: DataSet, folder: Path) -> int:
    return sum(present(file, folder) for file in found.files)
