"""Frames as PyPI's `hyperframe`, an HTTP/2 library of others, reads and writes them."""

import pytest
from h2.errors import ErrorCodes
from h2.settings import SettingCodes
from hyperframe.frame import (
    DataFrame,
    Frame,
    GoAwayFrame,
    PingFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)
from hypothesis import given
from hypothesis import strategies as st

from services.kit.h2 import frames

streams = st.integers(1, 2**31 - 1)
uint32 = st.integers(0, 2**32 - 1)


def parsed(frame: bytes) -> Frame:
    """Return a whole frame as hyperframe reads it."""
    found, length = Frame.parse_frame_header(memoryview(frame[: frames.HEAD_BYTES]))
    assert length == len(frame) - frames.HEAD_BYTES
    found.parse_body(memoryview(frame[frames.HEAD_BYTES :]))
    return found


@given(streams, st.binary(max_size=300), st.booleans())
def test_a_frame_is_its_head_and_its_payload(stream: int, payload: bytes, ends: bool) -> None:
    """Length, type, flags and stream stand where another library writes them."""
    flags = ["END_STREAM"] if ends else []
    written = DataFrame(stream, payload, flags=flags).serialize()

    assert frames.frame(frames.DATA, frames.END_STREAM * ends, stream, payload) == written
    assert frames.frame(frames.DATA, 0, stream) == DataFrame(stream).serialize()


def test_an_acknowledged_ping_is_that_of_others() -> None:
    """Flags have a byte of their own."""
    written = PingFrame(0, b"12345678", flags=["ACK"]).serialize()

    assert frames.frame(frames.PING, frames.ACK, 0, b"12345678") == written


@given(st.dictionaries(st.integers(1, 2**16 - 1), uint32, max_size=6))
def test_settings_are_read_by_others(values: dict[int, int]) -> None:
    """Each name comes with its value, on the connection's stream, and acknowledges nothing."""
    found = parsed(frames.settings(values))

    assert isinstance(found, SettingsFrame)
    assert (found.stream_id, found.settings, set(found.flags)) == (0, values, set())


@given(st.just(0) | streams, st.integers(1, 2**31 - 1))
def test_a_window_update_is_read_by_others(stream: int, more: int) -> None:
    """The room goes to its stream, or to the connection."""
    found = parsed(frames.window_update(stream, more))

    assert isinstance(found, WindowUpdateFrame)
    assert (found.stream_id, found.window_increment) == (stream, more)


@given(streams, uint32)
def test_a_reset_is_read_by_others(stream: int, code: int) -> None:
    """The code goes to its stream."""
    found = parsed(frames.reset(stream, code))

    assert isinstance(found, RstStreamFrame)
    assert (found.stream_id, found.error_code) == (stream, code)


@given(streams, uint32, st.text(max_size=20))
def test_a_goaway_is_read_by_others(last: int, code: int, reason: str) -> None:
    """The last stream, the code and the reason are those that were given; none is the default."""
    found, bare = parsed(frames.goaway(last, code, reason)), parsed(frames.goaway(last, code))

    assert isinstance(found, GoAwayFrame)
    assert isinstance(bare, GoAwayFrame)
    assert (found.stream_id, found.last_stream_id, found.error_code) == (0, last, code)
    assert (found.additional_data, bare.additional_data) == (reason.encode(), b"")


def test_frames_without_flags_set_none() -> None:
    """Unknown flags are ignored by a peer today, and mean something tomorrow."""
    written = (
        frames.settings({}),
        frames.window_update(1, 1),
        frames.reset(1, 0),
        frames.goaway(1, 0),
    )

    assert [each[4] for each in written] == [0] * 4


@pytest.mark.parametrize("code", ErrorCodes)
def test_error_codes_are_those_of_others(code: ErrorCodes) -> None:
    """Each code of RFC 9113, 7 that has a name here has the number that `h2` gives it."""
    assert getattr(frames, code.name, code) == code


@pytest.mark.parametrize("setting", SettingCodes)
def test_settings_have_the_numbers_of_others(setting: SettingCodes) -> None:
    """Each setting of RFC 9113, 6.5.2 that has a name here has the number that `h2` gives it."""
    assert getattr(frames, setting.name, setting) == setting


def test_a_fault_has_its_code_and_its_reason() -> None:
    """The code goes to the peer, the reason into the log."""
    fault = frames.ConnectionFault(frames.PROTOCOL_ERROR, "a frame of no stream")

    assert (fault.code, str(fault)) == (1, "a frame of no stream")
