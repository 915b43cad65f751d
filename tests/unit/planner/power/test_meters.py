"""Margins and pauses from sites' meters, in virtual time."""

from itertools import pairwise

from services.planner.core.power.meters import MOST, RESUME_S, SiteMeter


def run(meter: SiteMeter, start_s: int, seconds: int, power_w: float, *, capped: bool) -> None:
    for at_s in range(start_s, start_s + seconds):
        meter.look(float(at_s), power_w, 1000.0, capped=capped)


def test_plans_aim_lower_while_agents_are_capped() -> None:
    """A margin grows while agents hold the power down, is bounded, and shrinks once all is calm."""
    meter = SiteMeter()
    run(meter, 0, 40, 980.0, capped=True)
    assert meter.margin == 0
    run(meter, 40, 10, 980.0, capped=True)
    assert 0 < meter.margin < 0.1
    run(meter, 50, 1000, 980.0, capped=True)
    assert meter.margin == MOST
    run(meter, 1050, 20_000, 300.0, capped=False)
    assert meter.margin == 0


def test_clocks_that_come_back_are_no_reason_for_a_margin() -> None:
    """Lower clocks far below the budget are on their way back: nothing is held, no plan made."""
    meter = SiteMeter()
    run(meter, 0, 300, 700.0, capped=True)
    assert (meter.margin, meter.holds) == (0, False)


def test_waiting_work_does_not_come_and_go() -> None:
    """Work that exceeds the budget each time that it may run is paused for longer each time."""
    meter, starts = SiteMeter(), []
    for at_s in range(7200):
        before = meter.holds
        power_w = 500.0 if meter.holds else 1100.0
        meter.look(float(at_s), power_w, 1000.0, capped=not meter.holds)
        if before and not meter.holds:
            starts.append(at_s)
    gaps = [after - before for before, after in pairwise(starts)]
    assert starts[0] >= RESUME_S
    assert gaps == sorted(gaps)
    assert len(starts) < 16
