"""Energy of a machine that runs more than our workers (Kepler: by share of all busy CPU time)."""

from pathlib import Path

import pytest

from services.gpuagent.core.device_port import MeterReading
from tests.support.gpuagent.metered_gpu import IDLE_W, Bench


def test_what_other_programs_draw_is_no_segments(tmp_path: Path) -> None:
    """A worker was busy 0.1 s on 2 cores while all cores were busy 0.8 s: a quarter is its."""
    bench = Bench(tmp_path, sm_shares=True)
    bench.segment("one", 0, sm_count=2)

    def read(elapsed_s: float, active_j: float, busy_core_s: float) -> None:
        bench.pass_time(elapsed_s, active_j)
        reading = MeterReading(bench.joules, None, "rapl", busy_core_s)
        bench.meter.read(reading, bench.at_s, bench.segments.values())

    read(0.0, 0.0, 100.0)
    bench.batch(0, 0.1, 0.0)
    read(1.0, 40.0, 100.8)
    account = bench.meter.account
    assert account.segments["one"].active_j == pytest.approx(10.0)
    assert account.unattributed_j == pytest.approx(30.0)
    assert account.idle_j == pytest.approx(IDLE_W)

    bench.batch(0, 0.5, 0.0)
    read(1.0, 40.0, 101.2)
    entry = bench.meter.account.segments["one"]
    assert entry.active_j == pytest.approx(50.0), "a kernel that counts late takes nothing away"
