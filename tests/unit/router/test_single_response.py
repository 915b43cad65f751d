"""A decoupled model's answer to a caller who takes one response."""

import pytest

from services.kit.errors import Unimplemented
from services.router.core.model import Instance
from services.router.core.single_response import SingleResponse

INSTANCE = Instance("e", "s", "m", "v", 0.9, 1.0, 1)


def answer(parts: list[bytes], last: bytes) -> bytes:
    """Return what a unary call gets."""
    side = SingleResponse("m")
    for part in parts:
        side.receive_part(INSTANCE, part)
    return side.complete(last)


@pytest.mark.parametrize(("parts", "last"), [([], b"x"), ([b"x"], b"")])
def test_one_response_is_an_answer_whenever_it_came(parts: list[bytes], last: bytes) -> None:
    assert answer(parts, last) == b"x"


@pytest.mark.parametrize(
    ("parts", "last", "words"),
    [
        ([], b"", "no response"),
        ([b"x"], b"y", "more than one response"),
        ([b"x", b"y"], b"", "more than one response"),
    ],
)
def test_none_or_several_are_refused_with_what_to_call(
    parts: list[bytes], last: bytes, words: str
) -> None:
    with pytest.raises(Unimplemented, match=f"{words}.*ModelStreamInfer"):
        answer(parts, last)
