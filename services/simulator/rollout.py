"""Carries a rollout out in virtual time: routes first, then steps, stage by stage.

The order is the planner's (`services.planner.core.placement.rollout`); what its executor does over
gRPC is done here to the simulated machines.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from services.kit.config import Deployment
from services.planner.core.decide import Decision
from services.planner.core.fleet import Fleet
from services.planner.core.placement.actions import Rollout, StopSegment
from services.planner.core.plan import Plan, PlannedSegment
from services.planner.core.routing_table import Told, by_capacity, routes
from services.simulator import routing_adapter
from services.simulator.nodes import Machines
from services.simulator.router import Router
from services.simulator.scenario import Timing
from services.simulator.timeline import Timeline, Waiting

_LEAST_GRACE_S = 5.0


@dataclass(frozen=True, slots=True)
class Order:
    """What a plan asks for.

    Attributes:
        version: The plan's.
        rollout: The way to it.
        segments: Its segments.
        known: What may serve on the way, by segment id.
        grace_s: Time that accepted requests get when a segment stops, s, by segment id.
    """

    version: int
    rollout: Rollout
    segments: tuple[PlannedSegment, ...]
    known: Mapping[str, PlannedSegment]
    grace_s: Mapping[str, float]

    @classmethod
    def of(cls, plan: Plan, decision: Decision, deployment: Deployment) -> Order:
        """Return the order that a plan amounts to."""
        slo_s = {name: model.slo.latency_s for name, model in deployment.models.items()}
        return cls(
            version=plan.version,
            rollout=decision.rollout,
            segments=plan.segments,
            known={
                segment.segment_id: PlannedSegment.of(segment)
                for segment in (*decision.running, *decision.target)
            },
            grace_s={
                segment.segment_id: max(_LEAST_GRACE_S, 2 * slo_s[segment.kind.model])
                for segment in decision.running
            },
        )


class Executor:
    """Executes one order at a time.

    Attributes:
        serving: What the routes name now.
    """

    def __init__(
        self,
        deployment: Deployment,
        timeline: Timeline,
        machines: Machines,
        router: Router,
        fleet: Fleet,
    ) -> None:
        self.serving: tuple[PlannedSegment, ...] = ()
        self._deployment = deployment
        self._time = timeline
        self._machines = machines
        self._router = router
        self._fleet = fleet
        self._revision = 0

    @property
    def shares(self) -> dict[str, float]:
        """Share of its model's load that each serving segment has now, by segment id."""
        return {segment.spec.segment_id: segment.share for segment in self.serving}

    def execute(self, order: Order, timing: Timing) -> Waiting:
        """Bring the machines to a plan; afterwards its segments serve, with its shares."""
        env = self._time.env
        for stage in order.rollout.stages:
            self._serve(order.version, by_capacity(order.known[s] for s in sorted(stage.serving)))
            if any(isinstance(each, StopSegment) for step in stage.actions for each in step):
                yield env.timeout(timing.acknowledge_s)
            for actions in stage.actions:
                steps = (self._machines.perform(each, order.grace_s, timing) for each in actions)
                yield env.all_of([env.process(step) for step in steps])
                self._machines.report(self._fleet)
        self._serve(order.version, order.segments)

    def _serve(self, version: int, segments: Iterable[PlannedSegment]) -> None:
        """Send requests to these segments, with these shares, and to no others."""
        self.serving = tuple(segments)
        self._revision += 1
        endpoints = {
            name: segment.endpoints
            for name, segment in self._fleet.segments().items()
            if segment.serves
        }
        told = Told(idle_power_w=self._fleet.idle_power_w())
        found = routes(self._deployment, self.serving, endpoints, told=told)
        self._router.swap(routing_adapter.table(self._revision, version, found, self._deployment))
