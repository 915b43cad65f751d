"""The clock of a GPU whose server others run, by the server's own histograms."""

from __future__ import annotations

from services.gpuagent.clock_loop.core.decide import GovernedSegment
from services.gpuagent.steering.core.steered_gpu import SteeredGpu
from services.kit.hardware import gpu_types
from services.kit.hardware.gpu_types import curve_of
from tests.support.observed_day import LawfulServer

TABLE = gpu_types.load("a100-40gb")
CURVE = curve_of(TABLE.performance)
HIGHEST_MHZ = TABLE.max_clock_mhz


class Steered:
    """A server on one GPU that follows its clock; the objective is of the time between tokens."""

    def __init__(self, tpot_s: float, floor: float = 0.3) -> None:
        self.gpu = SteeredGpu(TABLE.clocks_mhz, floor, CURVE)
        self.server = LawfulServer()
        self.objective = GovernedSegment("u tpot_s", "m", 95.0, tpot_s)
        self.clock_mhz = self.now_s = 0
        self.seen_mhz: list[int] = []

    def run(
        self, seconds: int, rate_rps: float, ceiling_mhz: int = 0, *, alone: bool = True
    ) -> None:
        for _ in range(0, seconds, 10):
            stretch = CURVE.stretch(
                1.0, (self.clock_mhz or ceiling_mhz or HIGHEST_MHZ) / HIGHEST_MHZ
            )
            self.server.advance(10.0, rate_rps, stretch)
            self.now_s += 10
            token = self.server.page.token
            assert token is not None
            totals = {self.objective: token} if alone else {}
            self.clock_mhz = self.gpu.look(float(self.now_s), ceiling_mhz, totals)
            self.seen_mhz.append(self.clock_mhz or ceiling_mhz or HIGHEST_MHZ)


def test_the_clock_falls_step_by_step_to_the_least_that_keeps_the_objective() -> None:
    """A lax objective leads to the clock of the least energy or the floor; a tight one stays."""
    lax, tight = Steered(tpot_s=1.0, floor=0.6), Steered(tpot_s=0.011)
    for each in (lax, tight):
        each.run(900, rate_rps=4.0)
    assert 0.6 * HIGHEST_MHZ <= lax.clock_mhz < 0.75 * HIGHEST_MHZ
    falls = [a - b for a, b in zip(lax.seen_mhz, lax.seen_mhz[1:], strict=False)]
    assert max(falls) <= 0.06 * HIGHEST_MHZ
    assert min(tight.seen_mhz) > 0.7 * HIGHEST_MHZ


def test_it_never_falls_below_what_the_operator_allows() -> None:
    for floor in (0.5, 0.8, 1.0):
        each = Steered(tpot_s=10.0, floor=floor)
        each.run(900, rate_rps=2.0)
        assert min(each.seen_mhz) >= floor * HIGHEST_MHZ


def test_an_objective_that_is_missed_has_the_highest_clock_at_the_next_page() -> None:
    """And the clock that failed is not tried again under that load."""
    each = Steered(tpot_s=0.03)
    each.run(900, rate_rps=2.0)
    low_mhz = each.clock_mhz
    assert 0 < low_mhz < HIGHEST_MHZ
    each.run(20, rate_rps=60.0)
    assert each.clock_mhz == 0 or each.clock_mhz > low_mhz


def test_a_gpu_that_others_use_has_its_own_clock_at_once() -> None:
    each = Steered(tpot_s=1.0)
    each.run(300, rate_rps=4.0)
    assert each.clock_mhz
    each.run(10, rate_rps=4.0, alone=False)
    assert each.clock_mhz == 0


def test_without_requests_the_clock_stays() -> None:
    """No evidence: neither lower nor higher."""
    each = Steered(tpot_s=1.0)
    each.run(100, rate_rps=4.0)
    token = each.server.page.token
    assert token is not None
    looks = [
        each.gpu.look(each.now_s + at_s, 0, {each.objective: token}) for at_s in range(10, 600, 10)
    ]
    assert set(looks[10:]) == {looks[-1]}  # those of the window before are gone
    assert looks[-1] > 0


def test_a_ceiling_of_a_power_budget_is_kept() -> None:
    each = Steered(tpot_s=1.0)
    each.run(300, rate_rps=4.0, ceiling_mhz=1000)
    assert max(each.seen_mhz) <= 1000
