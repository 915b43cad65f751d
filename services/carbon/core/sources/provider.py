"""What every provider that is polled over the network answers, and how it fails."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from services.carbon.core.model import Outlook, Sample

FailureKind = Literal["unreachable", "limited", "refused", "unknown", "garbled"]
"""Why a provider gave no reading.

unreachable   no connection, no answer in time, or a server error
limited       too many requests
refused       the key is invalid, or the account does not cover the request
unknown       the zone is unknown, or has no data
garbled       the answer cannot be parsed
"""


class SourceFailed(Exception):
    """A provider gave no reading. The message never holds a key, nor a URL's query.

    Attributes:
        kind: Kind of failure.
        retry_after_s: Time before which the provider refuses requests, s; None: not stated.
    """

    def __init__(self, kind: FailureKind, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.kind: FailureKind = kind
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True)
class Reading:
    """The values of one request; the feed sorts them and leaves out implausible ones.

    Attributes:
        samples: In any order, known and revised ones included; empty: nothing new.
        outlook: Forecast of the provider; None: none this time.
    """

    samples: tuple[Sample, ...] = ()
    outlook: Outlook | None = None
