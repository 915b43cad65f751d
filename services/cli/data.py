"""Lists and downloads the data sets."""

from collections.abc import Sequence
from pathlib import Path

import typer
from rich.console import Console

from services.cli.console.output import downloading, print_json, table
from services.datasets.catalog import DataFile, DataSet, catalog, data_set
from services.datasets.fetch import copy, download, present, remove_parts
from services.kit.download import client
from services.kit.errors import NotFound
from services.kit.plurals import counted


def show_list(folder: Path, *, as_json: bool) -> None:
    """Print every data set, how many of its files the folder has, and its licence."""
    if as_json:
        print_json(
            {
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
    Console().print(rows)
    typer.echo(f"They lie in {folder}.")


def fetch(names: Sequence[str], folder: Path, source: Path | None) -> None:
    """Download every file of data sets that the folder lacks.

    Args:
        names: Of the data sets.
        folder: Where files go.
        source: Folder to copy from; None: download.

    Raises:
        NotFound: A file is neither published in its form nor in `source`; all others came.
        ServiceError: A file is not what the catalog lists, or its server does not answer.
    """
    console = Console()
    chosen = {name: data_set(name) for name in names}
    lacking: list[DataFile] = []
    for name, found in chosen.items():
        missing = [file for file in found.files if not present(file, folder)]
        if source is None:
            lacking += [file for file in missing if not file.downloads]
            _download([file for file in missing if file.downloads], folder, name, console)
        else:
            lacking += [file for file in missing if not copy(file, source, folder)]
        _say(name, found, folder)
    remove_parts(folder)
    if lacking:
        raise NotFound(_lacking(lacking, source))


def _download(files: Sequence[DataFile], folder: Path, name: str, console: Console) -> None:
    total = sum({each.sha256: each.size_bytes for f in files for each in f.downloads}.values())
    with downloading(name, console, total) as advance, client() as http:
        for file in files:
            download(file, folder, http, advance)


def _say(name: str, found: DataSet, folder: Path) -> None:
    typer.echo(
        f"{name}: {_here(found, folder)} of {counted(len(found.files), 'file')} in "
        f"{folder / name}\n"
        f"  licence: {found.licence}\n  cite: {found.citation}\n  from: {found.origin}"
    )


def _here(found: DataSet, folder: Path) -> int:
    return sum(present(file, folder) for file in found.files)


def _lacking(files: Sequence[DataFile], source: Path | None) -> str:
    if source is not None:
        return f"{source} lacks {', '.join(file.path for file in files)}"
    listed = "\n".join(f"  {file.path}: {file.made_by}" for file in files)
    return (
        f"{len(files)} files are not published in this form; take them from where somebody has "
        f"made them, by --from FOLDER:\n{listed}"
    )
