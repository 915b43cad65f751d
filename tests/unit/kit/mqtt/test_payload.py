"""Payloads from MQTT: any bytes may come, and only possible numbers get in."""

import json
import math
from collections.abc import Mapping

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from services.kit.mqtt.payload import MAX_BYTES, Refused, from_json, number, to_json


@given(st.binary(max_size=200))
@example(b"[" * 60_000)
@example(b'{"a":' * 10_000)
@example(b"9" * 5000)
@example(b"1e400")
@example(b"NaN")
@example(b"true")
@example(b"\xff")
def test_whatever_comes_is_an_object_or_a_finite_number_or_refused(payload: bytes) -> None:
    try:
        found = from_json(payload)
    except Refused as error:
        reason = str(error)
    else:
        assert isinstance(found, Mapping) or math.isfinite(found)
        return

    assert len(reason) < 200, "a reason must not carry the payload into the log"


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_bare_number_is_what_it_says(value: float) -> None:
    assert from_json(f" {value!r}\n".encode()) == value


def test_a_published_payload_is_read_back() -> None:
    payload = to_json({"power_w": 812.5})

    found = from_json(payload)
    assert isinstance(found, Mapping)
    assert (found["schema"], number(found, "power_w")) == (1, 812.5)


@pytest.mark.parametrize("value", [None, True, "812", [812], 10**4000])
def test_what_is_no_finite_number_is_refused_by_name(value: object) -> None:
    with pytest.raises(Refused, match="power_w must be a finite number"):
        number({"power_w": value}, "power_w")


def test_a_required_number_that_is_missing_is_named() -> None:
    with pytest.raises(Refused, match="power_w is required"):
        number({}, "power_w")


@pytest.mark.parametrize("schema", [2, "1", None, True])
def test_a_schema_of_the_future_is_refused(schema: object) -> None:
    with pytest.raises(Refused, match="schema"):
        from_json(json.dumps({"schema": schema, "power_w": 1}).encode())


def test_a_payload_beyond_the_bound_is_not_even_parsed() -> None:
    with pytest.raises(Refused, match=f"at most {MAX_BYTES}"):
        from_json(b" " * MAX_BYTES + b"1")


def test_what_json_cannot_say_is_a_bug_of_ours() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        to_json({"ratio": math.inf})
