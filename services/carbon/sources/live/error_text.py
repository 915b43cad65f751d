"""The sentence with which a provider explains an error."""

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final
from xml.etree.ElementTree import ParseError

from defusedxml import DefusedXmlException
from defusedxml.ElementTree import fromstring

MAX_CHARACTERS: Final = 200
"""Length of an explanation in a log."""

_MAX_BYTES: Final = 64 * 2**10
_FIELDS: Final = ("error", "message", "detail", "title", "code", "description", "errors")
_SHORTEST_KEY: Final = 4


def error_text(body: bytes) -> str:
    """Return the explanation in the body of an error; empty: there is none.

    Bodies are JSON, XML with Reason elements (ENTSO-E), HTML or plain text.
    """
    text = body[:_MAX_BYTES].decode("utf-8", "replace").strip()
    found: Iterable[str]
    if text.startswith(("{", "[")):
        found = _of_json(text)
    elif text.startswith("<"):
        found = _of_markup(text)
    else:
        found = (text,)
    said = dict.fromkeys(line for each in found if (line := _on_one_line(each)))
    return ": ".join(said)


def reasons(root: Any) -> str:
    """Return the code and text of each Reason of an XML document."""
    found = (
        " ".join(child.text.strip() for child in each if child.text)
        for each in root.iterfind(".//{*}Reason")
    )
    return _on_one_line("; ".join(found))


def without(text: str, secrets: Iterable[str]) -> str:
    """Return a text without the keys in it."""
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= _SHORTEST_KEY:
            text = text.replace(secret, "***")
    return text


def _of_json(text: str) -> Iterator[str]:
    try:
        yield from _texts(json.loads(text), depth=0)
    except (ValueError, RecursionError):
        yield text


def _texts(value: Any, *, depth: int) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict) and depth < 3:
        for name in _FIELDS:
            yield from _texts(value.get(name), depth=depth + 1)
    elif isinstance(value, list) and depth < 3:
        for each in value[:3]:
            yield from _texts(each, depth=depth + 1)


def _of_markup(text: str) -> Iterator[str]:
    try:
        found = reasons(fromstring(text))
    except (ParseError, DefusedXmlException, ValueError):
        found = ""
    if found:
        yield found
        return
    title = re.search(r"<(title|h1)[^>]{0,200}>([^<]{1,200})<", text, re.IGNORECASE)
    if title:
        yield title.group(2)


def _on_one_line(text: str) -> str:
    return " ".join("".join(c if c.isprintable() else " " for c in text[:2000]).split())
