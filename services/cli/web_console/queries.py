"""Parses requests; every error names the part and the allowed values."""

import math
from collections.abc import Mapping
from typing import Any, Final

from aiohttp import web
from pydantic_core import from_json

from services.console.documents import Document
from services.kit.errors import InvalidArgument
from services.kit.http.slow_clients import pieces
from services.kit.segment import whole_number

_MAX_BODY_BYTES: Final = 10_000
_MAX_HOURS: Final = 24 * 366
_DIGITS: Final = 9
"""Of a number: plan versions and hours are never that many."""

_FIGURES: Final = (
    "demand",
    "intensity",
    "price",
    "carbon_budget",
    "carbon_weight",
    "accuracy_mean",
    "accuracy_floor",
)


def version(given: Mapping[str, Any], name: str) -> int:
    """Return a plan version by its name."""
    text = str(given.get(name, ""))
    if (found := whole_number(text, 10**_DIGITS - 1)) is None:
        raise InvalidArgument(
            f"{name}: must be a plan version of at most {_DIGITS} digits; got {text[:80]!r}"
        )
    return found


def hours(request: web.Request) -> int:
    """Return the number of hours to look back; 24 by default."""
    text = request.query.get("hours", "24")
    if not (found := whole_number(text, _MAX_HOURS)):
        raise InvalidArgument(f"hours: must be 1..{_MAX_HOURS}, got {text[:80]!r}")
    return found


def step_s(request: web.Request) -> int:
    """Return the wanted length of a point of history, s; 0 by default: the shortest possible."""
    text = request.query.get("step", "0")
    if (found := whole_number(text, _MAX_HOURS * 3600)) is None:
        raise InvalidArgument(f"step: must be 0..{_MAX_HOURS * 3600} s, got {text[:80]!r}")
    return found


def circumstances(request: web.Request) -> dict[str, float | str | list[str]]:
    """Return the circumstances of a dry run: figures, a strategy, lost GPUs; and `why`."""
    given, known = request.query, {*_FIGURES, "strategy", "without", "why"}
    if unknown := set(given) - known:
        raise InvalidArgument(f"{min(unknown)[:80]}: must be one of {', '.join(sorted(known))}")
    found: dict[str, float | str | list[str]] = {
        name: _figure(name, text) for name, text in given.items() if name in _FIGURES
    }
    found |= {name: given[name] for name in ("strategy", "why") if given.get(name)}
    if without := given.getall("without", []):
        found["without"] = without
    return found


def receipts(request: web.Request) -> dict[str, float | str]:
    """Return a reader's selection of receipts: a sample of all, of a model or of a variant."""
    given, known = request.query, {"sample", "model", "variant"}
    if unknown := set(given) - known:
        raise InvalidArgument(f"{min(unknown)[:80]}: must be one of {', '.join(sorted(known))}")
    found: dict[str, float | str] = {name: text for name, text in given.items() if text}
    if "sample" in found:
        found["sample"] = _figure("sample", given["sample"])
    return found


def _figure(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise InvalidArgument(f"{name}: must be a number of 0 or more, got {text[:80]!r}")
    return value


async def body(request: web.Request) -> Document:
    """Return the object that a request carries."""
    content = b""
    async for piece in pieces(request):
        content += piece
        if len(content) > _MAX_BODY_BYTES:
            raise InvalidArgument(f"body: must be {_MAX_BODY_BYTES} bytes or fewer")
    try:
        found = from_json(content, allow_inf_nan=False)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise InvalidArgument("body: must be a JSON object")
    return found
