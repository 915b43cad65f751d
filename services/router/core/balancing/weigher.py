"""The policies on one model's lanes: a worker serves one model, so its pool has one job.

A lane's class is the idle power of its GPU: the least is the low end. What a request would take
there, and add in energy, is learned from answers, by class, variant and size of the body.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from services.kit.config import InstanceChoice
from services.router.core.balancing.baselines import HighPerf, LowEnergy
from services.router.core.balancing.carbon_aware import CarbonAware
from services.router.core.balancing.carbondis import Carbondis
from services.router.core.balancing.latency_history import LatencyHistory
from services.router.core.balancing.policy import Gpu, Placement, Policy, QueuedRequest, QueueView
from services.router.core.instance_state import InstanceState
from services.router.core.model import Instance, Request

WEIGHING: Mapping[InstanceChoice, Callable[[float], Policy]] = {
    "carbondis": Carbondis,
    "carbon_aware": lambda _: CarbonAware(),
    "highperf": lambda _: HighPerf(),
    "lowenergy": lambda _: LowEnergy(),
}
"""Choices that may let a request wait although an instance is free, given CARBONDIS' CIT."""

MOST = 16
"""Waiting requests that a policy looks at."""

_COUNT_ON = 2.0
_EXACT_BITS = 3


class Grid(Protocol):
    """What electricity is worth."""

    def intensity(self, zone: str) -> float | None:
        """Return a zone's carbon intensity, gCO2e/kWh; None: not known."""
        ...

    def ratio(self, zone: str) -> float | None:
        """Return the intensity over its average (CIR); None: not known."""
        ...


class UnknownCarbon:
    """Nothing is known of any zone."""

    def intensity(self, zone: str) -> float | None:  # noqa: ARG002 - as the protocol has it
        """Return None."""
        return None

    def ratio(self, zone: str) -> float | None:  # noqa: ARG002 - as the protocol has it
        """Return None."""
        return None


class Pick(NamedTuple):
    """What a policy says of a model's queue.

    Attributes:
        request, state: Who takes which; None: what waits had better wait.
        again_s: Ask again by then; None: at the next event.
    """

    request: Request | None
    state: InstanceState | None
    again_s: float | None


class InstanceWeigher:
    """Weighs the lanes of one model.

    Args:
        policy: Decides.
        grid: For intensities and CIR.
    """

    def __init__(self, policy: Policy, grid: Grid) -> None:
        self.policy = policy
        self._grid = grid
        self._histories: dict[tuple[float, str], LatencyHistory] = {}
        self._intensities: dict[str, float] = {}

    def learn(self, state: InstanceState, request: Request, hold_s: float, energy_j: float) -> None:
        """Take in what a request took, and its active energy."""
        history = self._histories.setdefault(_kind(state.instance), LatencyHistory())
        history.add(size_class(len(request.body)), hold_s, energy_j)

    def pick(
        self,
        waiting: Sequence[Request],
        states: Sequence[InstanceState],
        now_s: float,
        slo_latency_s: float,
    ) -> Pick:
        """Return who begins now, and where.

        Args:
            waiting: What waits, in order; not empty.
            states: Those that take work, busy ones included; not empty.
            now_s: The time.
            slo_latency_s: Latency constraint.
        """
        gpus = _gpus(states)
        self._price(states)
        queued = [self._ask(request, states, gpus, slo_latency_s) for request in waiting]
        ratios = [_known(self._grid.ratio(zone)) for zone in self._intensities]
        queue_view = QueueView(
            now_s, max((r for r in ratios if r is not None), default=1.0), (queued,)
        )
        start, again_s = self.policy.decide(queue_view)
        if start is None:
            return Pick(None, None, again_s)
        request = next(r for r, ask in zip(waiting, queued, strict=True) if ask is start.ask)
        return Pick(request, states[start.offer.gpu.key], again_s)

    def _price(self, states: Sequence[InstanceState]) -> None:
        """Note what electricity is worth; where one zone is not known, all count the same."""
        found = {
            zone: _known(self._grid.intensity(zone))
            for zone in {state.instance.zone for state in states}
        }
        known = {zone: each for zone, each in found.items() if each is not None}
        self._intensities = known if len(known) == len(found) else dict.fromkeys(found, 1.0)

    def _ask(
        self,
        request: Request,
        states: Sequence[InstanceState],
        gpus: Sequence[Gpu],
        slo_latency_s: float,
    ) -> QueuedRequest:
        size = size_class(len(request.body))
        offers = tuple(
            self._offer(state, gpu, size) for state, gpu in zip(states, gpus, strict=True)
        )
        return QueuedRequest(0, size, request.arrived_s, request.arrived_s + slo_latency_s, offers)

    def _offer(self, state: InstanceState, gpu: Gpu, size: int) -> Placement:
        """Return what is expected; what was never tried is believed to be quick and free."""
        instance = state.instance
        history = self._histories.get(_kind(instance))
        known = history.estimate(size) if history else None
        if known is None:
            return Placement(gpu, 0.0, 0.0, 0.0, 0.0)
        intensity = self._intensities[instance.zone]
        return Placement(
            gpu=gpu,
            latency_s=known.latency_s,
            likely_s=known.latency_s + _COUNT_ON * known.deviation_s,
            carbon_gco2e=known.energy_j * instance.pue * intensity,
            occupies_s=known.latency_s / max(state.credits, 1),
        )


def size_class(size_bytes: int) -> int:
    """Return a body's size with its three leading bits: the router does not decode requests."""
    drop = max(size_bytes.bit_length() - _EXACT_BITS, 0)
    return size_bytes >> drop << drop


def _gpus(states: Sequence[InstanceState]) -> list[Gpu]:
    classes = sorted({state.instance.gpu_idle_power_w for state in states})
    rank = {power_w: number for number, power_w in enumerate(classes)}
    return [
        Gpu(key, rank[state.instance.gpu_idle_power_w], _free_s(state), busy=not state.free)
        for key, state in enumerate(states)
    ]


def _known(figure: float | None) -> float | None:
    """Return a figure, None where it is none: a zone of percentiles has no intensity."""
    return None if figure is None or math.isnan(figure) else figure


def _kind(instance: Instance) -> tuple[float, str]:
    return instance.gpu_idle_power_w, instance.variant


def _free_s(state: InstanceState) -> float:
    """Return when a lane without a credit is expected to have one."""
    oldest_s = min((request.sent_s for request in state.in_flight.values()), default=0.0)
    return oldest_s + state.latency.hold_s
