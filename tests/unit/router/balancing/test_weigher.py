"""The same policies in a model's dispatcher: instances of a low-end and a high-end GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.kit.config import InstanceChoice
from services.kit.request_cost import Cost
from services.router.core.balancing.weigher import size_class
from services.router.core.dispatch.decisions import Decision, Fail, Reconsider, Reply, Send
from services.router.core.dispatch.dispatcher import Dispatcher
from services.router.core.model import Instance, Limits, ModelRoutes, Request
from services.router.core.pending_request import PendingRequest
from services.router.core.worker_port import Hello

LOW = Instance("low:1", "low", "m", "v", 0.9, 0.5, 1, zone="z", gpu_idle_power_w=25.0)
HIGH = Instance("high:1", "high", "m", "v", 0.9, 0.5, 1, zone="z", gpu_idle_power_w=55.0)
LATENCY_S = {LOW.id: 0.4, HIGH.id: 0.1}
ENERGY_J = {LOW.id: 20.0, HIGH.id: 10.0}
SLO_S = 1.0


@dataclass
class Sky:
    """A grid of one zone."""

    cir: float = 1.0

    def intensity(self, zone: str) -> float | None:
        return 300.0 if zone == "z" else None

    def ratio(self, zone: str) -> float | None:
        return self.cir if zone == "z" else None


class Served:
    """A dispatcher whose instances take their time, driven by events."""

    def __init__(self, choice: InstanceChoice, sky: Sky) -> None:
        routes = ModelRoutes("m", SLO_S, 95, choice, (LOW, HIGH))
        self.core = Dispatcher(routes, Limits(), carbon=sky)
        self.core.swap(routes)
        self.sky = sky
        self.now_s = 0.0
        self.due: list[tuple[float, int, Instance]] = []
        self.look_s: list[float] = []
        self.ended: dict[int, Instance | None] = {}
        self._number = 0
        for instance in (LOW, HIGH):
            self.execute(self.core.up(instance.id, Hello(1, b"")))

    def execute(self, decisions: Sequence[Decision]) -> None:
        for decision in decisions:
            match decision:
                case Send(instance, pending):
                    due_s = self.now_s + LATENCY_S[instance.id]
                    self.due.append((due_s, pending.request.number, instance))
                case Reply(instance, pending):
                    assert pending.request.number not in self.ended
                    self.ended[pending.request.number] = instance
                case Fail(pending, _):
                    self.ended[pending.request.number] = None
                case Reconsider(_, at_s):
                    self.look_s.append(at_s)

    def offer(self) -> Instance | None:
        """Offer a request; return who got it, None: it waits."""
        self._number += 1
        request = Request(self._number, "m", b"x" * 100, self.now_s, self.now_s + 30.0)
        self.execute(self.core.offer(PendingRequest(request)))
        return next((who for _, number, who in self.due if number == self._number), None)

    def until(self, end_s: float) -> None:
        """Advance time to `end_s`, with all events until then."""
        while True:
            answers = min(self.due, default=(float("inf"), 0, LOW))
            look_s = min(self.look_s, default=float("inf"))
            self.now_s = min(answers[0], look_s, end_s)
            if self.now_s >= end_s:
                return
            if look_s <= answers[0]:
                self.look_s.remove(look_s)
                self.execute(self.core.reconsider(look_s))
                continue
            self.due.remove(answers)
            _, number, instance = answers
            cost = Cost(ENERGY_J[instance.id], 0.0, "model", 0.0, 0.0, 1)
            self.execute(self.core.result(instance.id, number, now_s=self.now_s, cost=cost))

    def learned(self) -> Served:
        """Serve two at once and wait: both instances' energies are known from then on."""
        self.offer()
        self.offer()
        self.until(self.now_s + 5.0)
        assert sorted(self.ended) == [1, 2]
        return self


@pytest.mark.parametrize(
    ("choice", "cir", "expected"),
    [
        ("carbondis", 0.9, LOW),
        ("carbondis", 1.1, HIGH),
        ("carbon_aware", 0.9, HIGH),
        ("carbon_aware", 1.1, HIGH),
    ],
)
def test_an_idle_model_sends_where_its_policy_says(
    choice: InstanceChoice, cir: float, expected: Instance
) -> None:
    served = Served(choice, Sky()).learned()
    served.sky.cir = cir

    assert served.offer() is expected


def test_a_new_threshold_counts_for_the_next_request_and_costs_no_history() -> None:
    served = Served("carbondis", Sky(cir=1.3)).learned()
    assert served.offer() is HIGH
    served.until(served.now_s + 5.0)

    served.execute(served.core.swap(replace(served.core.routes, intensity_threshold=1.5)))

    assert served.offer() is LOW
    assert served.offer() is None, "what the instances take is still known: the low one is in time"


def test_an_instance_without_a_share_serves_where_a_policy_weighs_but_no_other_variant() -> None:
    """Shares are not followed there; accuracy is still the plan's."""
    spare = replace(LOW, share=0.0)
    cheaper = replace(LOW, endpoint="low:2", segment_id="other", variant="w", share=0.0)
    served = Served("carbondis", Sky())
    served.execute(served.core.swap(replace(served.core.routes, instances=(spare, HIGH, cheaper))))
    served.execute(served.core.up(cheaper.id, Hello(1, b"")))

    served.learned()

    assert served.offer() is not None
    assert served.due[-1][2].id == LOW.id


def test_a_request_waits_for_the_instance_that_emits_least_while_another_is_free() -> None:
    served = Served("carbon_aware", Sky()).learned()
    assert served.offer() is HIGH

    assert served.offer() is None
    served.until(served.now_s + 1.0)

    assert served.ended[4] is HIGH


def test_a_request_that_cannot_wait_longer_goes_elsewhere_at_the_time_announced() -> None:
    """The high-end instance hangs: at the latest start below, what waits is looked at again."""
    served = Served("carbon_aware", Sky()).learned()
    served.offer()
    hung = served.due.pop()
    since_s = served.now_s

    assert served.offer() is None
    served.until(since_s + 0.99)

    assert hung[2] is HIGH
    assert sorted(served.ended) == [1, 2]
    served.until(since_s + 1.01)
    assert served.ended[4] is LOW, "within its objective of 1 s"


@given(
    gaps_s=st.lists(st.floats(0, 0.6), min_size=1, max_size=40),
    choice=st.sampled_from(["carbondis", "carbon_aware"]),
    cir=st.floats(0.5, 1.5),
)
def test_every_request_is_answered_once_whatever_the_policy(
    gaps_s: list[float], choice: InstanceChoice, cir: float
) -> None:
    served = Served(choice, Sky(cir))
    for gap_s in gaps_s:
        served.until(served.now_s + gap_s)
        served.offer()
    served.until(served.now_s + 60.0)

    assert len(served.ended) == len(gaps_s)
    assert served.core.queue_depth == 0


@given(st.integers(0, 2**40))
def test_bodies_are_classified_by_an_eighth_of_their_size(size_bytes: int) -> None:
    assert size_class(size_bytes) <= size_bytes <= 1.25 * size_class(size_bytes)
