"""Reading a ModelInferRequest without decoding it, and adding to a ModelInferResponse.

Only what routing needs is read. Bytes that protobuf's own parser refuses at the top level, or in
what is read here, are refused; tensors are skipped over, the worker checks them.
Source: Protocol Buffers documentation, "Encoding".
"""

import json
import math
import struct
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache

from services.kit import api_requests
from services.kit.errors import InvalidArgument, ResourceExhausted
from services.kit.protobuf_wire import BYTES, FIXED64, VARINT, fields, read_varint, varint

# InferParameter: wire type by field number, and which are integers.
_CHOICES = {1: VARINT, 2: VARINT, 3: BYTES, 4: FIXED64, 5: VARINT}
_INTEGERS = (2, 5)

_MAX_PIECES = 8  # fields of an entry of a map, which has two, and of a parameter, which has one
_SIZE_BYTES = 4  # before an element of a BYTES tensor
_DOUBLE = struct.Struct("<d")
ACCURACY_FLOOR = "accuracy_floor"
WAIT_UNTIL = "wait_until"
_MAX_TIME_S = 2.0**40
_MAX_SHOWN = 64
_BODY_ENTRY = api_requests.PATH_PARAMETER.encode()


@dataclass(frozen=True, slots=True)
class Head:
    """Fields of a request that routing reads.

    Attributes:
        model_name: As sent.
        model_version: As sent; "" where absent.
        id: The client's identifier of the request.
        timeout_s: The `timeout` parameter (on the wire: microseconds), or None.
        priority: The `priority` parameter: lower is sooner; 0: the default.
        accuracy_floor: The `accuracy_floor` parameter: least accuracy of the variant that answers.
        max_tokens: The `max_tokens` parameter; 0 where absent or, for the worker, invalid.
        text_bytes: Not in the request: as of `core.model.Request`.
        adapter: Not in the request: the adapter of its model that it names; "": none.
        only: Not in the request: endpoints of the instances that may answer it; None: any.
        deferrable: It can wait: it has `wait_until`, or its caller says so otherwise.
        one_of_many: Not in the request: its call has others as well, and counts none of them.
        wait_until_s: The `wait_until` parameter, s since the epoch; None: where it is deferrable,
            as long as `router.waiting.timeout_s` allows.
    """

    model_name: str
    model_version: str = ""
    id: str = ""
    timeout_s: float | None = None
    priority: int = 0
    accuracy_floor: float = 0.0
    max_tokens: int = 0
    text_bytes: int = 0
    adapter: str = ""
    only: frozenset[str] | None = None
    deferrable: bool = False
    one_of_many: bool = False
    wait_until_s: float | None = None

    def limit_s(self, remaining_s: float | None, default_s: float) -> float:
        """Return the time limit of the request, s.

        Args:
            remaining_s: Until the caller stops waiting; None: never.
            default_s: Limit of a request without one.
        """
        if remaining_s is None:
            return default_s if self.timeout_s is None else self.timeout_s
        return remaining_s if self.timeout_s is None else min(remaining_s, self.timeout_s)


def read_head(data: bytes, max_bytes: float = math.inf) -> Head:
    """Read the head of a serialized inference.ModelInferRequest.

    Args:
        data: The message.
        max_bytes: Maximum size of a request, `router.max_request_bytes`.

    Raises:
        ResourceExhausted: It is larger.
        InvalidArgument: The bytes are not such a message, the accuracy floor is no number >= 0, or
            timeout or priority is no integer >= 0.
    """
    if len(data) > max_bytes:
        raise _too_large(len(data), max_bytes)
    text = {1: "", 2: "", 3: ""}
    numbers: dict[str, float] = {"timeout": 0, "priority": 0, "max_tokens": 0}
    values = {ACCURACY_FLOOR: b"", WAIT_UNTIL: b""}
    try:
        for number, kind, start, end in fields(data, 0, len(data)):
            if kind == BYTES and number in text:
                text[number] = data[start:end].decode()
            elif kind == BYTES and number == 4:
                key, parameter = _entry_of(data, start, end)
                if key in numbers:
                    numbers[key] = _number(parameter) if parameter else 0
                elif key in values:
                    values[key] = parameter
        floor, until = values.values()
        accuracy_floor = float(_number(floor)) if floor else 0.0
        wait_until_s = _time_of(until) if until else None
    except (ValueError, IndexError) as error:
        raise InvalidArgument(
            "the request is not a valid serialized inference.ModelInferRequest",
            reason="MALFORMED_REQUEST",
        ) from error
    timeout_us, priority, max_tokens = numbers.values()
    if timeout_us or priority or not type(timeout_us) is type(priority) is int:
        _require_whole("timeout", timeout_us, ", in microseconds")
        _require_whole("priority", priority)
    timeout_s = timeout_us / 1e6 if timeout_us else None
    if not 0.0 <= accuracy_floor < math.inf:
        raise InvalidArgument(
            "parameter accuracy_floor must be a number of at least 0, in the unit of the accuracy"
            " that receipts state",
            field="accuracy_floor",
        )
    return Head(
        text[1],
        text[2],
        text[3],
        timeout_s,
        int(priority),
        accuracy_floor,
        max(max_tokens, 0) if isinstance(max_tokens, int) else 0,
        deferrable=wait_until_s is not None,
        wait_until_s=wait_until_s,
    )


def _too_large(size_bytes: int, max_bytes: float) -> ResourceExhausted:
    return ResourceExhausted(
        f"the request has {size_bytes} bytes; router.max_request_bytes allows {max_bytes}",
        reason="REQUEST_TOO_LARGE",
    )


def time_s(name: str, given: str) -> float:
    """Return a time, s since the epoch, written as a number or as RFC 3339 has it.

    Args:
        name: Of what it is the value, for the error.
        given: The text.

    Raises:
        InvalidArgument: It is neither.
    """
    try:
        found = float(given)
    except ValueError:
        try:
            parsed = datetime.fromisoformat(given)
            found = parsed.timestamp() if parsed.tzinfo else math.nan
        except (ValueError, OverflowError):
            found = math.nan
    if not 0 < found < _MAX_TIME_S:
        raise InvalidArgument.at(
            name,
            "must be a time, such as 2026-01-31T18:00:00Z, or seconds since 1970, got"
            f" {given[:_MAX_SHOWN]!r}",
        )
    return found


def _time_of(parameter: bytes) -> float:
    """Return the time in a serialized InferParameter, a text or a number."""
    text = ""
    for number, kind, first, last in fields(parameter, 0, len(parameter), _MAX_PIECES):
        if (number, kind) == (3, BYTES):
            text = parameter[first:last].decode()
    return time_s(f"parameters.{WAIT_UNTIL}", text or str(_number(parameter)))


def _require_whole(name: str, number: float, unit: str = "") -> None:
    """Check that a parameter is an integer >= 0.

    Raises:
        InvalidArgument: It is not.
    """
    if not isinstance(number, int) or number < 0:
        raise InvalidArgument.at(
            f"parameters.{name}", f"must be an integer of at least 0{unit} (0: the default)"
        )


def prompt_of(data: bytes, limit_bytes: int) -> bytes:
    """Return the text that a model reads: earlier `messages`, then the first element of each input.

    For comparing requests only: a conversation that goes on begins with the same bytes. Names of
    inputs are not read; b"" where there is no text, or where the bytes are not such a message. Of a
    request of the OpenAI API it is the texts of its messages; of a large one its beginning, as it
    came: to read all of it would hold the event loop.

    Args:
        data: Serialized inference.ModelInferRequest.
        limit_bytes: Of the text, that are returned; longer `messages` are not read at all.
    """
    before, texts, left_bytes, is_body = b"", [], limit_bytes, False
    try:
        for number, kind, start, end in fields(data, 0, len(data)):
            if (number, kind) == (4, BYTES):
                entry = data[start : start + 16]
                is_body |= _BODY_ENTRY in entry
                if b"messages" in entry and end - start <= limit_bytes:
                    key, parameter = _entry_of(data, start, end)
                    before = _contents(parameter) if key == "messages" else before
                continue
            if (number, kind) == (7, BYTES):  # raw_input_contents: each element after its size
                first = start + _SIZE_BYTES
                last = min(first + int.from_bytes(data[start:first], "little"), end)
            elif (number, kind) == (5, BYTES):
                first, last = _first_element(data, start, end)
            else:
                continue
            if is_body and last - first > limit_bytes:
                return data[first : first + limit_bytes]
            if is_body and first < last:
                return _text_of(data[first:last])[:limit_bytes]
            texts.append(data[first : min(last, first + left_bytes)])
            left_bytes -= len(texts[-1])
    except (ValueError, IndexError):
        return b""
    return b"".join((before, *texts))[:limit_bytes]


def _text_of(body: bytes) -> bytes:
    """Return the text in a body of the OpenAI API; b"": it is none."""
    try:
        found = api_requests.document(body, len(body))
    except InvalidArgument:  # the worker refuses it
        return b""
    return api_requests.text(found).encode(errors="replace")


def _first_element(data: bytes, start: int, end: int) -> tuple[int, int]:
    """Return where the first of `contents.bytes_contents` of an InferInputTensor lies."""
    for outer, outer_kind, begin, stop in fields(data, start, end):
        if (outer, outer_kind) == (5, BYTES):
            for number, kind, first, last in fields(data, begin, stop):
                if (number, kind) == (8, BYTES):
                    return first, last
    return end, end


def _contents(parameter: bytes) -> bytes:
    """Return the contents of messages, a JSON list in a serialized InferParameter, together."""
    for number, kind, first, last in fields(parameter, 0, len(parameter), _MAX_PIECES):
        if (number, kind) == (3, BYTES):
            try:
                found = json.loads(parameter[first:last])
            except (ValueError, RecursionError):  # the worker refuses it
                return b""
            if isinstance(found, list):
                texts = (each.get("content") for each in found if isinstance(each, dict))
                return "".join(text for text in texts if isinstance(text, str)).encode(
                    errors="replace"
                )
    return b""


def _entry_of(data: bytes, start: int, end: int) -> tuple[str, bytes]:
    """Return key and value, a serialized InferParameter, of an entry of `parameters`."""
    key, parameter = "", list[bytes]()
    for number, kind, first, last in fields(data, start, end, _MAX_PIECES):
        if (number, kind) == (1, BYTES):
            key = data[first:last].decode()
        elif (number, kind) == (2, BYTES):
            parameter.append(data[first:last])  # a submessage that occurs twice merges
    return key, b"".join(parameter)


def _number(parameter: bytes) -> float:
    """Return the value of a serialized InferParameter, an int or a float; NaN: it is no number."""
    value: float = math.nan
    for number, kind, first, _ in fields(parameter, 0, len(parameter), _MAX_PIECES):
        if _CHOICES.get(number) == kind:  # a oneof: the last choice is the value
            value = math.nan
            if kind == FIXED64:
                value = _DOUBLE.unpack_from(parameter, first)[0]
            elif number in _INTEGERS:
                value = read_varint(parameter, first)[0]
                if number == 2 and value >= 2**63:
                    value -= 2**64
    return value


# ---- response parameters -----------------------------------------------------------------------


def string_parameter(key: str, value: str) -> bytes:
    """Return a serialized `parameters` entry of a ModelInferResponse.

    Serialized messages merge by concatenation: appended to a response, the entry is added to its
    map and replaces one of the same key.
    """
    text = value.encode()
    return _entry(key.encode(), b"\x1a" + varint(len(text)) + text)


def double_parameter(key: str, value: float) -> bytes:
    """Return a serialized `parameters` entry with a double; see `string_parameter`."""
    return before_double(key) + _DOUBLE.pack(value)


def integer_parameter(key: str, value: int) -> bytes:
    """Return a serialized `parameters` entry with an int64 >= 0; see `string_parameter`."""
    return _entry(key.encode(), b"\x10" + varint(value))


def bool_parameter(key: str, *, value: bool) -> bytes:
    """Return a serialized `parameters` entry with a bool; see `string_parameter`."""
    return _entry(key.encode(), b"\x08\x01" if value else b"\x08\x00")


def enclosed(field: int, *pieces: bytes) -> bytes:
    """Return a message with one embedded message, given in pieces, as `field` (1..15)."""
    return b"".join((bytes((field << 3 | BYTES,)), varint(sum(map(len, pieces))), *pieces))


@lru_cache(maxsize=64)
def before_double(key: str) -> bytes:
    """Return an entry without its last 8 bytes: the value, whose size never changes."""
    return _entry(key.encode(), b"\x21" + bytes(8))[:-8]


def _entry(key: bytes, parameter: bytes) -> bytes:
    entry = b"\x0a%b%b\x12%b%b" % (varint(len(key)), key, varint(len(parameter)), parameter)
    return b"\x22" + varint(len(entry)) + entry
