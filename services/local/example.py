"""The example deployment and its client, which the installed package carries."""

from importlib import resources
from pathlib import Path
from typing import Final

_IN_CHECKOUT: Final = {"cinquefoil.yaml": "cinquefoil.yaml", "infer.py": "examples/infer.py"}
"""Where the repository has each file; the wheel has it in `services/local/example`."""


def write_missing(folder: Path) -> list[Path]:
    """Write the example files that `folder` lacks, and return them; existing files are kept."""
    written = []
    for name in _IN_CHECKOUT:
        target = folder / name
        if not target.exists():
            target.write_text(content(name), encoding="utf-8")
            written.append(target)
    return written


def content(name: str) -> str:
    """Return the text of an example file."""
    packaged = resources.files("services.local").joinpath("example", name)
    checkout = Path(__file__).parents[2] / _IN_CHECKOUT[name]
    return (packaged if packaged.is_file() else checkout).read_text(encoding="utf-8")
