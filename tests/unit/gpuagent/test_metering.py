"""Accounts are kept from readings of the meter and the ledger, over restarts too."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gpuagent.blueprint import Blueprint
from services.gpuagent.device import MeterReading
from services.gpuagent.domain import SegmentSpec
from services.gpuagent.keeper import Keeper, Surroundings
from services.gpuagent.ledger import Ledger, Slot
from services.gpuagent.metering import GpuMeter
from services.gpuagent.segments import Running
from services.gpuagent.worker.spec import WorkerSpec
from services.kit.clock import RealClock
from services.kit.errors import FailedPrecondition
from services.kit.mig import Placement

IDLE_W = 50.0


async def _never(endpoint: str, segment_id: str) -> None:
    raise AssertionError(f"{endpoint}, {segment_id}: nothing is started here")


def _running(name: str, slots: tuple[int, ...], ledger: Ledger, *, sm_count: int = 42) -> Running:
    """A segment on paper: its workers are whoever writes the slots."""
    spec = SegmentSpec(name, "m", "v", 4, len(slots), "GPU-1", Placement("3g.20gb", 0))
    blueprint = Blueprint(spec, "MIG-1", Path("v.onnx"), None, "", {}, 5.0, sm_count)
    world = Surroundings(RealClock(), _never, lambda: None)
    keepers = tuple(
        Keeper(
            WorkerSpec(name, "m", "v", Path("v.onnx"), 4, "", ledger.path, slot, slots, "", None),
            ledger.path,
            ledger,
            {},
            world,
        )
        for slot in slots
    )
    return Running(blueprint, keepers, ())


@dataclass
class Bench:
    """A GPU on paper: the test writes slots and reads the meter."""

    folder: Path
    sm_shares: bool = False
    segments: dict[str, Running] = field(default_factory=dict)
    at_s: float = 1000.0
    joules: float = 0.0

    def __post_init__(self) -> None:
        self.ledger = Ledger(self.folder / "ledger", lambda: self.at_s)
        self.start_agent()

    def start_agent(self) -> None:
        self.meter = GpuMeter(
            self.folder / "energy.json",
            self.ledger,
            idle_power_w=IDLE_W,
            sm_shares=self.sm_shares,
        )

    def segment(self, name: str, *slots: int, sm_count: int = 42) -> None:
        self.segments[name] = _running(name, slots, self.ledger, sm_count=sm_count)
        for slot in slots:
            self.ledger.write(slot, Slot(pid=1, slice_uuid="MIG-1", segment_id=name))

    def batch(self, slot: int, busy_s: float, energy_j: float) -> None:
        """Let a worker have run a batch."""
        now = self.ledger.slot(slot)
        begun = replace(now, busy_since_s=self.at_s - busy_s)
        self.ledger.write(slot, begun.ended(self.at_s, energy_j, 1))

    def read(self, elapsed_s: float, active_j: float, method: Any = "model") -> None:
        self.at_s += elapsed_s
        self.joules += IDLE_W * elapsed_s + active_j
        reading = MeterReading(self.joules, 70.0, method)
        self.meter.read(reading, self.at_s, self.segments.values())

    def parts_j(self) -> float:
        account = self.meter.account
        active = (entry.active_j for entry in account.segments.values())
        return math.fsum((account.idle_j, account.unattributed_j, *active))


def test_a_simulated_gpus_energy_goes_to_whom_the_model_charged(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.segment("one", 0)
    bench.segment("two", 1)
    bench.read(0.0, 0.0)
    bench.batch(0, 0.3, 10.0)
    bench.batch(1, 0.1, 30.0)
    bench.read(1.0, 40.0)

    account = bench.meter.account
    assert account.segments["one"].active_j == pytest.approx(10.0)
    assert account.segments["two"].active_j == pytest.approx(30.0)
    assert account.idle_j == pytest.approx(IDLE_W)
    assert (account.power_w, account.method) == (70.0, "model")


def test_a_real_gpus_energy_goes_by_busy_time_and_sms(tmp_path: Path) -> None:
    bench = Bench(tmp_path, sm_shares=True)
    bench.segment("small", 0, sm_count=14)
    bench.segment("large", 1, 2, sm_count=42)
    bench.read(0.0, 0.0, "counter")
    bench.batch(0, 0.6, 0.0)
    bench.batch(1, 0.1, 0.0)
    bench.batch(2, 0.1, 0.0)
    bench.read(1.0, 70.0, "counter")

    account = bench.meter.account
    assert account.segments["small"].active_j == pytest.approx(35.0)  # 0.6 s x 14 SMs
    assert account.segments["large"].active_j == pytest.approx(35.0)  # 0.2 s x 42 SMs
    assert account.segments["large"].busy_s == pytest.approx(0.2)


def test_workers_are_granted_what_their_segment_drew_while_busy(tmp_path: Path) -> None:
    """Granted power times busy time is the segment's energy: receipts will add up."""
    bench = Bench(tmp_path, sm_shares=True)
    bench.segment("one", 0, 1)
    bench.read(0.0, 0.0, "counter")
    bench.batch(0, 0.3, 0.0)
    bench.batch(1, 0.1, 0.0)
    bench.read(1.0, 40.0, "counter")
    grant = bench.ledger.grant(1)
    bench.read(1.0, 0.0, "counter")

    assert grant.busy_power_w * 0.4 == pytest.approx(40.0)
    assert (grant.idle_power_w, grant.method) == (5.0, "counter")
    assert bench.ledger.grant(1) == grant, "a window without work says nothing of its power"


READS = st.lists(
    st.tuples(
        st.floats(0.0, 2.0),
        st.floats(0.0, 100.0),
        st.sampled_from(["one", "two", "nobody"]),
        st.booleans(),
    ),
    max_size=15,
)


@given(READS, st.booleans())
def test_parts_sum_to_the_meter_over_crashes_of_the_agent(
    tmp_path_factory: pytest.TempPathFactory,
    reads: list[tuple[float, float, str, bool]],
    sm_shares: bool,
) -> None:
    """Nothing is counted twice, nothing is lost: an agent that dies finds its place again."""
    bench = Bench(tmp_path_factory.mktemp("meter"), sm_shares=sm_shares)
    bench.segment("one", 0)
    bench.segment("two", 1)
    bench.read(0.0, 0.0)
    bench.meter.save()
    requests = 0
    for elapsed_s, active_j, who, crash in reads:
        if who != "nobody":
            bench.batch(["one", "two"].index(who), elapsed_s / 2, active_j)
            requests += 1
        bench.read(elapsed_s, active_j)
        if crash:  # before this reading was saved
            bench.start_agent()
            bench.read(0.0, 0.0)
        bench.meter.save()

    account = bench.meter.account
    assert account.total_j == pytest.approx(bench.joules)
    assert bench.parts_j() == pytest.approx(account.total_j)
    assert sum(entry.requests for entry in account.segments.values()) == requests
    assert sum(entry.batches for entry in account.segments.values()) == requests, "one each"


def test_a_meter_that_starts_anew_counts_from_zero(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.joules = 500.0
    bench.read(0.0, 0.0)
    bench.joules = 0.0
    bench.read(1.0, 10.0)

    assert bench.meter.account.total_j == pytest.approx(IDLE_W + 10.0)


def test_a_ledger_made_anew_takes_nothing_back(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.segment("one", 0)
    bench.batch(0, 0.5, 10.0)
    bench.read(1.0, 10.0)
    bench.ledger.write(0, Slot(pid=1, segment_id="one"))
    bench.read(1.0, 0.0)

    assert bench.meter.account.segments["one"].busy_s >= 0.0
    assert bench.parts_j() == pytest.approx(bench.meter.account.total_j)


def test_a_damaged_account_is_told(tmp_path: Path) -> None:
    (tmp_path / "energy.json").write_text("{")

    with pytest.raises(FailedPrecondition, match=r"energy\.json is damaged"):
        Bench(tmp_path)
