"""One value for all time."""

from __future__ import annotations

from datetime import datetime

from services.carbon.core.model import Sample
from services.carbon.core.sources.source import Source


class StaticSource(Source):
    """An intensity that never changes, in force since `since`."""

    name = "static"

    def __init__(self, intensity_gco2e_per_kwh: float, since: datetime) -> None:
        self._sample = Sample(since, intensity_gco2e_per_kwh)

    def at(self, when: datetime) -> Sample:
        """Return the one sample."""
        del when
        return self._sample

    def next_change(self, when: datetime) -> datetime | None:
        """Return None: it never changes."""
        del when
        return None
