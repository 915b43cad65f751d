#!/usr/bin/env python3
"""Fetch what the console's pages take from others, from npm (`make vendor`).

Files are as published. vendor.json beside them has each package's name, version and licence, and
each file's place in the package and SHA-256; tests compare those with the files.
"""

import hashlib
import io
import json
import subprocess
import tarfile
import tempfile
from pathlib import Path

FOLDER = Path(__file__).parent.parent / "services/console/static/vendor"

PACKAGES = {
    ("preact", "11.2.0"): {
        "preact.js": "package/dist/preact.mjs",
        "preact.LICENSE": "package/LICENSE",
    },
    ("uplot", "1.6.32"): {
        "uplot.js": "package/dist/uPlot.iife.min.js",
        "uplot.css": "package/dist/uPlot.min.css",
        "uplot.LICENSE": "package/LICENSE",
    },
}


def main() -> None:
    """Write the files and vendor.json."""
    entries = [_fetched(name, version, files) for (name, version), files in PACKAGES.items()]
    (FOLDER / "vendor.json").write_text(json.dumps(entries, indent=2) + "\n")


def _fetched(name: str, version: str, files: dict[str, str]) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder:
        command = ["npm", "pack", "--silent", "--pack-destination", folder, f"{name}@{version}"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        (archive,) = Path(folder).glob("*.tgz")
        with tarfile.open(fileobj=io.BytesIO(archive.read_bytes())) as package:
            licence = json.loads(_read(package, "package/package.json"))["license"]
            contents = {ours: _read(package, theirs) for ours, theirs in files.items()}
    for ours, content in contents.items():
        (FOLDER / ours).write_bytes(content)
    return {
        "name": name,
        "version": version,
        "licence": licence,
        "files": {
            ours: {"from": files[ours], "sha256": hashlib.sha256(content).hexdigest()}
            for ours, content in contents.items()
        },
    }


def _read(package: tarfile.TarFile, member: str) -> bytes:
    found = package.extractfile(member)
    if found is None:
        raise FileNotFoundError(member)
    return found.read()


if __name__ == "__main__":
    main()
