"""JSON documents: requests checked against their types, messages written out.

What a document costs is bounded by what is in it, before it is read (`services.kit.json_bounds`).
"""

from collections.abc import Mapping
from typing import Any, TypeVar

from google.protobuf.message import Message
from pydantic import BaseModel, ConfigDict, RootModel, ValidationError, model_validator

from services.kit.errors import InvalidArgument
from services.kit.json_bounds import check_size, check_values

D = TypeVar("D", bound=BaseModel)


class Document(BaseModel):
    """Base of a request's parts: a field that is not known is refused, null is as if not given."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _without_null(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        return {name: value for name, value in given.items() if value is not None}


class _Object(RootModel[dict[str, Any]]):
    """Any JSON object."""


def parsed(model: type[D], document: bytes | bytearray) -> D:
    """Return a JSON document as `model`.

    Raises:
        InvalidArgument: It is not one; the message names the place and what is allowed there.
    """
    check_size(document)
    check_values(document)
    try:
        return model.model_validate_json(document)
    except ValidationError as error:
        raise _refused(error) from None


def checked(model: type[D], found: Mapping[str, Any]) -> D:
    """Return a JSON object that is read already as `model`; errors as of `parsed`."""
    try:
        return model.model_validate(found)
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
    first = error.errors(include_url=False)[0]
    if first["type"] == "json_invalid":
        return InvalidArgument(f"the body is not JSON: {first['msg']}", reason="INVALID_JSON")
    place = ""
    for step in first["loc"]:
        place += f"[{step}]" if isinstance(step, int) else f".{step}" if place else step
    if first["type"] == "extra_forbidden":
        return InvalidArgument.at(place, "unknown field", reason="UNSUPPORTED")
    if first["type"] == "too_long":
        return InvalidArgument.at(place, f"may have {first['ctx']['max_length']} elements at most")
    if first["type"] == "missing":
        return InvalidArgument.at(place, "required, but missing")
    return InvalidArgument.at(place or "body", first["msg"].replace("Input should", "must", 1))
