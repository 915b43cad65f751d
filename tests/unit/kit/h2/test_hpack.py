"""Header blocks: the examples of RFC 7541, and whatever PyPI's `hpack` writes."""

from collections.abc import Sequence
from copy import deepcopy

import pytest
from hpack import Decoder, Encoder
from hpack.hpack import encode_integer
from hypothesis import example, given
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
    """A literal of each kind and an indexed field are read as the RFC has them."""
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
    """Later requests refer to fields of earlier ones, with Huffman's code and without."""
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
    """Any fields come through the encoder of another library unchanged."""
    encoder, reader = Encoder(), HeaderReader(WIDE)
    for block in blocks:
        assert reader.read(encoder.encode(block, huffman=coded)) == block


def indexed(index: int) -> bytes:
    """A block of one field of the tables."""
    block = encode_integer(index, 7)
    block[0] |= 0x80
    return bytes(block)


def assert_entries(reader: HeaderReader, entries: int) -> None:
    """Fail unless a reader's dynamic table has exactly so many entries."""
    if entries:
        deepcopy(reader).read(indexed(61 + entries))
    with pytest.raises(HpackError, match="names no entry"):
        deepcopy(reader).read(indexed(62 + entries))


@given(st.lists(st.tuples(st.integers(0, 300) | st.just(4096), fields), max_size=8))
@example([(4096, [(b"%d" % number, b"v" * 500) for number in range(9)])])
def test_the_table_has_the_entries_of_its_peers_table(
    blocks: Sequence[tuple[int, list[tuple[bytes, bytes]]]],
) -> None:
    """Whatever the peer resizes its table to, both evict the same entries at the same time."""
    encoder, reader = Encoder(), HeaderReader(WIDE)
    for size, block in blocks:
        encoder.header_table_size = size
        assert reader.read(encoder.encode(block)) == block
        assert_entries(reader, len(encoder.header_table.dynamic_entries))


def test_an_entry_may_fill_the_table_to_the_last_byte() -> None:
    """An entry of 38 bytes stays in a table of 38, and goes from one of 37."""
    for size, entries in ((38, 1), (37, 0)):
        encoder, reader = Encoder(), HeaderReader(WIDE)
        encoder.header_table_size = size
        reader.read(encoder.encode([(b"a", b"12345")]))
        assert_entries(reader, entries)


@pytest.mark.parametrize(("first", "entries"), [(0x00, 0), (0x10, 0), (0x40, 1)])
def test_only_one_kind_of_literal_is_kept(first: int, entries: int) -> None:
    """The literals of RFC 7541, 6.2.2 and 6.2.3 leave the table alone, that of 6.2.1 does not."""
    reader = HeaderReader(WIDE)

    assert reader.read(bytes((first | 1, 1)) + b"x") == [(b":authority", b"x")]
    assert_entries(reader, entries)


def test_the_largest_index_of_the_static_table_is_61() -> None:
    """Entries of the peer come after it."""
    assert HeaderReader(WIDE).read(indexed(61)) == [(b"www-authenticate", b"")]
    assert_entries(HeaderReader(WIDE), 0)


@given(st.lists(st.binary(max_size=60), max_size=5))
def test_damaged_blocks_are_refused_and_nothing_else_happens(blocks: list[bytes]) -> None:
    """Any bytes are either fields or an error of their own kind."""
    reader = HeaderReader(WIDE)
    for block in blocks:
        try:
            reader.read(block)
        except HpackError:
            return


@pytest.mark.parametrize(
    ("block", "reason"),
    [
        ("80", "a header field of index 0"),
        ("be", "names no entry of a table"),
        ("82ff", "ends early"),
        ("00", "ends early"),
        ("0003616263", "ends early"),
        ("00036162", "ends within a string"),
        ("ffffffffff7f", "an integer of more than 28 bits"),
        ("3fe21f", "a dynamic table of 4097 bytes"),
        ("823f00", "resized within a block"),
        ("40816101ff", "(?i)huffman"),
    ],
)
def test_a_damaged_block_is_refused_with_its_reason(block: str, reason: str) -> None:
    """Each way of damage is an error of its own, none is read as something else."""
    with pytest.raises(HpackError, match=reason):
        HeaderReader(WIDE).read(bytes.fromhex(block))


def test_a_table_may_be_as_large_as_the_default_and_resized_twice_at_a_blocks_start() -> None:
    """The limit of 4096 bytes is one that peers may reach."""
    assert HeaderReader(WIDE).read(bytes.fromhex("203fe11f82")) == [(b":method", b"GET")]


@given(st.from_regex(r"[a-z][a-z0-9-]{0,30}", fullmatch=True), st.binary(max_size=300))
@example("a" * 126, b"v" * 126)
@example("a" * 127, b"v" * 127)
@example("a" * 128, b"v" * 128)
@example("a" * 255, b"v" * 255)
@example("a" * 300, b"v" * 20_000)
def test_literals_are_read_by_hpack_and_change_no_table(name: str, value: bytes) -> None:
    """Lengths of one byte and of several are as another library, and this reader, read them."""
    decoder, reader = Decoder(), HeaderReader(WIDE)
    block = literal(name, value)

    assert decoder.decode(block, raw=True) == [(name.encode(), value)]
    assert not decoder.header_table.dynamic_entries
    assert reader.read(block) == [(name.encode(), value)]
    assert_entries(reader, 0)


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


@given(fields)
def test_a_list_may_be_as_large_as_its_limit_and_no_byte_larger(
    block: list[tuple[bytes, bytes]],
) -> None:
    """Each field counts with its name, its value and 32 bytes more."""
    size = sum(len(name) + len(value) + 32 for name, value in block)

    for list_bytes in (size, max(size - 1, 0)):
        reader = HeaderReader(list_bytes)
        found = reader.read(Encoder().encode(block))
        assert reader.cut == (list_bytes < size)
        assert found == block or reader.cut


def test_equal_blocks_are_parsed_again_once_the_table_has_changed() -> None:
    """An index means another field after another entry came."""
    blocks = HeaderBlocks(lambda found, _: dict(found), WIDE)
    encoder = Encoder()
    blocks.read(encoder.encode([(b"a", b"1")]))
    first = blocks.read(b"\xbe")
    blocks.read(encoder.encode([(b"b", b"2")]))

    assert first == {b"a": b"1"}
    assert blocks.read(b"\xbe") == {b"b": b"2"}


class Parser:
    """Counts how often it parses."""

    def __init__(self) -> None:
        self.parsed = 0

    def __call__(self, block: list[tuple[bytes, bytes]], _: bool) -> dict[bytes, bytes]:
        self.parsed += 1
        return dict(block)


def test_equal_blocks_are_parsed_once_while_the_table_stands_still() -> None:
    """The second of two equal blocks costs no parsing, and means the same."""
    parser = Parser()
    blocks = HeaderBlocks(parser, WIDE)
    first, other = literal("a", b"1"), literal("b", b"2")

    assert [blocks.read(each) for each in (first, other, first, other)] == [
        {b"a": b"1"},
        {b"b": b"2"},
    ] * 2
    assert parser.parsed == 2


def test_a_block_is_parsed_again_once_its_entry_was_evicted() -> None:
    """A resized table has changed, however many changes came before."""
    blocks = HeaderBlocks(Parser(), WIDE)
    blocks.read(Encoder().encode([(b"a", b"1")]))

    assert blocks.read(b"\xbe") == {b"a": b"1"}
    assert blocks.read(b"\x20") == {}
    with pytest.raises(HpackError, match="names no entry"):
        blocks.read(b"\xbe")


@pytest.mark.parametrize(("padding", "parsed"), [(0, 1), (1, 2)])
def test_blocks_of_up_to_a_kilobyte_are_kept(padding: int, parsed: int) -> None:
    """A peer cannot have much kept by sending large blocks."""
    block = literal("a", b"v" * (1018 + padding))
    assert len(block) == 1024 + padding
    parser = Parser()
    blocks = HeaderBlocks(parser, WIDE)
    blocks.read(block)
    blocks.read(block)

    assert parser.parsed == parsed
