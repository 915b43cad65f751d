"""Records <-> messages: fields of the same name, converted by the record's types.

    number, text          as it is           X | None         unset: None
    IntEnum               its number         tuple[X, ...]    repeated
    datetime, UTC         Timestamp          Mapping[K, X]    map
    timedelta             Duration           Any              Value: JSON
    another record        its message

Generated records (`cinquefoil.*.v1.records`) have all fields of their message. A field that the
message lacks is left out when writing. What is unset in a message becomes the record's default,
where it has one.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import IntEnum
from functools import cache
from inspect import Parameter, signature
from types import MappingProxyType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from google.protobuf.descriptor import Descriptor
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.struct_pb2 import Value

from services.kit.errors import InvalidArgument

M = TypeVar("M", bound=Message)
R = TypeVar("R")

Convert = Callable[[Any], Any]

_SCALARS = (int, float, str, bytes)  # with their subclasses bool and IntEnum
_REQUIRED = Parameter.empty


@dataclass(frozen=True, slots=True)
class _Way:
    """The way of one field to its message and back.

    Attributes:
        write, read: Its value to the message's, and back; None: as it is.
        optional: Unset is None.
        default: The record has one.
        presence: The message knows whether the field is set.
    """

    write: Convert | None = None
    read: Convert | None = None
    optional: bool = False
    default: bool = False
    presence: bool = False


_KNOWN: Mapping[Any, _Way] = {
    datetime: _Way(lambda when: when, lambda stamp: _time(stamp.ToDatetime, UTC)),
    timedelta: _Way(lambda duration: duration, lambda duration: _time(duration.ToTimedelta)),
    Any: _Way(lambda value: ParseDict(value, Value()), MessageToDict),
}


def _time(read: Callable[..., R], *arguments: object) -> R:
    """Return a time that a peer sent.

    Raises:
        InvalidArgument: It is beyond those that there can be.
    """
    try:
        return read(*arguments)
    except (ValueError, OverflowError) as error:
        raise InvalidArgument(f"a time that cannot be: {error}") from error


def to_message(record: Any, kind: type[M]) -> M:
    """Return the message of type `kind` of a record."""
    return _written(record, kind, _ways(record.__class__, kind.DESCRIPTOR))


def from_message(message: Message, kind: Callable[..., R], **given: object) -> R:
    """Return the record of type `kind` of a message.

    Args:
        message: The message.
        kind: The record's type.
        given: Fields that are not read from the message.
    """
    return _read(message, kind, _ways(kind, message.DESCRIPTOR, frozenset(given)), given)


def _written(record: Any, kind: type[M], ways: Mapping[str, _Way]) -> M:
    fields = {}
    for name, way in ways.items():
        value = getattr(record, name)
        fields[name] = value if way.write is None else way.write(value)
    return kind(**fields)


def _read(
    message: Message,
    kind: Callable[..., R],
    ways: Mapping[str, _Way],
    given: Mapping[str, object] = MappingProxyType({}),
) -> R:
    fields = dict(given)
    for name, way in ways.items():
        if not way.presence or message.HasField(name) or not (way.optional or way.default):
            value = getattr(message, name)
            fields[name] = value if way.read is None else way.read(value)
        elif not way.default:
            fields[name] = None
    return kind(**fields)


@cache
def _ways(
    record: Callable[..., Any], descriptor: Descriptor, given: frozenset[str] = frozenset()
) -> Mapping[str, _Way]:
    """Return the ways of the fields that both have, but those of `given`."""
    fields, parameters = descriptor.fields_by_name, signature(record).parameters
    return {
        name: replace(
            _way(hint, fields[name]),
            default=parameters[name].default is not _REQUIRED,
            presence=fields[name].has_presence,
        )
        for name, hint in get_type_hints(record).items()
        if name in fields and name not in given
    }


def _way(hint: Any, field: Any) -> _Way:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is UnionType:
        return _optional(_way(arguments[0], field))
    if origin is tuple:
        return _repeated(_way(arguments[0], field))
    if origin is not None and issubclass(origin, Mapping):
        return _mapped(_way(arguments[1], field.message_type.fields_by_name["value"]))
    if hint in _KNOWN:
        return _KNOWN[hint]
    if issubclass(hint, _SCALARS):
        return _Way(None, hint if issubclass(hint, IntEnum) else None)
    kind = GetMessageClass(field.message_type)
    ways = _ways(hint, field.message_type)
    return _Way(
        lambda record: _written(record, kind, ways), lambda message: _read(message, hint, ways)
    )


def _optional(inner: _Way) -> _Way:
    write = inner.write
    return replace(
        inner,
        write=write and (lambda value: None if value is None else write(value)),
        optional=True,
    )


def _repeated(inner: _Way) -> _Way:
    write, read = inner.write, inner.read
    return _Way(
        write and (lambda values: [write(value) for value in values]),
        tuple if read is None else lambda values: tuple([read(value) for value in values]),
    )


def _mapped(inner: _Way) -> _Way:
    write, read = inner.write, inner.read
    return _Way(
        write and (lambda values: {key: write(value) for key, value in values.items()}),
        dict
        if read is None
        else lambda values: {key: read(value) for key, value in values.items()},
    )
