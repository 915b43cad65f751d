"""Header blocks: the examples of RFC 7541, and whatever PyPI's `hpack` writes."""

import pytest
from hpack import Decoder, Encoder
from hypothesis import given
from hypothesis import strategies as st

from services.kit.h2.admission import Room
from services.kit.h2.hpack import HeaderBlocks, HeaderReader, HpackError, literal

WIDE = 2**20

REQUESTS = (
    [(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "www.example.com")],
    [
        (":method", "GET"),
        (":scheme", "http"),
        (":path", "/"),
        (":authority", "www.example.com"),
        ("cache-control", "no-cache"),
    ],
    [
        (":method", "GET"),
        (":scheme", "https"),
        (":path", "/index.html"),
        (":authority", "www.example.com"),
        ("custom-key", "custom-value"),
    ],
)

texts = st.binary(max_size=40)
fields = st.lists(st.tuples(st.binary(min_size=1, max_size=20), texts), max_size=12)


def read(reader: HeaderReader, block: str) -> list[tuple[str, str]]:
    found = reader.read(bytes.fromhex(block))
    return [(name.decode(), value.decode()) for name, value in found]


@pytest.mark.parametrize(
    ("block", "field"),
    [
        ("400a637573746f6d2d6b65790d637573746f6d2d686561646572", ("custom-key", "custom-header")),
        ("040c2f73616d706c652f70617468", (":path", "/sample/path")),
        ("100870617373776f726406736563726574", ("password", "secret")),
        ("82", (":method", "GET")),
    ],
)
def test_single_fields_are_those_of_appendix_c2(block: str, field: tuple[str, str]) -> None:
    assert read(HeaderReader(WIDE), block) == [field]


@pytest.mark.parametrize(
    "blocks",
    [
        (
            "828684410f7777772e6578616d706c652e636f6d",
            "828684be58086e6f2d6361636865",
            "828785bf400a637573746f6d2d6b65790c637573746f6d2d76616c7565",
        ),
        (
            "828684418cf1e3c2e5f23a6ba0ab90f4ff",
            "828684be5886a8eb10649cbf",
            "828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf",
        ),
    ],
    ids=["C.3 plain", "C.4 Huffman"],
)
def test_requests_of_one_connection_are_those_of_appendices_c3_and_c4(
    blocks: tuple[str, ...],
) -> None:
    reader = HeaderReader(WIDE)

    assert tuple(read(reader, block) for block in blocks) == REQUESTS


def test_a_full_table_forgets_its_oldest_as_in_appendix_c5() -> None:
    """A table of 256 bytes, set by the block's own size update."""
    reader = HeaderReader(WIDE)
    reader.read(bytes.fromhex("3fe101"))
    first = read(
        reader,
        "4803333032580770726976617465611d4d6f6e2c203231204f637420323031332032303a31333a323120474d54"
        "6e1768747470733a2f2f7777772e6578616d706c652e636f6d",
    )
    second = read(reader, "4803333037c1c0bf")

    assert first[0][1] == "302"
    assert second == [(":status", "307"), *first[1:]]


@given(st.lists(fields, max_size=6), st.booleans())
def test_whatever_hpack_writes_is_read(
    blocks: list[list[tuple[bytes, bytes]]], coded: bool
) -> None:
    encoder, reader = Encoder(), HeaderReader(WIDE)
    for block in blocks:
        assert reader.read(encoder.encode(block, huffman=coded)) == block


@given(st.lists(st.binary(max_size=60), max_size=5))
def test_damaged_blocks_are_refused_and_nothing_else_happens(blocks: list[bytes]) -> None:
    reader = HeaderReader(WIDE)
    for block in blocks:
        try:
            reader.read(block)
        except HpackError:
            return


@given(st.from_regex(r"[a-z][a-z0-9-]{0,30}", fullmatch=True), st.binary(max_size=300))
def test_literals_are_read_by_hpack_and_change_no_table(name: str, value: bytes) -> None:
    decoder = Decoder()

    assert decoder.decode(literal(name, value), raw=True) == [(name.encode(), value)]
    assert not decoder.header_table.dynamic_entries


def test_a_small_block_cannot_mean_a_large_list() -> None:
    """An entry of 4 kB, named a thousand times by one byte each: four of them are kept."""
    reader = HeaderReader(16 * 1024)
    reader.read(Encoder().encode([(b"x", b"y" * 3900)], huffman=False))

    assert len(reader.read(b"\xbe" * 1000)) == 4
    assert reader.cut


@given(st.lists(fields, max_size=8), st.integers(0, 200))
def test_what_is_discarded_of_a_list_leaves_the_table_as_the_peer_has_it(
    blocks: list[list[tuple[bytes, bytes]]], list_bytes: int
) -> None:
    """Entries of the part that was discarded can be named by later blocks."""
    encoder, reader, whole = Encoder(), HeaderReader(list_bytes), HeaderReader(WIDE)
    for block in blocks:
        coded = encoder.encode(block)
        found = reader.read(coded)
        assert found == whole.read(coded)[: len(found)]
        assert reader.cut == (len(found) < len(block))
    assert reader._entries == whole._entries


def test_parsed_blocks_are_kept_within_a_room_that_connections_share() -> None:
    """Heads of 16 kB by 500 bytes each: 60 connections keep what the server has room for."""
    room = Room(2**18)
    connections = [HeaderBlocks(lambda found, _: found, 16 * 1024, room) for _ in range(60)]
    for blocks in connections:
        blocks.read(Encoder().encode([(b"x", b"y" * 3900)], huffman=False))
        for number in range(500):
            blocks.read(b"\xbe" * 4 + literal("n", str(number).encode()))
        assert sum(map(len, (blocks._known for blocks in connections))) < 2**18 // 15_000
    for blocks in connections:
        blocks.forget()
    assert room.taken == 0


def test_equal_blocks_are_parsed_again_once_the_table_has_changed() -> None:
    """An index means another field after another entry came."""
    blocks = HeaderBlocks(lambda found, _: dict(found), WIDE)
    encoder = Encoder()
    blocks.read(encoder.encode([(b"a", b"1")]))
    first = blocks.read(b"\xbe")
    blocks.read(encoder.encode([(b"b", b"2")]))

    assert first == {b"a": b"1"}
    assert blocks.read(b"\xbe") == {b"b": b"2"}
