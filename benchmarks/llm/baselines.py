"""Baselines: what operators run today, each with the time that its servers take to boot.

- locked clocks: least requests, and `nvidia-smi -lgc` at 0.6 on all GPUs, which all serve;
- HPA: Kubernetes' autoscaler on the GPUs' utilisation (DCGM), target 80 %, highest clock;
- KEDA: on `vllm:num_requests_waiting`, as vLLM's production stack configures it, clocks locked;
- SLA planner: as NVIDIA Dynamo's: each interval as many replicas as the load of the last one takes
  by the profile; with the clock that the profile prefers, which Dynamo's does not have.

HPA and KEDA change by the autoscaler's rules: it looks every 15 s, ignores a tenth, at most doubles
(or adds four), and shrinks to the most that it wanted within the stabilisation window: 300 s, and
the same with 60 s, which an operator may set.

Sources: Kubernetes, "Horizontal Pod Autoscaling" (algorithm, default behaviour); KEDA, Prometheus
scaler; vLLM production stack, tutorial 20 ("threshold: 5", "pollingInterval: 15"); Dynamo, "SLA-
based planner" (constant predictor, one interval).
"""

import math
from collections import deque
from collections.abc import Sequence
from typing import Final

from benchmarks.llm.elastic import GPUS, Fleet, Unit
from benchmarks.llm.engine import CLOCKS, Limits, Request
from benchmarks.llm.policies import lengths, plan_of
from services.simulator.continuous_batching import Replica

SYNC_S: Final = 15.0
TOLERANCE: Final = 0.1
STABILISATION_S: Final = (300.0, 60.0)
UTILISATION: Final = 0.8
WAITING: Final = 5.0
ADJUSTMENT_S: Final = 60.0


class LeastRequests:
    """All GPUs serve, at one clock; the least loaded takes the next request."""

    def __init__(self, clock: float = CLOCKS[-1]) -> None:
        self.clock = clock

    def choose(self, fleet: Fleet, request: Request, number: int) -> Unit:
        """Return the least loaded; see `Policy`."""
        del request, number
        return min(fleet.serving, key=lambda unit: (unit.replica.requests, unit.name))

    def look(self, fleet: Fleet, now_s: float) -> None:
        """Leave the fleet as it is."""

    def clock_at(self, replica: Replica, now_s: float) -> float:
        """Return the clock; see `Policy`."""
        del replica, now_s
        return self.clock


class Autoscaler(LeastRequests):
    """Kubernetes' horizontal autoscaler; subclasses say by what.

    Args:
        clock: Clock of all GPUs.
        stabilisation_s: Time for which fewer must be wanted.
    """

    def __init__(self, clock: float, stabilisation_s: float) -> None:
        super().__init__(clock)
        self._stabilisation_s = stabilisation_s
        self._next_s = SYNC_S
        self._wanted: deque[tuple[float, int]] = deque()

    def ratio(self, fleet: Fleet) -> float:
        """Return the metric over its target."""
        raise NotImplementedError

    def look(self, fleet: Fleet, now_s: float) -> None:
        """Scale by the autoscaler's rules."""
        if now_s < self._next_s:
            return
        self._next_s += SYNC_S
        current, ratio = fleet.wanted, self.ratio(fleet)
        near = abs(ratio - 1.0) <= TOLERANCE
        wanted = current if near else math.ceil(current * ratio)
        wanted = min(max(wanted, 1), max(2 * current, current + 4), GPUS)
        self._wanted.append((now_s, wanted))
        while self._wanted[0][0] < now_s - self._stabilisation_s:
            self._wanted.popleft()
        if now_s < self._stabilisation_s:
            wanted = max(wanted, current)  # what it had before counts, too
        fleet.scale(max(wanted, min(current, max(each for _, each in self._wanted))), now_s)


class Hpa(Autoscaler):
    """By the share of time in which GPUs compute."""

    def __init__(self, clock: float, stabilisation_s: float) -> None:
        super().__init__(clock, stabilisation_s)
        self._busy_s: dict[str, float] = {}

    def ratio(self, fleet: Fleet) -> float:
        """Return the mean utilisation over its target."""
        serving = fleet.serving
        busy_s = sum(unit.replica.busy_s - self._busy_s.get(unit.name, 0.0) for unit in serving)
        self._busy_s = {unit.name: unit.replica.busy_s for unit in fleet.units}
        return busy_s / SYNC_S / len(serving) / UTILISATION


class Keda(Autoscaler):
    """By the requests that wait in the servers."""

    def ratio(self, fleet: Fleet) -> float:
        """Return the waiting requests of a server over their target."""
        serving = fleet.serving
        return sum(len(unit.replica.waiting) for unit in serving) / len(serving) / WAITING


class SlaPlanner(LeastRequests):
    """By the profile, for the load of the last interval.

    Args:
        window: The requests.
        limits: Objectives.
    """

    def __init__(self, window: Sequence[Request], limits: Limits) -> None:
        super().__init__()
        self._window = window
        self._limits = limits
        self._next_s = ADJUSTMENT_S

    def look(self, fleet: Fleet, now_s: float) -> None:
        """Scale to what the last interval took."""
        if now_s < self._next_s:
            return
        seen = [e for e in self._window if self._next_s - ADJUSTMENT_S <= e.arrived_s < now_s]
        self._next_s += ADJUSTMENT_S
        if seen:
            inputs, outputs = lengths(seen)
            rate_rps = len(seen) / ADJUSTMENT_S
            wanted, self.clock = plan_of(inputs, outputs, rate_rps, self._limits)
            fleet.scale(wanted, now_s)
