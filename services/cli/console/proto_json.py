"""Messages as JSON: protobuf's own mapping, with the contract's field names."""

import json
from collections.abc import Callable
from typing import Any, TypeVar

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from rich.console import Console, RenderableType

AnyMessage = TypeVar("AnyMessage", bound=Message)


def document(message: Message) -> dict[str, Any]:
    """Return a message for JSON; numbers that are 0 and texts that are empty are there too."""
    return MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )


def print_json(value: object) -> None:
    """Print a document, indented, in colour on a terminal."""
    Console().print_json(json.dumps(value))


def show(
    message: AnyMessage, render: Callable[[AnyMessage], RenderableType], *, as_json: bool
) -> None:
    """Print a message, as JSON or as `render` returns it."""
    if as_json:
        print_json(document(message))
    else:
        Console().print(render(message))
