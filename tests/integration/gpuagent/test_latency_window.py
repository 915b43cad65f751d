"""Latency counts in the file that a worker and its agent share."""

from pathlib import Path

import numpy as np

from services.gpuagent.shared_memory.latency_counters import (
    SIZES,
    Counts,
    size_of,
)
from services.gpuagent.shared_memory.shared_counters import SharedCounters, opened


def counted(*latencies_s: float) -> Counts:
    counts = np.zeros(SIZES, np.uint64)
    for latency_s in latencies_s:
        counts[size_of(latency_s)] += 1
    return counts


def test_what_a_worker_counts_the_agent_reads_and_no_other_slot_shows(tmp_path: Path) -> None:
    with opened(tmp_path / "gpu.ledger") as worker:
        for _ in range(3):
            worker.latencies(63).add(0.05)
        agent = SharedCounters(tmp_path / "gpu.ledger")
        found = [int(agent.latencies(slot).read().sum()) for slot in range(64)]
        read = agent.latencies(63).read()
        agent.close()

    assert found == [0] * 63 + [3]
    assert (read == counted(0.05, 0.05, 0.05)).all(), "it is a copy: the file may go"


def test_the_latencies_do_not_touch_the_slots(tmp_path: Path) -> None:
    with opened(tmp_path / "gpu.ledger") as counters:
        before = list(counters.slots())
        for slot in range(64):
            counters.latencies(slot).add(1e-9)
            counters.latencies(slot).add(1e9)

        assert list(counters.slots()) == before
