"""MQTT payloads: JSON with a schema version, or a bare number."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NoReturn

SCHEMA: Final = 1
"""Version of all payloads; increased when a field changes its meaning, not when one is added."""

MAX_BYTES: Final = 65_536
"""Maximum size of a received payload; sent ones are far shorter."""


class Refused(ValueError):
    """A payload cannot be used; the message says why."""


@dataclass(frozen=True, slots=True)
class Message:
    """A received message.

    Attributes:
        payload: Its bytes.
        retained: Whether the broker had retained it: it may be of any age.
    """

    payload: bytes
    retained: bool = False


def to_json(record: Mapping[str, Any]) -> bytes:
    """Return a record as a payload, its schema version first.

    Raises:
        ValueError: It has a number that JSON lacks: infinity or NaN.
    """
    versioned = {"schema": SCHEMA, **record}
    return json.dumps(versioned, allow_nan=False, separators=(",", ":")).encode()


def from_json(payload: bytes) -> Mapping[str, Any] | float:
    """Return the object or the bare number of a payload.

    Raises:
        Refused: The payload is too long, is neither, or has another schema.
    """
    if len(payload) > MAX_BYTES:
        raise Refused(f"{len(payload)} bytes; at most {MAX_BYTES} are accepted")
    try:
        found = json.loads(payload.decode(), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise Refused(f"neither JSON nor a number: {_short(payload)}") from error
    if not isinstance(found, dict):
        return _number(found, "the payload")
    version = found.get("schema", SCHEMA)
    if version != SCHEMA or isinstance(version, bool):
        raise Refused(f"schema {_short(version)}; this service reads {SCHEMA}")
    return found


def number(record: Mapping[str, Any], key: str) -> float:
    """Return a required number of an object.

    Raises:
        Refused: The number is missing or not finite.
    """
    if key not in record:
        raise Refused(f"{key} is required")
    return _number(record[key], key)


def _number(value: object, name: str) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if math.isfinite(number):
            return number
    raise Refused(f"{name} must be a finite number, got {_short(value)}")


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


def _short(value: object) -> str:
    text = repr(value)[:60]  # of integers, json.loads takes no more than 4300 digits
    return text if len(text) < 60 else f"{text[:57]}..."
