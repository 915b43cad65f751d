"""How full batches are, and so what a request costs, at a given load.

Workers never wait to fill a batch: a request that finds a process free is a batch of its own, and
a process that ends a batch takes what has come meanwhile, up to the batch size. With Poisson
arrivals and memoryless batch times that is the queue M/M[1,B]/c: while all processes are busy the
number that waits is geometric, and below that it is Erlang's system (Gross, Shortle, Thompson and
Harris, "Fundamentals of Queueing Theory", 4th edition, section 3.2.2, there for one server).
"""

from collections.abc import Sequence

from services.kit.profiles.core.profile import BatchCost

_BISECTIONS = 30


def mean_energy_j(load_rps: float, processes: int, costs: Sequence[BatchCost]) -> float:
    """Return the active energy per request, J.

    Args:
        load_rps: Requests that arrive, req/s, >= 0; beyond capacity all batches are full.
        processes: Equal processes that draw from one queue, >= 1.
        costs: Of batches of 1, 2, ... requests, up to the batch size; at least one.
    """
    flows = batch_flows(load_rps, processes, [cost.latency_s for cost in costs])
    energy_j = sum(flow * cost.energy_j for flow, cost in zip(flows, costs, strict=True))
    served_rps = sum(flow * size for size, flow in enumerate(flows, start=1))
    return energy_j / served_rps if served_rps else costs[0].energy_j


def batch_flows(load_rps: float, processes: int, times_s: Sequence[float]) -> list[float]:
    """Return how many batches of 1, 2, ... requests end in a second.

    A batch takes the mean of the batches' times, whose own mixture depends on it: the shortest
    such time is taken, up to which the queue's batches take longer than was assumed.

    Args:
        load_rps: Requests that arrive, req/s, >= 0.
        processes: Processes, >= 1.
        times_s: Times of batches of 1, 2, ... requests, s.
    """
    low_s, high_s = min(times_s), max(times_s)
    for _ in range(_BISECTIONS):
        assumed_s = (low_s + high_s) / 2
        flows = _flows(load_rps, processes, len(times_s), assumed_s)
        busy = sum(flow * time_s for flow, time_s in zip(flows, times_s, strict=True))
        if busy > sum(flows) * assumed_s:
            low_s = assumed_s
        else:
            high_s = assumed_s
    return _flows(load_rps, processes, len(times_s), high_s)


def _flows(load_rps: float, processes: int, largest: int, batch_s: float) -> list[float]:
    """Return the batches per second by size where every batch takes `batch_s` on average."""
    offered = load_rps * batch_s
    if offered >= processes * largest:
        return [*[0.0] * (largest - 1), processes / batch_s]
    ratio = _decay(offered / processes, largest)
    blocked = _erlang_b(offered, processes)
    none_waits = blocked / (1.0 - blocked + blocked / (1.0 - ratio))
    free = 1.0 - none_waits / (1.0 - ratio)
    ends_per_s = processes / batch_s * none_waits
    flows = [ends_per_s * ratio**size for size in range(1, largest + 1)]
    flows[-1] /= 1.0 - ratio
    flows[0] += load_rps * free
    return flows


def _decay(offered: float, largest: int) -> float:
    """Return r in [0, 1) with r + r^2 + ... + r^largest = offered, the load per process."""
    low, high = 0.0, 1.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if middle * (1.0 - middle**largest) / (1.0 - middle) < offered:
            low = middle
        else:
            high = middle
    return low


def _erlang_b(offered: float, processes: int) -> float:
    """Return Erlang's loss probability."""
    blocked = 1.0
    for servers in range(1, processes + 1):
        blocked = offered * blocked / (servers + offered * blocked)
    return blocked
