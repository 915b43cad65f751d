"""Messages read field by field say what protobuf's own classes say."""

import random

import pytest
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet
from hypothesis import example, given
from hypothesis import strategies as st

from cinquefoil.gpuagent.v1 import worker_pb2 as pb
from services.kit.protobuf_wire import (
    BYTES,
    END_GROUP,
    FIXED32,
    FIXED64,
    GROUP,
    MAX_FIELDS,
    VARINT,
    fields,
    read_varint,
    taken_out,
    varint,
)

WORK = st.builds(
    pb.Work,
    id=st.integers(0, 2**64 - 1),
    request=st.binary(max_size=40),
    remaining_s=st.floats(0, 1e6),
    traceparent=st.text(max_size=9),
)
UINT64 = st.integers(0, 300) | st.integers(0, 2**64 - 1)


def tag(number: int, kind: int) -> bytes:
    return varint(number << 3 | kind)


def group(number: int, inner: bytes) -> bytes:
    return tag(number, GROUP) + inner + tag(number, END_GROUP)


def message_of(rng: random.Random, depth: int = 0) -> bytes:
    """A message of a few fields of every kind, with groups in groups."""
    found = []
    for _ in range(rng.randrange(5)):
        number = rng.choice([rng.randint(1, 40), 2**28, 2**29 - 1])
        match rng.randrange(6 if depth < 3 else 4):
            case 0:
                found.append(tag(number, VARINT) + varint(rng.getrandbits(rng.randint(1, 64))))
            case 1:
                found.append(tag(number, FIXED64) + rng.randbytes(8))
            case 2:
                found.append(tag(number, FIXED32) + rng.randbytes(4))
            case 3:
                size = rng.choice([rng.randrange(20), 127, 128, 300])
                found.append(tag(number, BYTES) + varint(size) + rng.randbytes(size))
            case _:
                found.append(group(number, message_of(rng, depth + 1)))
    return b"".join(found)


MESSAGES = st.integers(0, 2**64).map(lambda seed: message_of(random.Random(seed)))


def read(data: bytes) -> list[tuple[int, int, object]] | None:
    """Return (number, wire type, value) of a message's fields as this module finds them.

    None: it is refused. Other bytes lie before and behind it.
    """
    around = b"\x08" + data + b"\x08\x01"
    found: list[tuple[int, int, object]] = []
    try:
        for number, kind, start, end in fields(around, 1, 1 + len(data)):
            value = around[start:end]
            match kind:
                case 0:
                    found.append((number, kind, read_varint(value, 0)[0]))
                case 1 | 5:
                    found.append((number, kind, int.from_bytes(value, "little")))
                case _:
                    found.append((number, kind, value))
    except (ValueError, IndexError):
        return None
    return found


def parsed(data: bytes) -> list[tuple[int, int, object]] | None:
    """Return the same as protobuf's own parser finds them."""
    try:
        unknown = UnknownFieldSet(Empty.FromString(data))
    except DecodeError:
        return None
    every = ((each.field_number, each.wire_type, each.data) for each in unknown)  # type: ignore[attr-defined]
    return [each for each in every if each[1] != GROUP]


@given(MESSAGES)
def test_each_field_is_what_protobuf_finds(message: bytes) -> None:
    """Numbers, wire types and values are those of protobuf's parser; groups are skipped whole."""
    found = read(message)

    assert found is not None
    assert found == parsed(message)


@given(MESSAGES, st.integers(0, 400), st.integers(0, 255), st.booleans())
@example(b"\x0c", 9, 0, False)
@example(b"\x0b\x14", 9, 0, False)
@example(b"\x0b", 9, 0, False)
@example(b"\x0e\x01", 9, 0, False)
@example(b"\x00\x01", 9, 0, False)
@example(b"\x08" + b"\xff" * 9 + b"\x01", 99, 0, False)
@example(b"\x08" + b"\xff" * 10 + b"\x01", 99, 0, False)
def test_damage_is_refused_where_protobuf_refuses_it(
    message: bytes, place: int, byte: int, cut: bool
) -> None:
    """A message that ends early, or has another byte somewhere, is read or refused by both."""
    if place < len(message):
        message = message[:place] + (b"" if cut else bytes((byte,)) + message[place + 1 :])

    assert read(message) == parsed(message)


@given(UINT64)
@example(0x7F)
@example(0x80)
@example(2**64 - 1)
def test_a_number_is_written_as_protobuf_does_and_read_back(value: int) -> None:
    """Whatever stands before and behind it; the shortest form is written."""
    written = varint(value)

    assert tag(1, VARINT) + written == pb.Work(id=value).SerializeToString() or value == 0
    assert read_varint(b"\xff" + written + b"\xff", 1) == (value, 1 + len(written))


def test_a_number_has_64_bits_and_at_most_ten_bytes() -> None:
    """Higher bits are dropped, as protobuf drops them; an eleventh byte is refused."""
    assert read_varint(b"\xff" * 9 + b"\x7f", 0) == (2**64 - 1, 10)
    with pytest.raises(ValueError, match="more than 10 bytes"):
        read_varint(b"\xff" * 10 + b"\x01", 0)
    with pytest.raises(IndexError):
        read_varint(b"\xff", 0)


def test_a_field_that_ends_early_is_refused_with_its_reason() -> None:
    """Five bytes are announced, two come."""
    with pytest.raises(ValueError, match=r"^truncated$"):
        list(fields(tag(1, BYTES) + b"\x05ab", 0, 4))


def test_groups_nest_up_to_a_hundred_deep() -> None:
    """A hundred groups in one another are skipped, one more is refused."""
    for depth, found in ((100, []), (101, None)):
        nested = b""
        for _ in range(depth):
            nested = group(1, nested)
        assert read(nested) == found


def test_a_message_has_a_bounded_number_of_fields() -> None:
    """One field more is refused: it would hold the loop."""
    one = tag(1, VARINT) + varint(1)
    assert len(list(fields(one * MAX_FIELDS, 0, 2 * MAX_FIELDS))) == MAX_FIELDS
    with pytest.raises(ValueError, match="field number"):
        list(fields(one * (MAX_FIELDS + 1), 0, 2 * (MAX_FIELDS + 1)))


@given(
    message=st.builds(
        pb.ExecuteRequest,
        work=st.lists(WORK, max_size=4),
        cancelled_ids=st.lists(st.integers(0, 2**64 - 1), max_size=4),
    )
)
def test_what_is_taken_out_and_what_is_left_are_the_message(message: pb.ExecuteRequest) -> None:
    """Nothing is lost, doubled or changed, whatever stands around the field."""
    rest, work = taken_out(memoryview(message.SerializeToString()), 1)

    assert [pb.Work.FromString(bytes(each)) for each in work] == list(message.work)
    assert list(pb.ExecuteRequest.FromString(rest).cancelled_ids) == list(message.cancelled_ids)
    assert not pb.ExecuteRequest.FromString(rest).work


def test_only_bytes_are_taken_out() -> None:
    """A field of the same number and another wire type stays."""
    other, wanted = tag(1, VARINT) + b"\x05", tag(1, BYTES) + b"\x01x"

    rest, found = taken_out(memoryview(other + wanted + other), 1)

    assert (rest, [bytes(each) for each in found]) == (other * 2, [b"x"])
