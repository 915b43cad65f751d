"""The example deployments and their client, which the installed package carries."""

from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from typing import Final

FIRST: Final = ("cinquefoil.yaml", "infer.py")
"""Example files for a first deployment."""

_IN_CHECKOUT: Final = {
    "cinquefoil.yaml": "cinquefoil.yaml",
    "demo.yaml": "demo.yaml",
    "infer.py": "examples/infer.py",
}
"""Where the repository has each file; the wheel has it in `services/local/example`."""


def write_missing(folder: Path, names: Iterable[str] = FIRST) -> list[Path]:
    """Write the example files that `folder` lacks, and return them; existing files are kept."""
    written = []
    for name in names:
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
