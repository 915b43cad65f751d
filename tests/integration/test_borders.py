"""Messages of others are read, or refused with an error of its own: no bytes are a bug."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.borders import borders

NAMES = sorted(borders())


@st.composite
def damaged(draw: st.DrawFn, seeds: list[bytes]) -> bytes:
    """Return a valid input with some accidents."""
    data = bytearray(draw(st.sampled_from(seeds)))
    for _ in range(draw(st.integers(0, 3))):
        first = draw(st.integers(0, len(data)))
        last = draw(st.integers(first, min(first + 16, len(data))))
        piece = draw(st.one_of(st.binary(max_size=9), st.sampled_from(WORDS)))
        data[first:last] = piece
    return bytes(data)


WORDS = [b"\xff" * 9, b"1e999", b"NaN", b"-1", b"null", b"[]", b"{}", b"9" * 400, b"\x00", b"\xf0"]
"""Pieces over which parsers trip."""


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
def test_any_bytes_are_read_or_refused(name: str, data: st.DataObject) -> None:
    border = borders()[name]

    border(data.draw(st.one_of(damaged(list(border.seeds)), st.binary(max_size=64))))


@pytest.mark.parametrize("name", NAMES)
def test_seeds_are_read(name: str) -> None:
    """Seeds that are refused would make the property above vacuous."""
    border = borders()[name]
    for seed in border.seeds:
        border.read(seed)
