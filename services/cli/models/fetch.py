"""Downloads the files of models that have a URI."""

from collections.abc import Sequence
from pathlib import Path

import typer
from rich.console import Console

from services.cli.console.output import downloading
from services.kit.config import Deployment, ModelFile
from services.kit.config.loader import load
from services.kit.download import client
from services.kit.errors import NotFound, ServiceError, Unavailable
from services.kit.plurals import counted
from services.local.model_cache import ModelCache, locked


def fetch(config: Path, names: Sequence[str]) -> None:
    """Download every file that the cache lacks, and list all.

    Args:
        config: Deployment file.
        names: Models; none: all of the file.

    Raises:
        NotFound: The deployment has no such model.
        Unavailable: Files could not be brought; all others were.
        ServiceError: The cache cannot be written.
    """
    deployment, console = load(config), Console()
    files = _files(deployment, names)
    if not files:
        console.print("no model has a uri: every file is where the deployment file says")
        return
    failures: list[str] = []
    folder = deployment.model_cache.folder
    with client() as http, locked(folder, lambda who: console.print(f"waiting for {who}")):
        cache = ModelCache(deployment, http)
        for name, network in files.items():
            said = "is here"
            if not cache.has(network):
                said = "fetched"
                try:
                    with downloading(name, console) as advance:
                        cache.fetch(network, advance)
                except ServiceError as error:
                    failures.append(f"{name}: {error.message}")
                    continue
            typer.echo(f"{name}: {said}, {deployment.path_of(network)}")
    if failures:
        listed = "\n".join(f"  {each}" for each in failures)
        raise Unavailable(f"{counted(len(failures), 'file')} could not be brought:\n{listed}")


def _files(deployment: Deployment, names: Sequence[str]) -> dict[str, ModelFile]:
    """Return the files with a URI, by what they are called here: "digits/svc", with the stage."""
    unknown = sorted(set(names) - deployment.models.keys())
    if unknown:
        known = ", ".join(deployment.models)
        raise NotFound(f"no model {unknown[0]!r}; the deployment has {known}", field="model")
    return {
        "/".join((model, variant, *(key if key != ("uri",) else ()))): network
        for model in names or deployment.models
        for variant, settings in deployment.models[model].variants.items()
        for key, network in settings.loaded()
        if network.uri
    }
