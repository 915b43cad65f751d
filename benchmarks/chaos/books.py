"""What became of the requests of one fault."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

LATE_S = 1.0
"""Deadline that clients are assumed to have; an answer after it is late, s."""


@dataclass(frozen=True, slots=True)
class End:
    """The end of one request, as `client` writes it: times are CLOCK_MONOTONIC, s."""

    number: int
    sent_s: float
    ended_s: float
    again: int
    image: int
    label: int
    variant: str
    problem: str


def row(
    fault: str,
    service: str,
    ends: Sequence[End],
    labels: dict[str, NDArray[np.int64]],
    at_s: float,
) -> dict[str, Any]:
    """Return a fault's row.

    Args:
        fault: What was done.
        service: To what.
        ends: Of all requests.
        labels: The right label of each image, by variant.
        at_s: When, CLOCK_MONOTONIC, s.
    """
    answered = [end for end in ends if end.label >= 0 and not end.problem]
    wrong = [end for end in answered if labels[end.variant][end.image] != end.label]
    refused = [end for end in ends if "RESOURCE_EXHAUSTED" in end.problem]
    times_s = sorted(end.ended_s for end in answered)
    late = [end for end in ends if end.ended_s - end.sent_s > LATE_S]
    return {
        "fault": fault,
        "service": service,
        "sent": len(ends),
        "answered_once": len(answered) - len(wrong),
        "refused": len(refused),
        "lost": len(ends) - len(answered) - len(refused),
        "wrong": len(wrong),
        "sent_again": sum(end.again > 0 for end in ends),
        "over_1_s": len(late),
        "longest_gap_s": max((b - a for a, b in pairwise(times_s)), default=0.0),
        "recovered_s": max((end.ended_s - at_s for end in late), default=0.0),
    }
