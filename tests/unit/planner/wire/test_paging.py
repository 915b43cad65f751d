"""Tokens are ours or refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.kit.errors import InvalidArgument
from services.planner.adapters.wire.paging import page_size, read_token, write_token


@given(st.integers(0, 2**63 - 1))
def test_a_token_reads_back(version: int) -> None:
    assert read_token(write_token(version)) == version


@given(st.text(min_size=1))
def test_a_token_that_was_not_given_out_is_refused(token: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        read_token(token)
    assert caught.value.field == "page_token"


@pytest.mark.parametrize(
    "forged", ["cGxhbnMtYmVsb3c6LTE=", "cGxhbnMtYmVsb3c6MDE=", "MTI=", write_token(2**63)]
)
def test_nearly_right_tokens_are_refused(forged: str) -> None:
    """A negative version, a version spelled otherwise, no prefix, more than a database holds."""
    with pytest.raises(InvalidArgument):
        read_token(forged)


def test_page_sizes_have_a_default_and_a_bound() -> None:
    assert [page_size(size) for size in (0, 1, 1000)] == [50, 1, 1000]
    with pytest.raises(InvalidArgument, match=r"0\.\.1000, got 1001"):
        page_size(1001)
