"""Bounds of the figures that peers send: each is a number, and within what can be."""

from collections.abc import Mapping
from typing import TypeAlias

from google.protobuf.message import Message

from services.kit.errors import InvalidArgument

Bounds: TypeAlias = Mapping[str, tuple[float, float]]
"""Least and most of each field."""


def check_figures(at: str, message: Message, bounds: Bounds) -> None:
    """Check figures of a message.

    Args:
        at: Name of the message, for the error.
        message: The message.
        bounds: Bounds of its fields.

    Raises:
        InvalidArgument: One is out of its bounds, or no number.
    """
    for name, (least, most) in bounds.items():
        if not least <= (value := getattr(message, name)) <= most:  # not a number either
            raise InvalidArgument.at(f"{at}.{name}", f"must be {least:g}..{most:g}, got {value:g}")
