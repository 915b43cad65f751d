"""Ages as people write them."""

from __future__ import annotations

import re
from typing import Final

_UNITS_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_AGE: Final = re.compile(r"(\d{1,9})([smhdw])")


def seconds(age: str) -> int:
    """Return an age such as "90s", "30m", "12h", "7d" or "2w" in seconds.

    Raises:
        ValueError: It is not an age.
    """
    found = _AGE.fullmatch(age.strip().lower())
    if found is None:
        raise ValueError(f"{age!r} is not an age: write 90s, 30m, 12h, 7d or 2w")
    return int(found[1]) * _UNITS_S[found[2]]
