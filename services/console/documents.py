"""Documents as JSON."""

import json
import math
from typing import Any

Document = dict[str, Any]
"""An object for JSON; figures that are not finite become null on their way out."""


def as_text(document: Document) -> str:
    """Return a document as JSON: objects as mappings, figures finite or null."""
    return json.dumps(_finite(document), allow_nan=False, separators=(",", ":"))


def _finite(value: Any) -> Any:
    match value:
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {key: _finite(each) for key, each in value.items()}
        case list() | tuple():
            return [_finite(each) for each in value]
        case None | str() | int():
            return value
        case _:
            return _finite(vars(value))
