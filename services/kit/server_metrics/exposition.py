"""Reads Prometheus' text format as others write it, within bounds. Pure.

A page comes from a server that is not ours: it may be of any size, have any names, and say NaN.
What is wanted is found by its prefix before a line is parsed; what does not fit is left out, where
`prometheus_client.parser` refuses the whole page and copies the rest of a line at each label.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

MAX_PAGE_BYTES: Final = 4 * 2**20
"""Size up to which a page is read; vLLM's, of one model, is about 100 kB."""

MAX_SAMPLES: Final = 20_000
MAX_LINE_BYTES: Final = 4096
MAX_LABELS: Final = 32
MAX_VALUE: Final = 1e18
"""Largest value that counts: counters are exact up to 2 ** 53, and no server has more tokens."""


@dataclass(frozen=True, slots=True)
class Series:
    """A sample. Attributes: name, labels, value (finite, 0 .. MAX_VALUE)."""

    name: str
    labels: Mapping[str, str]
    value: float


def read(page: bytes, prefixes: tuple[str, ...]) -> Iterator[Series]:
    """Yield the samples whose names begin with one of the prefixes, at most MAX_SAMPLES.

    Args:
        page: The page; read up to MAX_PAGE_BYTES.
        prefixes: Of names.
    """
    wanted, count, start = tuple(map(str.encode, prefixes)), 0, 0
    end_of_page = min(len(page), MAX_PAGE_BYTES)
    while start < end_of_page and count < MAX_SAMPLES:
        end = page.find(b"\n", start, end_of_page)
        end = end_of_page if end < 0 else end
        if page.startswith(wanted, start, end) and end - start <= MAX_LINE_BYTES:
            found = _series(page[start:end].decode("utf-8", "replace"))
            if found is not None:
                yield found
            count += 1
        start = end + 1


def _series(line: str) -> Series | None:
    """Return a line's sample; None: it is not one, or its value is not usable."""
    bracket = line.find("{")
    if bracket < 0:
        name, _, rest = line.partition(" ")
        labels: dict[str, str] | None = {}
    else:
        name = line[:bracket]
        labels, end = _labels(line, bracket + 1)
        rest = line[end:]
    number = rest.split(maxsplit=1)
    if labels is None or not number:
        return None
    try:
        value = float(number[0])
    except ValueError:
        return None
    if not math.isfinite(value) or not 0 <= value <= MAX_VALUE:
        return None
    return Series(name.strip(), labels, value)


def _labels(line: str, at: int) -> tuple[dict[str, str] | None, int]:
    """Return the labels that begin at a place, and the place after them; None: malformed."""
    labels: dict[str, str] = {}
    while len(labels) <= MAX_LABELS:
        while line[at : at + 1] in {",", " "}:
            at += 1
        if line[at : at + 1] == "}":
            return labels, at + 1
        equals = line.find('="', at)
        if equals < 0:
            return None, len(line)
        end = equals + 2
        while end < len(line) and line[end] != '"':
            end += 2 if line[end] == "\\" else 1
        if end >= len(line):
            return None, len(line)
        value = line[equals + 2 : end]
        labels[line[at:equals].strip()] = _unescaped(value) if "\\" in value else value
        at = end + 1
    return None, len(line)


def _unescaped(text: str) -> str:
    return text.replace("\\\\", "\0").replace('\\"', '"').replace("\\n", "\n").replace("\0", "\\")
