"""Algorithm 1, its baselines and the carbon-aware policy."""

import pytest

from benchmarks.carbondis.baselines import HighPerf, LowEnergy
from services.router.core.balancing.carbon_aware import CarbonAware
from services.router.core.balancing.carbondis import Carbondis
from services.router.core.balancing.policy import (
    Gpu,
    Placement,
    Policy,
    QueuedRequest,
    QueueView,
    Start,
)

SLO_S = 1.0
LOW, HIGH, HIGHER = 0, 1, 2


def queued(*gpus: tuple[Gpu, float, float], arrived_s: float = 0.0) -> QueuedRequest:
    """Return a request with a placement (latency, carbon) on each GPU."""
    placements = tuple(Placement(gpu, s, s, carbon, s) for gpu, s, carbon in gpus)
    return QueuedRequest(1, arrived_s, arrived_s + SLO_S, placements)


def chosen(
    policy: Policy, *requests: QueuedRequest, now_s: float = 0.0, ratio: float = 1.0
) -> Gpu | None:
    start = policy.decide(QueueView(now_s, ratio, requests)).start
    return start.placement.gpu if start else None


@pytest.mark.parametrize(
    ("low_s", "ratio", "high_busy", "expected"),
    [
        (2.0, 0.5, False, HIGH),  # lines 11-13
        (2.0, 0.5, True, LOW),  # lines 14-15
        (0.5, 1.5, False, HIGH),  # lines 16-18
        (0.5, 1.5, True, LOW),  # lines 19-20
        (0.5, 1.0, False, LOW),  # lines 21-22: CIR <= CIT
        (1.0, 1.0, False, LOW),  # ESFT = EXFT is in time
    ],
    ids=["late", "late-busy", "dirty", "dirty-busy", "clean", "just-in-time"],
)
def test_every_branch_of_algorithm_1_is_as_printed(
    low_s: float, ratio: float, high_busy: bool, expected: int
) -> None:
    low, high = Gpu(0, LOW), Gpu(1, HIGH, busy=high_busy, free_s=9.0)

    gpu = chosen(Carbondis(1.0), queued((low, low_s, 2.0), (high, 0.1, 1.0)), ratio=ratio)

    assert gpu is not None
    assert gpu.rank == expected


def test_a_request_waits_for_the_low_end_where_that_is_in_time() -> None:
    """CT of Eq. 6 is when the request would be executed, not when it is looked at."""
    low, high = Gpu(0, LOW, busy=True, free_s=0.4), Gpu(1, HIGH)

    assert chosen(Carbondis(), queued((low, 0.5, 2.0), (high, 0.1, 1.0))) is None
    low.free_s = 0.6
    assert chosen(Carbondis(), queued((low, 0.5, 2.0), (high, 0.1, 1.0))) is high


def test_among_three_classes_a_late_request_takes_the_least_that_is_in_time() -> None:
    low, high, higher = Gpu(0, LOW), Gpu(1, HIGH), Gpu(2, HIGHER)

    def placements(low_s: float, high_s: float) -> QueuedRequest:
        return queued((low, low_s, 3.0), (high, high_s, 2.0), (higher, 0.1, 2.5))

    assert chosen(Carbondis(), placements(2.0, 0.9)) is high
    assert chosen(Carbondis(), placements(2.0, 1.5)) is higher
    assert chosen(Carbondis(), placements(0.5, 0.9), ratio=2.0) is high, "the one that emits least"


def test_several_gpus_of_a_class_are_taken_as_they_become_free() -> None:
    lows = [Gpu(0, LOW, busy=True, free_s=5.0), Gpu(1, LOW)]

    assert chosen(Carbondis(), queued(*((gpu, 0.5, 1.0) for gpu in lows))) is lows[1]
    assert chosen(LowEnergy(), queued(*((gpu, 0.5, 1.0) for gpu in lows))) is lows[1]


def test_baselines_keep_to_their_class() -> None:
    low, high = Gpu(0, LOW), Gpu(1, HIGH, busy=True, free_s=1.0)
    both = queued((low, 0.1, 1.0), (high, 0.1, 1.0))

    assert chosen(HighPerf(), both) is None, "it waits for the high end"
    assert chosen(LowEnergy(), both) is low


# ---- carbon-aware ------------------------------------------------------------------------------


def test_a_request_waits_for_the_least_carbon_only_as_long_as_it_is_in_time() -> None:
    low, high = Gpu(0, LOW), Gpu(1, HIGH, busy=True, free_s=0.5)
    request = queued((low, 0.4, 2.0), (high, 0.3, 1.0))
    view = QueueView(0.0, 1.0, [request])

    decision = CarbonAware().decide(view)
    assert decision.start is None
    assert decision.again_s == pytest.approx(0.6), "the latest start below"
    high.free_s = 0.8
    assert CarbonAware().decide(view).start == Start(request, request.placements[0])


def test_which_class_emits_least_may_differ_by_request() -> None:
    """A small request may be cheaper on the low end; the class itself is no argument."""
    low, high = Gpu(0, LOW), Gpu(1, HIGH)

    assert chosen(CarbonAware(), queued((low, 0.4, 1.0), (high, 0.1, 2.0))) is low
    assert chosen(CarbonAware(), queued((low, 0.4, 2.0), (high, 0.1, 1.0))) is high


def test_a_request_that_is_late_anyway_lets_others_be_in_time() -> None:
    high = Gpu(0, HIGH)
    lost, sound = queued((high, 0.6, 1.0)), queued((high, 0.6, 1.0), arrived_s=0.8)

    start = CarbonAware().decide(QueueView(0.8, 1.0, [lost, sound])).start

    assert start is not None
    assert start.queued is sound
