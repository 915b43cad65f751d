"""The deployment file as its author wrote it: changed in place, with its comments."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any, Final

import yaml
from ruamel.yaml import YAML
from ruamel.yaml.representer import RoundTripRepresenter
from ruamel.yaml.scalarstring import DoubleQuotedScalarString

from services.kit.config import yaml_document
from services.kit.config.loader import ConfigError, load
from services.kit.errors import InvalidArgument
from services.kit.segment import require_unicode

_WORD: Final = re.compile(r"[A-Za-z0-9_/][A-Za-z0-9_./-]*")
_RESOLVER: Final[Any] = yaml.resolver.Resolver()
_TEXT: Final = yaml.resolver.Resolver.DEFAULT_SCALAR_TAG


def scalar(text: str) -> str:
    """Return a text that is read as this text, whatever it looks like: quoted where it must be.

    Raises:
        InvalidArgument: It is not Unicode, as the name of a file may be.
    """
    if not text.isprintable():
        require_unicode(text)
    resolved = _RESOLVER.resolve(yaml.ScalarNode, text, (True, False))
    return text if resolved == _TEXT and _WORD.fullmatch(text) else DoubleQuotedScalarString(text)


class _Representer(RoundTripRepresenter):
    """Writes numbers that are numbers in YAML 1.1, too, which wants a point in 1.0e-06."""

    def represent_float(self, value: float) -> Any:
        node = super().represent_float(value)
        if "." not in node.value:
            node.value = node.value.replace("e", ".0e")
        return node


_Representer.add_representer(float, _Representer.represent_float)


def round_trip() -> YAML:
    """Return a reader and writer that keeps comments and the order of keys."""
    yaml = YAML()
    yaml.Representer = _Representer
    yaml.width = 1000  # no line is wrapped
    yaml.preserve_quotes = True
    yaml.indent(mapping=2, sequence=4, offset=2)
    return yaml


def written(document: Any) -> str:
    """Return a document as text that services read as just this document.

    Raises:
        InvalidArgument: Part of it would be read as something else.
    """
    out = StringIO()
    round_trip().dump(document, out)
    text = out.getvalue()
    try:
        _require_same(document, yaml_document.read(text)[0], "")
    except yaml.YAMLError as error:
        raise InvalidArgument(f"what is to be written is no YAML: {error}") from error
    return text


def _require_same(meant: Any, found: Any, place: str) -> None:
    """Check that a document is read as it was meant: its structure and its texts.

    Words that are text in YAML 1.2 and booleans or numbers in 1.1, such as `yes`, may be the
    author's own.
    """
    if isinstance(meant, Mapping):
        is_same = isinstance(found, Mapping) and set(found) == set(meant)
        below = ((f"{place}.{key}", meant[key], found[key]) for key in meant) if is_same else ()
    elif isinstance(meant, list):
        is_same = isinstance(found, list) and len(found) == len(meant)
        below = ((f"{place}[{at}]", meant[at], found[at]) for at in range(len(meant) * is_same))
    else:
        is_same = meant == found if isinstance(found, str) else not isinstance(found, dict | list)
        below = ()
    if not is_same:
        raise InvalidArgument(f"{place[1:] or 'the document'!r} would be read as {found!r:.80}")
    for where, one, other in below:
        _require_same(one, other, where)


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
    save(path, written(document), dry_run=dry_run)


def save(path: Path, text: str, *, dry_run: bool = False) -> None:
    """Write a deployment file if it is a valid one; otherwise all stays as it was.

    Args:
        path: The deployment file.
        text: All of it.
        dry_run: Only check it.

    Raises:
        ConfigError: It is not allowed.
    """
    draft = path.with_name(f".{path.name}.draft")  # beside it: paths in it are relative
    draft.write_text(text, encoding="utf-8")
    try:
        load(draft)
        if not dry_run:
            if path.exists():
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
