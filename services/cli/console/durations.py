"""Ages and times as users write them: 12h, 7d, 2026-03-01."""

import re
from datetime import UTC, datetime, timedelta
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


def instant(text: str, now: datetime) -> datetime:
    """Return an instant: "7d" is seven days ago, "2026-03-01" or "2026-03-01T12:30" itself, UTC.

    Raises:
        ValueError: It is neither.
    """
    return _instant(text, now, -1)


def later(text: str, now: datetime) -> datetime:
    """Return an instant: "4h" is four hours from now; otherwise as `instant`."""
    return _instant(text, now, 1)


def _instant(text: str, now: datetime, sign: int) -> datetime:
    try:
        return now + sign * timedelta(seconds=seconds(text))
    except (ValueError, OverflowError):
        pass
    try:
        when = datetime.fromisoformat(text)
    except ValueError as error:
        raise ValueError(
            f"{text!r} is no time: write an age such as 12h, 7d or 4w, or 2026-03-01T12:00 (UTC)"
        ) from error
    return when.replace(tzinfo=when.tzinfo or UTC).astimezone(UTC)
