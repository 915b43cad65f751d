"""A language model's clock follows whichever of its objectives is the scarcest."""

from typing import Final

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from services.gpuagent.clock_loop.core.decide import GovernedSegment
from services.gpuagent.clock_loop.core.governor import SAMPLE_S, Governor
from services.gpuagent.shared_memory.latency_counters import SIZES, size_of
from services.gpuagent.worker.core.tokens import binding_latency_s
from services.kit.config import Slo
from services.kit.hardware.gpu_types import load
from services.kit.request_cost import Usage
from tests.support.examples import examples

SECONDS = st.floats(1e-3, 100.0)
CLOCKS_MHZ: Final = load("v100").clocks_mhz
HIGHEST_MHZ: Final = max(CLOCKS_MHZ)
TOKENS: Final = 200


@examples(1.0)
@given(objective=st.tuples(SECONDS, SECONDS, SECONDS), took=st.tuples(SECONDS, SECONDS, SECONDS))
def test_the_share_that_counts_is_the_largest_of_all_objectives(
    objective: tuple[float, float, float], took: tuple[float, float, float]
) -> None:
    latency_s, first_token_s, token_s = took
    promised = Slo(latency_s=objective[0], ttft_s=objective[1], tpot_s=objective[2])

    counted_s = binding_latency_s(promised, latency_s, Usage(1, 2, first_token_s, token_s))

    shares = [used / limit for used, limit in zip(took, objective, strict=True)]
    assert np.isclose(counted_s / promised.latency_s, max(shares))


@examples(1.0)
@given(took=st.tuples(SECONDS, SECONDS, SECONDS))
def test_without_objectives_of_tokens_only_latency_counts(took: tuple[float, float, float]) -> None:
    usage = Usage(1, 2, *took[1:])

    assert binding_latency_s(Slo(latency_s=10.0), took[0], usage) == took[0]


class Decoder:
    """Answers of 200 tokens at 100 texts per second; prompts follow the clock, tokens mostly not.

    Args:
        promised: Objectives.
    """

    def __init__(self, promised: Slo) -> None:
        self._promised = promised
        self._segment = GovernedSegment("s", "m", 95.0, promised.latency_s, sensitivity=0.5)
        self._counts = np.zeros(SIZES, np.uint64)
        self._at_s = 0.0
        self.governor = Governor("GPU-1", CLOCKS_MHZ, floor=0.1)

    def usage(self) -> Usage:
        """Return the times of a text's tokens at the present clock."""
        slower = HIGHEST_MHZ / self.governor.clock_mhz
        return Usage(1, TOKENS, self.first_token_s * slower, 0.02 * (1 + 0.3 * (slower - 1)))

    def serve(self, seconds: float, first_token_s: float = 0.1) -> Usage:
        """Serve texts for a time; return the usage of the last.

        Args:
            seconds: Length of the time.
            first_token_s: At the highest clock; longer while a burst of prompts waits.
        """
        self.first_token_s = first_token_s
        for _ in range(round(seconds / SAMPLE_S)):
            usage = self.usage()
            latency_s = usage.first_token_s + TOKENS * usage.token_s
            self._counts = self._counts.copy()
            counted_s = binding_latency_s(self._promised, latency_s, usage)
            self._counts[size_of(counted_s)] += np.uint64(100 * SAMPLE_S)
            self._at_s += SAMPLE_S
            self.governor.look(self._at_s, 0, {self._segment: self._counts})
        return self.usage()


def test_the_clock_falls_until_the_time_between_tokens_allows_no_more() -> None:
    """Latency alone, of which little is used, would let it fall to the floor."""
    free = Decoder(Slo(latency_s=60.0))
    held = Decoder(Slo(latency_s=60.0, tpot_s=0.023))

    free.serve(60)
    usage = held.serve(60)

    assert 0.85 * 0.023 < usage.token_s <= 0.023
    assert free.governor.clock_mhz < held.governor.clock_mhz < HIGHEST_MHZ


def test_the_clock_rises_for_a_burst_of_prompts() -> None:
    decoder = Decoder(Slo(latency_s=60.0, ttft_s=0.4, tpot_s=0.03))
    decoder.serve(60)
    lowered_mhz = decoder.governor.clock_mhz

    burst = decoder.serve(3, first_token_s=0.3)

    assert lowered_mhz < 0.8 * HIGHEST_MHZ
    assert decoder.governor.clock_mhz > lowered_mhz
    assert burst.first_token_s <= 0.4
