"""CARBONDIS' policies on one model's instances: a worker serves one model, so there is one job.

An instance's class is the idle power of its GPU: the least is the low end. The time and energy that
a request would take there is learned from answers, by class, variant and size of the body.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from services.kit.config import InstanceChoice
from services.router.core.balancing.carbon_aware import CarbonAware
from services.router.core.balancing.carbondis import Carbondis
from services.router.core.balancing.latency_history import LatencyHistory
from services.router.core.balancing.policy import Gpu, Placement, Policy, QueuedRequest, QueueView
from services.router.core.instance_state import InstanceState
from services.router.core.model import Instance, Request
from services.router.core.pending_request import PendingRequest

WEIGHING: Mapping[InstanceChoice, Callable[[float], Policy]] = {
    "carbondis": Carbondis,
    "carbon_aware": lambda _: CarbonAware(),
}
"""Choices that may let a request wait although an instance is free, given CARBONDIS' CIT."""

MAX_WEIGHED = 16
"""Waiting requests that a policy considers."""

_DEVIATIONS = 2.0  # above the mean: a latency that can be counted on
_EXACT_BITS = 3


class CarbonSignal(Protocol):
    """Carbon intensity of electricity by zone."""

    def intensity(self, zone: str) -> float | None:
        """Return a zone's carbon intensity, gCO2e/kWh; None: not known."""
        ...

    def ratio(self, zone: str) -> float | None:
        """Return the intensity over its average (CIR); None: not known."""
        ...


class UnknownCarbon:
    """The `CarbonSignal` where no zone's intensity is known."""

    def intensity(self, zone: str) -> float | None:  # noqa: ARG002 - as the protocol has it
        """Return None."""
        return None

    def ratio(self, zone: str) -> float | None:  # noqa: ARG002 - as the protocol has it
        """Return None."""
        return None


class Pick(NamedTuple):
    """A policy's choice.

    Attributes:
        pending, state: The request that begins, and its instance; None: none shall begin now.
        again_s: When to decide again at the latest; None: at the next event.
    """

    pending: PendingRequest | None
    state: InstanceState | None
    again_s: float | None


class InstanceWeigher:
    """Weighs the instances of one model.

    Args:
        policy: Decides.
        carbon: Carbon intensities and CIR.
    """

    def __init__(self, policy: Policy, carbon: CarbonSignal) -> None:
        self.policy = policy
        self._carbon = carbon
        self._histories: dict[tuple[float, str], LatencyHistory] = {}
        self._intensities: dict[str, float] = {}

    def learn(self, state: InstanceState, request: Request, hold_s: float, energy_j: float) -> None:
        """Learn from an answered request's time and active energy."""
        history = self._histories.setdefault(kind_of(state.instance), LatencyHistory())
        history.add(size_class(len(request.body)), hold_s, energy_j)

    def pick(
        self,
        waiting: Sequence[PendingRequest],
        states: Sequence[InstanceState],
        now_s: float,
        slo_latency_s: float,
    ) -> Pick:
        """Return the request to start now, and its instance.

        Args:
            waiting: The waiting requests, in order; not empty.
            states: The instances that take requests, busy ones included; not empty.
            now_s: The time.
            slo_latency_s: Latency constraint.
        """
        gpus = _gpus(states)
        self._price(states)
        queued = list[QueuedRequest]()
        for each in waiting:
            pairs = zip(states, gpus, strict=True)
            roomy = [(state, gpu) for state, gpu in pairs if state.has_tokens_for(each)]
            if not roomy:  # later ones do not overtake it
                break
            queued.append(self._queued(each.request, roomy, slo_latency_s))
        if not queued:
            return Pick(None, None, None)
        ratios = [_known(self._carbon.ratio(zone)) for zone in self._intensities]
        ratio = max((r for r in ratios if r is not None), default=1.0)
        start, again_s = self.policy.decide(QueueView(now_s, ratio, queued))
        if start is None:
            return Pick(None, None, again_s)
        pending = waiting[queued.index(start.queued)]
        return Pick(pending, states[start.placement.gpu.key], again_s)

    def _price(self, states: Sequence[InstanceState]) -> None:
        """Read the carbon intensities."""
        zones = (state.instance.zone for state in states)
        self._intensities = known_intensities(self._carbon, zones)

    def _queued(
        self,
        request: Request,
        places: Sequence[tuple[InstanceState, Gpu]],
        slo_latency_s: float,
    ) -> QueuedRequest:
        size = size_class(len(request.body))
        placements = tuple(self._placement(state, gpu, size) for state, gpu in places)
        due_s = request.arrived_s + slo_latency_s
        return QueuedRequest(size, request.arrived_s, due_s, placements)

    def _placement(self, state: InstanceState, gpu: Gpu, size: int) -> Placement:
        """Return the expectation; an instance never tried is taken to be immediate and free."""
        instance = state.instance
        history = self._histories.get(kind_of(instance))
        known = history.estimate(size) if history else None
        if known is None:
            return Placement(gpu, 0.0, 0.0, 0.0, 0.0)
        intensity = self._intensities[instance.zone]
        return Placement(
            gpu=gpu,
            latency_s=known.latency_s,
            likely_s=known.latency_s + _DEVIATIONS * known.deviation_s,
            carbon_gco2e=known.energy_j * instance.pue * intensity,
            occupies_s=known.latency_s / max(state.credits, 1),
        )


def known_intensities(carbon: CarbonSignal, zones: Iterable[str]) -> dict[str, float]:
    """Return the intensity of each zone; where one is not known, all count the same."""
    found = {zone: _known(carbon.intensity(zone)) for zone in set(zones)}
    known = {zone: each for zone, each in found.items() if each is not None}
    return known if len(known) == len(found) else dict.fromkeys(found, 1.0)


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


def _known(value: float | None) -> float | None:
    """Return a value, None for NaN: a zone that reports percentiles has no intensity."""
    return None if value is None or math.isnan(value) else value


def kind_of(instance: Instance) -> tuple[float, str]:
    """Return the class of its GPU and its variant, by which instances are taken to be alike."""
    return instance.gpu_idle_power_w, instance.variant


def _free_s(state: InstanceState) -> float:
    """Return when an instance without a credit is expected to have one."""
    oldest = next(iter(state.in_flight.values()), None)
    return (oldest.assigned_s if oldest else 0.0) + state.latency.hold_s
