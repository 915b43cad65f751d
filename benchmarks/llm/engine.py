"""The benchmark's GPUs and requests; how they batch is the simulator's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Final

from benchmarks._fleets import gpu_type
from services.kit.hardware.clock_curve import ClockCurve
from services.kit.profiles.core.language import CHUNK_TOKENS, LanguageProfile
from services.planner.core.model import Pool
from services.planner.core.problem import catalog
from services.router.core.prefix_cache import PrefixCache
from services.simulator.continuous_batching import Replica, StepCosts, Text

CLOCKS: Final = (0.6, 0.7, 0.8, 0.9, 1.0)
INTENSITY_G_PER_KWH: Final = 300.0
PROFILE: Final = LanguageProfile.of(8.0)
POOL: Final = Pool(gpu_type("h100-80gb"), "", 1.0, INTENSITY_G_PER_KWH)
SLOTS: Final = 256
KV_TOKENS: Final = 400_000
"""Tokens of context that fit beside the weights: 128 KiB each (Llama 3 8B, 16 bit) in 52 GB."""
CLOCK_PERIOD_S: Final = 0.5
CHOSEN_ATTAINMENT: Final = 0.995
"""Attainment to keep on the window on which is chosen: later ones differ."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The objective of a trace. Attributes: ttft_s, tpot_s."""

    ttft_s: float
    tpot_s: float


@dataclass(slots=True)
class Request(Text):
    """A request of a trace; times are since its start."""

    def keeps(self, limits: Limits) -> bool:
        """Return whether it met its objective."""
        return self.ttft_s <= limits.ttft_s and self.tpot_s <= limits.tpot_s


ClockAt = Callable[[Replica, float], float]
"""Returns the clock of a replica's next steps, over the highest, at a time."""


class Engine(StepCosts):
    """Time and energy of a step of one GPU.

    Args:
        profile: The model's.
        pool: Of the GPU's type.
        curve: Latency and power over the clock; None: the type's.
    """

    def __init__(
        self,
        profile: LanguageProfile = PROFILE,
        pool: Pool = POOL,
        curve: ClockCurve | None = None,
    ) -> None:
        super().__init__(profile, pool.type.shape(catalog.whole(pool)))
        self._curve = curve or self._curve


def gpu(
    engine: StepCosts,
    clock_at: ClockAt,
    chunk: int = CHUNK_TOKENS,
    cache: PrefixCache | None = None,
) -> Replica:
    """Return a GPU with nothing to do, whose clock is chosen every `CLOCK_PERIOD_S` at most."""
    clock = until_s = 0.0

    def held(replica: Replica, now_s: float) -> tuple[float, float]:
        nonlocal clock, until_s
        if now_s >= until_s:
            clock, until_s = clock_at(replica, now_s), now_s + CLOCK_PERIOD_S
        return clock, until_s

    return Replica(engine, held, SLOTS, KV_TOKENS, chunk, cache)


Choose = Callable[[Sequence[Replica], Request, int], Replica]
"""Returns the replica of a request that arrives, the trace's so-manieth."""


def round_robin(replicas: Sequence[Replica], _: Request, number: int) -> Replica:
    """Return the next replica in turn."""
    return replicas[number % len(replicas)]


def least_requests(replicas: Sequence[Replica], _: Request, __: int) -> Replica:
    """Return the replica with the fewest requests."""
    return min(replicas, key=lambda replica: replica.requests)


def serve(requests: Sequence[Request], replicas: Sequence[Replica], choose: Choose) -> float:
    """Serve a trace; return when the last answer ended, s."""
    index_of = {id(replica): index for index, replica in enumerate(replicas)}
    ends: list[tuple[float, int]] = []  # of runs; those that were cut are there twice
    now_s, coming = 0.0, 0
    while coming < len(requests) or ends:
        if coming < len(requests) and (not ends or requests[coming].arrived_s <= ends[0][0]):
            request, now_s = requests[coming], requests[coming].arrived_s
            replica = choose(replicas, request, coming)
            replica.add(request, now_s)
            coming += 1
        else:
            end_s, index = heappop(ends)
            replica = replicas[index]
            if not replica.left or end_s != replica.ends_s:
                continue
            now_s = end_s
            replica.end(now_s)
        if not replica.left and replica.requests:
            replica.begin(now_s)
        if replica.left:
            heappush(ends, (replica.ends_s, index_of[id(replica)]))
    return now_s
