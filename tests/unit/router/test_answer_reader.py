"""Answers of servers behind a gateway: every byte passes, tokens are those that were stated."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from services.router.core.answer_reader import MOST_HELD_BYTES, AnswerReader

USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}}


def event(choices: list[Any], **more: Any) -> bytes:
    return b"data: %b\n\n" % json.dumps({"choices": choices, **more}).encode()


TEXT = [event([{"text": f' "usage": {{ {n}'}]) for n in range(3)]  # a text that looks like one
STREAM = b"".join((*TEXT, event([], usage=USAGE), b"data: [DONE]\n\n"))
WHOLE = json.dumps({"choices": [{"text": "a"}], "usage": USAGE}).encode()


def read(reader: AnswerReader, body: bytes, cuts: list[int]) -> tuple[bytes, bytes]:
    """Return all that went on at once, and the last part."""
    passed, last, start = b"", b"", 0
    for at, end in enumerate([*sorted(cuts), len(body)]):
        more, ending = reader.take(body[start:end], 1.0 + at, last=end == len(body))
        assert not last or not ending, "there is one last part"
        if last:
            last += more
        else:
            passed, last = passed + more, ending
        start = end
    return passed, last


@given(st.lists(st.integers(0, len(STREAM) - 1), max_size=6, unique=True))
def test_a_stream_in_any_pieces_passes_whole_and_its_end_begins_with_the_usage(
    cuts: list[int],
) -> None:
    reader = AnswerReader(events=True, arrived_s=0.5)

    passed, last = read(reader, STREAM, cuts)

    assert passed + last == STREAM
    assert last.startswith(event([], usage=USAGE)[:20])
    usage = reader.usage()
    assert (usage.input_tokens, usage.output_tokens, usage.cached_tokens) == (7, 3, 2)
    assert usage.first_token_s >= 0.5


@given(st.lists(st.integers(1, len(WHOLE) - 1), max_size=4, unique=True))
def test_one_document_is_held_until_its_end(cuts: list[int]) -> None:
    reader = AnswerReader(events=False, arrived_s=0.0)

    passed, last = read(reader, WHOLE, cuts)

    assert (passed, last) == (b"", WHOLE)
    assert reader.usage().output_tokens == 3


def test_without_a_usage_the_end_is_the_last_event_and_events_count() -> None:
    reader = AnswerReader(events=True, arrived_s=0.0)

    passed, last = reader.take(b"".join(TEXT) + b"data: [DONE]\n\n", 1.0, last=False)

    assert (passed, last) == (b"".join(TEXT), b"data: [DONE]\n\n")
    assert reader.usage().output_tokens == 3


def test_what_is_too_large_to_hold_passes_without_being_read() -> None:
    document = AnswerReader(events=False, arrived_s=0.0)
    events = AnswerReader(events=True, arrived_s=0.0)
    large = b"{" + b" " * MOST_HELD_BYTES

    assert document.take(large, 1.0, last=False) == (large, b"")
    assert document.take(b"}", 1.0, last=True) == (b"}", b"")
    assert events.take(large, 1.0, last=False) == (large, b"")


def test_figures_of_a_server_are_bounded() -> None:
    reader = AnswerReader(events=False, arrived_s=0.0)
    absurd = {"usage": {"prompt_tokens": -1, "completion_tokens": 10**30}}

    reader.take(json.dumps(absurd).encode(), 1.0, last=True)

    assert reader.usage().input_tokens == 0
    assert reader.usage().output_tokens == 2**24
