"""Messages of gRPC, cut out of whatever pieces the network makes of them."""

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.kit.h2.messages import PREFIX, Compressed, MessageError, MessageReader, compress

messages = st.lists(st.binary(max_size=200), max_size=8)


def framed(data: bytes, *, compressed: bool = False) -> bytes:
    return PREFIX.pack(compressed, len(data)) + data


def fed(reader: MessageReader, data: bytes, sizes: list[int]) -> None:
    """Feed `data` in pieces of these sizes, over and over, out of a buffer with others' bytes."""
    position, turn = 0, 0
    while position < len(data):
        piece = data[position : position + sizes[turn % len(sizes)]]
        reader.feed(memoryview(b"\xff" * 7 + piece + b"\xff" * 7), 7, 7 + len(piece))
        position += len(piece)
        turn += 1


@given(messages, st.lists(st.integers(0, 50), min_size=1, max_size=6).filter(any))
def test_messages_are_the_same_in_whatever_pieces_they_come(
    sent: list[bytes], sizes: list[int]
) -> None:
    taken: list[bytes | bytearray] = []
    reader = MessageReader(taken.append, 1000)
    fed(reader, b"".join(map(framed, sent)), sizes)

    assert taken == sent
    assert reader.whole


def inflated(message: Compressed, piece: int = 7) -> bytes:
    while not message.done:
        message.go_on(piece)
    return bytes(message.found)


@given(st.binary(max_size=500), st.sampled_from(["gzip", "deflate"]), st.integers(1, 40))
def test_compressed_messages_are_taken_as_they_were(data: bytes, encoding: str, size: int) -> None:
    """In whatever pieces they come, and are decompressed."""
    taken: list[bytes | bytearray] = []
    reader = MessageReader(lambda _: None, 1000, take_compressed=taken.append)
    fed(reader, framed(compress(data, encoding), compressed=True), [size])

    assert inflated(Compressed(taken[0], encoding, 1000), size) == data


def test_a_message_that_says_it_is_too_large_is_refused_before_it_comes() -> None:
    reader = MessageReader(lambda _: None, 1000)

    with pytest.raises(MessageError, match=r"larger than max \(1001 vs\. 1000\)") as caught:
        fed(reader, PREFIX.pack(0, 1001), [2])
    assert caught.value.too_large


@pytest.mark.parametrize(("size", "most"), [(10**5, 1000), (10**7, 10**8)])
def test_a_small_message_that_grows_beyond_a_limit_is_refused(size: int, most: int) -> None:
    """The first is too large; the second, of zeros, grows a thousand times."""
    message = Compressed(compress(bytes(size), "gzip"), "gzip", most)

    with pytest.raises(MessageError, match="Decompressed") as caught:
        inflated(message, 2**16)
    assert caught.value.too_large
    assert len(message.found) < 2**21


@pytest.mark.parametrize(
    "data", [b"not gzip", zlib.compress(b"x"), compress(bytes(range(100)), "gzip")[:-9]]
)
def test_damaged_compressed_messages_are_refused(data: bytes) -> None:
    """Another format, another encoding, one that ends early."""
    with pytest.raises(MessageError) as caught:
        inflated(Compressed(data, "gzip", 1000))
    assert not caught.value.too_large


@pytest.mark.parametrize("data", [PREFIX.pack(2, 3) + b"abc", framed(b"abc", compressed=True)])
def test_messages_that_are_not_as_agreed_are_refused(data: bytes) -> None:
    """An unknown flag, and compression without an encoding."""
    with pytest.raises(MessageError) as caught:
        fed(MessageReader(lambda _: None, 1000), data, [100])
    assert not caught.value.too_large


def test_messages_in_pieces_reserve_room_and_are_refused_without() -> None:
    room: list[int] = []

    def reserve(size: int) -> None:
        room.append(size)
        raise MessageError("as much as it may", too_large=True)

    reader = MessageReader(lambda _: None, 1000, reserve=reserve)

    with pytest.raises(MessageError, match="as much as it may") as caught:
        fed(reader, framed(bytes(900)), [100])
    assert caught.value.too_large
    assert room == [95], "what has come, not what was announced"
