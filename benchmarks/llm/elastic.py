"""GPUs that come and go in zones whose intensity varies: what they draw and emit.

A GPU serves, boots (with a context, for as long as its server takes to answer), drains (it takes no
more requests), or is parked, without a context. Power is the H100's: with a context and without one
(docs/measurements/gpuagent.md). Nothing cuts a parked GPU's power; `released_j` is the energy where
an autoscaler removes it, or another tenant has it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import count
from typing import Any, Final, Literal, Protocol

import numpy as np

from benchmarks.llm.engine import POOL, ClockAt, Engine, Limits, Request, gpu
from services.kit.hardware.clock_curve import ClockCurve
from services.kit.profiles.core.language import CHUNK_TOKENS
from services.kit.units import J_PER_KWH
from services.simulator.continuous_batching import Replica

State = Literal["on", "booting", "draining", "parked"]
GPUS: Final = 8
TICK_S: Final = 5.0
"""Time between two looks of a policy at its fleet; energy is priced at least as often."""


@dataclass(frozen=True, slots=True)
class Site:
    """Where the GPUs are.

    Attributes:
        zones: Zone of each GPU, in the order in which baselines start them.
        intensity: Carbon intensity of a zone at a time, gCO2e/kWh.
        boot_s: Time from a start to the first answer, s.
        curve: Power over the clock; None: the GPU type's.
    """

    zones: tuple[str, ...]
    intensity: Callable[[str, float], float]
    boot_s: float
    curve: ClockCurve | None = None


@dataclass(slots=True, eq=False)
class Unit:
    """A GPU with its server.

    Attributes:
        name, zone: Which it is.
        replica: Its server.
        state: Its state.
        ready_s: When its boot ends, s.
        energy_j, released_j, gco2e: Drawn so far; the second without what it drew while parked.
    """

    name: str
    zone: str
    replica: Replica
    state: State = "on"
    ready_s: float = 0.0
    energy_j: float = 0.0
    released_j: float = 0.0
    gco2e: float = 0.0
    _active_j: float = 0.0
    _booked_s: float = 0.0

    def book(self, now_s: float, intensity: float) -> None:
        """Count what it drew since it was last counted."""
        parked = self.state == "parked"
        idle_w = POOL.type.idle_power_w if parked else POOL.type.context_power_w
        drawn_j = self.replica.active_j - self._active_j + idle_w * (now_s - self._booked_s)
        self._active_j, self._booked_s = self.replica.active_j, now_s
        self.energy_j += drawn_j
        self.released_j += 0.0 if parked else drawn_j
        self.gco2e += drawn_j / J_PER_KWH * intensity


class Policy(Protocol):
    """Decides where requests go, and how many GPUs serve."""

    def choose(self, fleet: Fleet, request: Request, number: int) -> Unit:
        """Return the GPU of a request, the so-manieth."""
        ...

    def look(self, fleet: Fleet, now_s: float) -> None:
        """Look at the fleet, and scale it."""
        ...

    def clock_at(self, replica: Replica, now_s: float) -> float:
        """Return the clock of a replica's next steps, over the highest."""
        ...


class Fleet:
    """The GPUs.

    Args:
        site: Where they are.
        clock_at: Of each.

    Attributes:
        units: All, in order of names.
        site: Where they are.
        most: Largest number that were not parked.
    """

    def __init__(self, site: Site, clock_at: ClockAt) -> None:
        self.site = site
        self.units = tuple(
            Unit(f"{index:03}", zone, gpu(Engine(curve=site.curve), clock_at, CHUNK_TOKENS))
            for index, zone in enumerate(site.zones)
        )
        self.most = 0
        self.unit_s = 0.0
        self._booked_s = 0.0

    @property
    def serving(self) -> list[Unit]:
        """GPUs that take requests."""
        return [unit for unit in self.units if unit.state == "on"]

    @property
    def wanted(self) -> int:
        """Number of GPUs that take requests, or will."""
        return sum(unit.state in ("on", "booting") for unit in self.units)

    def scale(self, wanted: int, now_s: float, order: Sequence[Unit] | None = None) -> None:
        """Start and stop GPUs, so that the first so many of an order serve; at least one."""
        order = self.units if order is None else order
        for rank, unit in enumerate(order):
            if rank < max(wanted, 1):
                self._start(unit, now_s)
        booted = sum(unit.state == "on" for unit in order[: max(wanted, 1)])
        spare = max(wanted, 1) - booted  # others serve until those are ready
        for unit in order[max(wanted, 1) :]:
            if unit.state == "on" and spare > 0:
                spare -= 1
            else:
                self._stop(unit, now_s)

    def _start(self, unit: Unit, now_s: float) -> None:
        if unit.state == "draining":
            unit.state = "on"
        elif unit.state == "parked":
            self.book(now_s)
            unit.state, unit.ready_s = "booting", now_s + self.site.boot_s

    def _stop(self, unit: Unit, now_s: float) -> None:
        if unit.state == "on" and unit.replica.requests:
            unit.state = "draining"
        elif unit.state in ("on", "booting"):
            self.book(now_s)
            unit.state = "parked"

    def advance(self, now_s: float) -> None:
        """End boots that are due, and park what has drained."""
        self.book(now_s)
        for unit in self.units:
            if unit.state == "booting" and unit.ready_s <= now_s:
                unit.state = "on"
            elif unit.state == "draining" and not unit.replica.requests:
                unit.state = "parked"
        self.most = max(self.most, sum(unit.state != "parked" for unit in self.units))

    def book(self, now_s: float) -> None:
        """Count what every GPU drew, at the intensity of its zone."""
        powered = sum(unit.state != "parked" for unit in self.units)
        self.unit_s += powered * (now_s - self._booked_s)
        self._booked_s = now_s
        for unit in self.units:
            unit.book(now_s, self.site.intensity(unit.zone, now_s))


def serve(requests: Sequence[Request], fleet: Fleet, policy: Policy) -> float:
    """Serve a window; return when the last answer ended, s."""
    ends: list[tuple[float, int, Unit]] = []  # of runs; those that were cut are there twice
    order, now_s, coming, look_s = count(), 0.0, 0, 0.0
    while coming < len(requests) or any(unit.replica.requests for unit in fleet.units):
        arrival_s = requests[coming].arrived_s if coming < len(requests) else np.inf
        end_s = ends[0][0] if ends else np.inf
        if look_s <= min(arrival_s, end_s):
            now_s, look_s = look_s, look_s + TICK_S
            fleet.advance(now_s)
            policy.look(fleet, now_s)
            continue
        if arrival_s <= end_s:
            request, now_s = requests[coming], arrival_s
            unit = policy.choose(fleet, request, coming)
            unit.replica.add(request, now_s)
            coming += 1
        else:
            _, _, unit = heappop(ends)
            if not unit.replica.left or end_s != unit.replica.ends_s:
                continue
            now_s = end_s
            unit.replica.end(now_s)
        if not unit.replica.left and unit.replica.requests:
            unit.replica.begin(now_s)
        if unit.replica.left:
            heappush(ends, (unit.replica.ends_s, next(order), unit))
    fleet.advance(now_s)
    return now_s


def figures(
    window: Sequence[Request],
    limits: Limits,
    site: Site,
    make: Callable[[Sequence[Request]], Policy],
) -> dict[str, Any]:
    """Return what a policy draws, emits and keeps on a window."""
    requests = [replace(request) for request in window]
    policy = make(requests)
    fleet = Fleet(site, policy.clock_at)
    span_s = serve(requests, fleet, policy)
    tokens = sum(each.output_tokens for each in requests)
    units = fleet.units
    return {
        "j_per_token": sum(unit.energy_j for unit in units) / tokens,
        "active_j_per_token": sum(unit.replica.active_j for unit in units) / tokens,
        "released_j_per_token": sum(unit.released_j for unit in units) / tokens,
        "g_per_token": sum(unit.gco2e for unit in units) / tokens,
        "attainment": sum(each.keeps(limits) for each in requests) / len(requests),
        "gpus": fleet.unit_s / span_s,
        "ttft_p99_s": float(np.percentile([each.ttft_s for each in requests], 99)),
        "tpot_p99_s": float(np.percentile([each.tpot_s for each in requests], 99)),
    }
