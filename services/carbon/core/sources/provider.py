"""What every provider that is asked over the network can do."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal, Protocol

from services.carbon.core.model import Sample

Failing = Literal["unreachable", "limited", "refused", "unknown", "garbled"]
"""Why a provider gave nothing.

unreachable   no connection, no answer in time, or an error of its own
limited       it was asked too often
refused       it does not take the key, or the plan does not cover what was asked
unknown       it does not know the zone, or has no data of it
garbled       its answer cannot be understood
"""


class SourceFailed(Exception):
    """A provider gave nothing. The message never holds a key, nor a URL's query.

    Attributes:
        kind: Why.
        retry_after_s: It asks not to be asked again before, s; None: it says nothing of that.
    """

    def __init__(self, kind: Failing, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.kind: Failing = kind
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True)
class Outlook:
    """A provider's own forecast.

    Attributes:
        samples: Expected intensities, oldest first; each holds until the next.
        step: How long the last one holds.
        issued: When it was made, grid time.
    """

    samples: tuple[Sample, ...]
    step: timedelta
    issued: datetime


@dataclass(frozen=True, slots=True)
class Reading:
    """What a provider said; the Feed sorts it, and leaves out what cannot be.

    Attributes:
        samples: In any order, also known and revised ones; empty: nothing is new.
        outlook: Its forecast; None: it gave none this time.
    """

    samples: tuple[Sample, ...] = ()
    outlook: Outlook | None = None


class Provider(Protocol):
    """Asked again and again, by one caller."""

    @property
    def name(self) -> str:
        """Kind and zone, for example "electricity-maps:DE"."""
        ...

    async def read(self, now: datetime, known_until: datetime | None) -> Reading:
        """Return what it has to say.

        Args:
            now: Grid time: live, the time.
            known_until: Start of the newest sample that the caller has; None: it has none, and
                wants the past day, too.

        Raises:
            SourceFailed: It gave nothing.
        """
        ...
