"""The deployment file as its author wrote it: changed in place, with its comments."""

from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from services.kit.config.loader import ConfigError, load


def round_trip() -> YAML:
    """Return a reader and writer that keeps comments and the order of keys."""
    yaml = YAML()
    yaml.width = 1000  # no line is wrapped
    yaml.preserve_quotes = True
    yaml.indent(mapping=2, sequence=4, offset=2)
    return yaml


def written(document: Any) -> str:
    """Return a document as text."""
    out = StringIO()
    round_trip().dump(document, out)
    return out.getvalue()


@contextmanager
def edited(path: Path, *, dry_run: bool = False) -> Iterator[Any]:
    """Yield a deployment file's mapping to be changed, and replace the file at the end.

    The new file is checked first: a change that is not allowed leaves the file as it was.

    Args:
        path: The deployment file.
        dry_run: Only check the change.

    Raises:
        ConfigError: The file cannot be read, or what it became is not allowed.
    """
    load(path)
    document = round_trip().load(path)
    yield document
    draft = path.with_name(f".{path.name}.draft")  # beside it: paths in it are relative
    draft.write_text(written(document), encoding="utf-8")
    try:
        load(draft)
        if not dry_run:
            draft.chmod(path.stat().st_mode)
            draft.replace(path)
    except ConfigError as error:
        raise ConfigError(path, error.mistakes) from error
    finally:
        draft.unlink(missing_ok=True)


def beside(config: Path, file: Path) -> str:
    """Return how a deployment file names another: relative to it, where it is in a folder below."""
    absolute, base = file.resolve(), config.resolve().parent
    return str(absolute.relative_to(base) if absolute.is_relative_to(base) else absolute)
