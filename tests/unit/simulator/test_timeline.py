"""Requests' time stands still while the simulation skips."""

import pytest
from simpy import Environment

from services.simulator.timeline import Timeline, Waiting


def test_a_wait_takes_its_time_however_much_is_skipped() -> None:
    timeline = Timeline(Environment())
    ended: list[float] = []

    def waiter() -> Waiting:
        yield from timeline.wait(3.0)
        ended.extend((timeline.env.now, timeline.now_s))

    def skipper() -> Waiting:
        for _ in range(2):
            yield timeline.env.timeout(1.0)
            timeline.stop()
            yield timeline.env.timeout(10.0)
            timeline.go()

    timeline.env.process(waiter())
    timeline.env.process(skipper())
    timeline.env.run(until=100)

    assert ended == pytest.approx([23.0, 3.0])
    assert timeline.now_s == pytest.approx(80.0)


def test_time_stands_still_until_it_goes_on() -> None:
    timeline = Timeline(Environment())
    timeline.env.run(until=5)
    timeline.stop()
    timeline.env.run(until=50)

    assert timeline.now_s == 5
    timeline.go()
    timeline.env.run(until=51)
    assert timeline.now_s == 6
