"""Deployments made from the user's, that run beside it: other ports, a state of their own."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from services.kit.net import free_port


def anywhere() -> dict[str, Any]:
    """Return the settings of a service that listens on a free port of this machine."""
    return {"listen": f"127.0.0.1:{free_port()}", "address": "", "metrics": ""}


def write(document: Mapping[str, Any], folder: Path) -> Path:
    """Write the file into a folder, from which earlier state and logs are removed; return it."""
    shutil.rmtree(folder / "state", ignore_errors=True)
    shutil.rmtree(folder / "logs", ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "cinquefoil.yaml"
    path.write_text(yaml.safe_dump(dict(document), sort_keys=False), encoding="utf-8")
    return path.resolve()
