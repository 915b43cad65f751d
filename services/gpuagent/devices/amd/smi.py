"""AMD SMI through AMD's own Python package (extra `amd`), and its errors as ours.

The package finds `libamd_smi.so` when it is imported, and fails without; so it is imported late.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import TYPE_CHECKING, Any, Final

from services.kit.errors import (
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    ServiceError,
    Unavailable,
)

if TYPE_CHECKING:
    from types import ModuleType

_CLASSES: Final[dict[str, type[ServiceError]]] = {
    "AMDSMI_STATUS_INVAL": InvalidArgument,
    "AMDSMI_STATUS_NOT_FOUND": NotFound,
    "AMDSMI_STATUS_NOT_SUPPORTED": FailedPrecondition,
    "AMDSMI_STATUS_NO_PERM": PermissionDenied,
}
"""Classes by status; any other may be transient: Unavailable."""


def amdsmi() -> ModuleType:
    """Return AMD's package.

    Raises:
        FailedPrecondition: It is not installed, or its library is not here.
    """
    try:
        with redirect_stdout(sys.stderr):  # it prints what it does not find
            import amdsmi as module  # noqa: PLC0415 - it loads the driver's library
    except ModuleNotFoundError as error:
        raise FailedPrecondition(
            "AMD GPUs need the extra `amd`: pip install 'cinquefoil[amd]'", reason="NO_AMDSMI"
        ) from error
    except (KeyError, OSError, AttributeError) as error:
        raise FailedPrecondition(
            "libamd_smi.so is not here: install AMD's package amd-smi-lib", reason="NO_AMDSMI"
        ) from error
    found: ModuleType = module
    return found


@contextmanager
def translated(doing: str) -> Iterator[None]:
    """Turn AMD's errors inside the block into service errors.

    Args:
        doing: What the block does, for the message.

    Raises:
        ServiceError: The class that fits the status; AMD's error is its cause.
    """
    module = amdsmi()
    try:
        yield
    except module.AmdSmiLibraryException as error:
        status = _status(error)
        found = _CLASSES.get(status, Unavailable)
        hint = "; it needs root; see docs/rights.md" if found is PermissionDenied else ""
        raise found(f"cannot {doing}: {status}{hint}", reason=status) from error


def _status(error: Any) -> str:
    """Return the name of a status, "AMDSMI_STATUS_BUSY"."""
    return str(error.get_error_info()).partition(" ")[0]
