"""Pages of a list that grows at its front."""

import base64
import binascii
from typing import Final

from services.kit.errors import InvalidArgument

DEFAULT_SIZE: Final = 50
MAX_SIZE: Final = 1000

_HIGHEST: Final = 2**63 - 1  # that a database can compare with
_PREFIX: Final = b"plans-below:"


def page_size(requested: int) -> int:
    """Return the number of plans to send; 0: the default.

    Raises:
        InvalidArgument: More than the most.
    """
    if requested > MAX_SIZE:
        raise InvalidArgument.at(
            "page_size", f"must be 0..{MAX_SIZE}, got {requested}; 0 gives {DEFAULT_SIZE}"
        )
    return requested or DEFAULT_SIZE


def write_token(version: int) -> str:
    """Return the token of the page after a plan, unaffected by newer plans."""
    return base64.urlsafe_b64encode(_PREFIX + str(version).encode()).decode()


def read_token(token: str) -> int | None:
    """Return the version below which a page starts; None: from the newest.

    Raises:
        InvalidArgument: The token is not from `write_token`.
    """
    if not token:
        return None
    try:
        text = base64.b64decode(token.encode(), altchars=b"-_", validate=True)
        version = int(text.removeprefix(_PREFIX))
    except (binascii.Error, ValueError):
        version = -1
    if not 0 <= version <= _HIGHEST or write_token(version) != token:
        raise InvalidArgument.at(
            "page_token", "was not given out by ListPlans; leave it empty for the newest plans"
        )
    return version
