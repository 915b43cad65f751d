"""What is said over MQTT: JSON with a schema version, or a bare number."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NoReturn

SCHEMA: Final = 1
"""Version of all payloads; raised when a field changes its meaning, not when one is added."""

LONGEST_BYTES: Final = 65_536
"""Longest payload that is taken in; the longest that is sent is far shorter."""


class Refused(ValueError):
    """A payload that cannot be used, and why."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message as it came.

    Attributes:
        payload: Its bytes.
        retained: The broker had kept it: it may be of any age.
    """

    payload: bytes
    retained: bool = False


def to_json(record: Mapping[str, Any]) -> bytes:
    """Return a record as a payload, its schema version first.

    Raises:
        ValueError: It holds a number that JSON has not: infinity, or none.
    """
    versioned = {"schema": SCHEMA, **record}
    return json.dumps(versioned, allow_nan=False, separators=(",", ":")).encode()


def from_json(payload: bytes) -> Mapping[str, Any] | float:
    """Return the object, or the bare number, that a payload holds.

    Raises:
        Refused: It is too long, is neither, or is of another schema.
    """
    if len(payload) > LONGEST_BYTES:
        raise Refused(f"{len(payload)} bytes; at most {LONGEST_BYTES} are taken")
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
        Refused: It is missing, or no finite number.
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
    raise ValueError(f"{name} is no number")


def _short(value: object) -> str:
    text = repr(value)[:60]  # of integers, json.loads takes no more than 4300 digits
    return text if len(text) < 60 else f"{text[:57]}..."
