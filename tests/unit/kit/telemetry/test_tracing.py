"""W3C trace context: what is valid goes on as it came, anything malformed is dropped."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.kit.telemetry.tracing import accept, enter, trace_id, traceparent, tracestate

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
HEADER = f"00-{TRACE}-00f067aa0ba902b7-01"


def test_a_valid_header_goes_on_as_it_came() -> None:
    """Without a span recorded here, the next one is a child of the caller's, not of one unseen."""
    assert enter("/m", [("traceparent", HEADER), ("tracestate", "a=1")], may_begin=True) is None

    assert traceparent.get() == accept(HEADER) == HEADER
    assert tracestate.get() == "a=1"
    assert trace_id(HEADER) == TRACE


@pytest.mark.parametrize(
    ("metadata", "wanted"),
    [
        ([("traceparent", HEADER), ("tracestate", "a=1"), ("tracestate", "b=2")], "a=1,b=2"),
        ([("traceparent", "broken"), ("tracestate", "a=1")], ""),
        ([("tracestate", "a=1")], ""),
        ([("traceparent", HEADER), ("tracestate", "a=" + "1" * 600)], ""),
        ([("traceparent", HEADER)], ""),
    ],
    ids=["two lines", "broken parent", "no parent", "too long", "none"],
)
def test_the_state_goes_with_its_parent_or_not_at_all(
    metadata: list[tuple[str, str | bytes]], wanted: str
) -> None:
    enter("/m", metadata, may_begin=False)

    assert tracestate.get() == wanted


def test_a_call_without_a_trace_forgets_the_one_before() -> None:
    enter("/m", [("traceparent", HEADER), ("tracestate", "a=1")], may_begin=True)
    enter("/m", [], may_begin=True)

    assert (traceparent.get(), tracestate.get()) == ("", "")


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
