"""W3C trace context: the trace goes on under a new parent, anything malformed is dropped."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.kit.tracing import accept, trace_id

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
HEADER = f"00-{TRACE}-00f067aa0ba902b7-01"


def test_a_child_keeps_trace_and_flags_and_has_an_id_of_its_own() -> None:
    child = accept(HEADER)

    assert trace_id(child) == TRACE
    assert child.endswith("-01")
    assert child != HEADER
    assert accept(child), "a child is itself a valid parent"


@pytest.mark.parametrize(
    "header",
    [
        "",
        "hello",
        HEADER.upper(),
        HEADER[:-1],
        f"{HEADER}0",
        f"{HEADER}\n",
        HEADER.replace("00-", "ff-", 1),
        HEADER.replace(TRACE, "0" * 32),
        HEADER.replace("00f067aa0ba902b7", "0" * 16),
    ],
    ids=[
        "empty", "words", "upper case", "short", "long", "line feed", "version", "no trace",
        "no parent",
    ],
)  # fmt: skip
def test_a_malformed_header_is_dropped(header: str) -> None:
    assert accept(header) == ""


@given(header=st.text(max_size=60))
def test_no_text_breaks_it(header: str) -> None:
    assert accept(header) == "" or trace_id(accept(header)) == header[3:35]
