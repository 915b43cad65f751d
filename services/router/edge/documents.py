"""JSON documents: requests checked against their types, messages written out."""

from typing import Any, Final, TypeVar

from google.protobuf.message import Message
from pydantic import BaseModel, ConfigDict, RootModel, ValidationError

from services.kit.errors import InvalidArgument

MAX_JSON_BYTES: Final = 8 * 2**20
"""Largest JSON document: reading it holds the event loop, some 7 ms per MiB."""

D = TypeVar("D", bound=BaseModel)


class Document(BaseModel):
    """Base of a request's parts: a field that is not known is refused."""

    model_config = ConfigDict(extra="forbid")


class _Object(RootModel[dict[str, Any]]):
    """Any JSON object."""


def parsed(model: type[D], document: bytes | bytearray) -> D:
    """Return a JSON document as `model`.

    Raises:
        InvalidArgument: It is not one; the message names the place and what is allowed there.
    """
    if len(document) > MAX_JSON_BYTES:
        raise InvalidArgument(
            f"the JSON document has {len(document)} bytes, and {MAX_JSON_BYTES} at most are read;"
            " send large tensors as binary data",
            reason="JSON_TOO_LARGE",
        )
    try:
        return model.model_validate_json(document)
    except ValidationError as error:
        raise _refused(error) from None


def parsed_object(document: bytes | bytearray) -> dict[str, Any]:
    """Return a JSON object of any fields; b"" is an empty one; errors as of `parsed`."""
    return parsed(_Object, document).root if document.strip() else {}


def plain(found: Message) -> dict[str, Any]:
    """Return a message as JSON: names as in the proto, integers as numbers, enums by name."""
    result: dict[str, Any] = {}
    for field in found.DESCRIPTOR.fields:
        if field.has_presence and not found.HasField(field.name):
            continue
        value = getattr(found, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            result[field.name] = {str(key): _plain(value[key], None) for key in value}
        elif field.is_repeated:
            result[field.name] = [_plain(each, field.enum_type) for each in value]
        else:
            result[field.name] = _plain(value, field.enum_type)
    return result


def _plain(value: Any, enum: Any) -> Any:
    if isinstance(value, Message):
        return plain(value)
    if enum is not None:
        return enum.values_by_number[value].name
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _refused(error: ValidationError) -> InvalidArgument:
    """Return pydantic's first finding, by the place in the document."""
    first = error.errors(include_url=False, include_context=False)[0]
    if first["type"] == "json_invalid":
        return InvalidArgument(f"the body is not JSON: {first['msg']}", reason="INVALID_JSON")
    place = ""
    for step in first["loc"]:
        place += f"[{step}]" if isinstance(step, int) else f".{step}" if place else step
    if first["type"] == "extra_forbidden":
        return InvalidArgument.at(place, "unknown field", reason="UNSUPPORTED")
    if first["type"] == "missing":
        return InvalidArgument.at(place, "required, but missing")
    return InvalidArgument.at(place or "body", first["msg"].replace("Input should", "must", 1))
