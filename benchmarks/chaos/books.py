"""Record of the requests of one fault."""

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

LATE_S = 1.0
"""Deadline that clients are assumed to have; an answer after it is late, s."""

_NO_ANSWER: Final = ("DEADLINE_EXCEEDED", "UNAVAILABLE")


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

    @property
    def answered(self) -> bool:
        """Return whether it has an answer, right or wrong."""
        return self.label >= 0 and not self.problem


def out_of_time(ends: Sequence[End]) -> list[End]:
    """Return the requests whose time passed while nothing answered.

    One that a later request overtook by more than `LATE_S` is none of them: it was lost.
    """
    waited = [end for end in ends if any(status in end.problem for status in _NO_ANSWER)]
    later = sorted((end.sent_s, end.ended_s) for end in ends if end.answered)
    sent_s = [sent for sent, _ in later]
    first_s = list(accumulate((ended for _, ended in reversed(later)), min, initial=math.inf))
    return [
        end
        for end in waited
        if first_s[len(later) - bisect_right(sent_s, end.sent_s)] > end.ended_s - LATE_S
    ]


def row(
    fault: str,
    service: str,
    ends: Sequence[End],
    labels: dict[str, NDArray[np.int64]],
    at_s: float,
) -> dict[str, Any]:
    """Return a fault's row.

    Args:
        fault: Name of the fault.
        service: Service that it hit.
        ends: Of all requests.
        labels: The right label of each image, by variant.
        at_s: Time of the fault, CLOCK_MONOTONIC, s.
    """
    answered = [end for end in ends if end.answered]
    wrong = [end for end in answered if labels[end.variant][end.image] != end.label]
    refused = [end for end in ends if "RESOURCE_EXHAUSTED" in end.problem]
    timed_out = out_of_time(ends)
    ended = {end.number for end in (*answered, *refused, *timed_out)}
    lost = [end for end in ends if end.number not in ended]
    statuses = Counter(end.problem.partition(":")[0] for end in lost)
    times_s = sorted(end.ended_s for end in answered)
    late = [end for end in ends if end.ended_s - end.sent_s > LATE_S]
    return {
        "fault": fault,
        "service": service,
        "sent": len(ends),
        "answered_once": len(answered) - len(wrong),
        "refused": len(refused),
        "out_of_time": len(timed_out),
        "lost": len(lost),
        "lost_as": ", ".join(f"{count} {status}" for status, count in statuses.items()),
        "wrong": len(wrong),
        "sent_again": sum(end.again > 0 for end in ends),
        "over_1_s": len(late),
        "longest_gap_s": max((b - a for a, b in pairwise(times_s)), default=0.0),
        "recovered_s": max((end.ended_s - at_s for end in late), default=0.0),
    }
