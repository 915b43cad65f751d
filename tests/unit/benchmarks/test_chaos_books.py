"""The chaos benchmark's classes of requests that have no answer."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.chaos.books import End, row

ANSWERED = End(0, sent_s=0.0, ended_s=0.1, again=0, image=0, label=7, variant="v", problem="")
TIMED_OUT = replace(ANSWERED, ended_s=10.0, label=-1, problem="DEADLINE_EXCEEDED: 10 s")


@pytest.mark.parametrize(
    ("next_answer_s", "problem", "column"),
    [
        (9.5, "DEADLINE_EXCEEDED: 10 s", "out_of_time"),
        (8.5, "DEADLINE_EXCEEDED: 10 s", "lost"),
        (9.5, "INTERNAL: what", "lost"),
        (8.5, "RESOURCE_EXHAUSTED: full", "refused"),
    ],
)
def test_a_request_that_a_later_one_overtook_is_lost_and_one_of_an_outage_is_out_of_time(
    next_answer_s: float, problem: str, column: str
) -> None:
    """Nothing answers until some time before the deadline of the first request."""
    ends = [
        replace(TIMED_OUT, problem=problem),
        replace(ANSWERED, number=1, sent_s=2.0, ended_s=next_answer_s),
    ]
    found = row("fault", "service", ends, {"v": np.array([7])}, at_s=0.0)

    assert {name: found[name] for name in ("refused", "out_of_time", "lost")} == {
        "refused": 0,
        "out_of_time": 0,
        "lost": 0,
        column: 1,
    }
    assert found["lost_as"] == (f"1 {problem.partition(':')[0]}" if column == "lost" else "")
