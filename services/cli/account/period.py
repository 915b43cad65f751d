"""From when to when, as people write it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from services.cli.console.durations import seconds


def instant(text: str, now: datetime) -> datetime:
    """Return an instant: "7d" is seven days ago, "2026-03-01" or "2026-03-01T12:30" itself, UTC.

    Raises:
        ValueError: It is neither.
    """
    try:
        return now - timedelta(seconds=seconds(text))
    except (ValueError, OverflowError):
        pass
    try:
        when = datetime.fromisoformat(text)
    except ValueError as error:
        raise ValueError(
            f"{text!r} is no time: write an age such as 12h, 7d or 4w, or 2026-03-01T12:00 (UTC)"
        ) from error
    return when.replace(tzinfo=when.tzinfo or UTC).astimezone(UTC)
