"""Accounts are kept from readings of the meter and the ledger, over restarts too."""

import json
import math
import random
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gpuagent.core.device_port import MeterReading
from services.gpuagent.core.worker_slot import Slot
from services.gpuagent.energy.core.account import owed_j
from services.gpuagent.energy.core.attribution import IdleShare
from services.gpuagent.energy.metering import TICK_S, GpuMeter, MeteredGpu
from services.gpuagent.shared_memory.shared_counters import SharedCounters
from services.kit.profiles.core.profile import BatchCost
from services.kit.state_file import read_parsed
from tests.support.gpuagent.metered_gpu import IDLE_W, POWER_W, Bench


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
    """The processes of a segment have its SMs between them: two are not twice the slice."""
    bench = Bench(tmp_path, sm_shares=True)
    bench.segment("small", 0, sm_count=14)
    bench.segment("large", 1, 2, sm_count=42)
    bench.read(0.0, 0.0, "counter")
    bench.batch(0, 0.6, 0.0)
    bench.batch(1, 0.2, 0.0)
    bench.batch(2, 0.2, 0.0)
    bench.read(1.0, 70.0, "counter")

    account = bench.meter.account
    assert account.segments["small"].active_j == pytest.approx(35.0)  # 0.6 s x 14 SMs
    assert account.segments["large"].active_j == pytest.approx(35.0)  # 2 x 0.2 s x 21 SMs
    assert account.segments["large"].busy_s == pytest.approx(0.4)
    assert account.segments["large"].slice == "3g.20gb@0"


def test_a_context_that_comes_within_a_window_is_no_work_of_its_requests(tmp_path: Path) -> None:
    """The context drew for half of the window; what it drew is idle energy, as ever after."""
    bench = Bench(tmp_path, context_w=IDLE_W + 30.0)
    bench.read(0.0, 0.0)
    bench.segment("one", 0)
    bench.batch(0, 0.1, 10.0)
    bench.read(1.0, 15.0 + 10.0)

    account = bench.meter.account
    assert account.segments["one"].active_j == pytest.approx(10.0)
    assert account.idle_j == pytest.approx(IDLE_W + 15.0)


def test_a_segment_that_ended_since_the_last_reading_pays_for_its_work(tmp_path: Path) -> None:
    bench = Bench(tmp_path, sm_shares=True)
    bench.segment("gone", 0)
    bench.segment("stays", 1)
    bench.read(0.0, 0.0, "counter")
    bench.batch(0, 0.3, 0.0)
    bench.batch(1, 0.1, 0.0)
    bench.end("gone")
    bench.read(1.0, 40.0, "counter")

    account = bench.meter.account
    assert account.segments["gone"].active_j == pytest.approx(30.0)
    assert account.segments["stays"].active_j == pytest.approx(10.0)


def test_workers_are_granted_what_their_segment_drew_while_busy(tmp_path: Path) -> None:
    """Granted power times busy time is the segment's energy: receipts will add up."""
    bench = Bench(tmp_path, sm_shares=True)
    bench.segment("one", 0, 1)
    bench.read(0.0, 0.0, "counter")
    first = bench.counters.grant(1)
    bench.batch(0, 0.3, 30.0)
    bench.batch(1, 0.1, 10.0)
    bench.read(1.0, 40.0, "counter")
    grant = bench.counters.grant(1)
    bench.read(1.0, 0.0, "counter")

    assert (first.busy_power_w, first.method) == (0.0, "model"), "nothing was measured yet"
    assert grant.busy_power_w * 0.4 == pytest.approx(40.0)
    assert (grant.idle_power_w, grant.method) == (5.0, "counter")
    assert bench.counters.grant(1) == grant, "a window without work says nothing of its power"


def test_receipts_sum_to_what_was_drawn(tmp_path: Path) -> None:
    """Receipts are written at the power of the window before; what that misses is made good."""
    bench, rng = Bench(tmp_path, sm_shares=True), random.Random(7)
    bench.segment("one", 0, 1)
    bench.read(0.0, 0.0, "counter")
    for _ in range(200):
        drawn_j = 0.0
        for slot in (0, 1):
            busy_s = rng.uniform(0.05, 0.45)
            granted_w = bench.counters.grant(slot).busy_power_w or 300.0  # at first, the profile's
            bench.batch(slot, busy_s, granted_w * busy_s)
            drawn_j += busy_s * rng.uniform(50.0, 150.0)
        bench.read(0.5, drawn_j, "counter")

    assert bench.meter.account.receipt_ratio == pytest.approx(1.0, abs=0.01)


def test_idle_energy_that_a_ticking_counter_cut_off_is_no_activity_of_the_next_window(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path, sm_shares=True)
    bench.read(0.0, 0.0, "counter")
    for late_j in (-4.0, 4.0) * 10:  # the counter shows a tick less, then a tick more
        bench.read(0.5, late_j, "counter")

    account = bench.meter.account
    assert account.idle_j == pytest.approx(10 * IDLE_W)
    assert account.unattributed_j == pytest.approx(0.0, abs=1e-9)


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["read", "gap", "crash", "reset", "end", "ledger", "nobody"]),
        st.floats(0.0, 2.0),
        st.floats(0.0, 100.0),
        st.integers(0, 2),
    ),
    max_size=15,
)


def _happen(bench: Bench, event: str, slot: int) -> None:
    """Apply an event between two readings."""
    match event:
        case "end":  # and another segment, on another slice, takes the worker's slot
            bench.end(
                next(n for n, r in bench.segments.items() if r.supervisors[0].spec.slot == slot)
            )
            bench.segment(f"{slot}-{len(bench.meter.account.segments)}", slot, sm_count=14 << slot)
        case "ledger":
            now = bench.counters.slot(slot)
            bench.counters.write(slot, Slot(pid=1, segment_id=now.segment_id))
        case "crash":  # what was read last was saved
            bench.start_agent()
        case "reset":
            bench.reset()


@given(EVENTS, st.booleans(), st.sampled_from(["none", "by_slice", "by_busy"]))
def test_parts_sum_to_the_meter_whatever_happens(
    tmp_path_factory: pytest.TempPathFactory,
    events: list[tuple[str, float, float, int]],
    sm_shares: bool,
    idle_share: IdleShare,
) -> None:
    """Segments and slices come and go, the counter or the ledger restarts, the agent dies."""
    bench = Bench(tmp_path_factory.mktemp("meter"), sm_shares, idle_share, reset_j=-5000.0)
    for slot in range(3):
        bench.segment(f"first-{slot}", slot, sm_count=14 << slot)
    bench.read(0.0, 0.0)
    bench.meter.save()
    for event, elapsed_s, active_j, slot in events:
        if event != "nobody":
            bench.batch(slot, elapsed_s / 2, active_j)
        bench.pass_time(elapsed_s, active_j)
        if event != "gap":
            if event == "reset":
                bench.read(0.0, 0.0)  # the energy between the last reading and a restart is lost
            _happen(bench, event, slot)
            bench.read(0.0, 0.0)
            bench.meter.save()
        account = bench.meter.account
        assert account.parts_j == pytest.approx(account.total_j, rel=0.01, abs=1e-6)
        assert account.error_ratio < 0.01
        assert account.window_error_ratio < 0.01
    bench.read(0.0, 0.0)

    account = bench.meter.account
    shared_j = math.fsum(entry.idle_share_j for entry in account.segments.values())
    assert account.total_j == pytest.approx(bench.joules)
    assert shared_j <= account.idle_j * (1 + 1e-9)


@given(st.lists(st.tuples(st.floats(0.0, 2.0), st.booleans()), max_size=10))
def test_an_agent_that_dies_before_it_saved_counts_nothing_twice(
    tmp_path_factory: pytest.TempPathFactory, reads: list[tuple[float, bool]]
) -> None:
    bench = Bench(tmp_path_factory.mktemp("meter"))
    bench.segment("one", 0)
    bench.read(0.0, 0.0)
    bench.meter.save()
    for elapsed_s, crash in reads:
        bench.batch(0, elapsed_s / 2, 10.0)
        bench.read(elapsed_s, 10.0)
        if crash:
            bench.start_agent()
            bench.read(0.0, 0.0)
        bench.meter.save()

    entry = bench.meter.account.segments["one"]
    assert bench.meter.account.total_j == pytest.approx(bench.joules)
    assert (entry.requests, entry.batches) == (len(reads), len(reads))
    assert entry.granted_j == pytest.approx(10.0 * len(reads))


def test_a_gpu_without_a_meter_is_modelled_and_says_so(tmp_path: Path) -> None:
    """Idle power over the time, and what the profile says of the batches that ran."""
    bench = Bench(tmp_path, sm_shares=True)
    bench.segment("one", 0)
    bench.segment("two", 1)
    bench.meter.read(None, bench.at_s, bench.segments.values())
    bench.batch(0, 0.5, 0.0, BatchCost(0.4, 30.0))
    bench.batch(1, 0.5, 0.0, BatchCost(0.4, 10.0))
    bench.pass_time(2.0, 0.0)
    bench.meter.read(None, bench.at_s, bench.segments.values())

    account = bench.meter.account
    assert account.method == "model"
    assert account.total_j == pytest.approx(2 * IDLE_W + 40.0)
    assert account.power_w == pytest.approx(account.total_j / 2)
    assert [entry.active_j for entry in account.segments.values()] == pytest.approx([30.0, 10.0])


def test_a_meter_of_another_kind_begins_a_count_of_its_own(tmp_path: Path) -> None:
    """A counter's millions of joules are not what was drawn since the integral's last sample."""
    bench = Bench(tmp_path, limit_w=400.0)
    bench.read(0.0, 0.0, "integrated")
    bench.joules = 9e9
    bench.read(1.0, 10.0, "counter")
    assert bench.meter.account.total_j == POWER_W
    bench.read(1.0, 10.0, "counter")

    assert bench.meter.account.total_j == pytest.approx(POWER_W + IDLE_W + 10.0)
    assert bench.meter.refused == 0
    assert bench.meter.account.method == "counter"


@pytest.mark.parametrize(
    ("step_j", "refused"),
    [
        (0.0, 0),
        (59.0, 0),
        (1.5 * 400 * 1.1 - 1, 0),
        (1.5 * 400 * 1.1 + 1, 1),
        (2.0**32 / 1000, 1),
        (9e15, 1),
        (-1.0, 1),
        (-5e5, 1),
    ],
)
def test_a_step_that_no_board_can_make_is_not_billed(
    step_j: float, refused: int, tmp_path: Path
) -> None:
    """Up, down or around: the power over the time is billed, and the meter goes on from there."""
    bench = Bench(tmp_path, limit_w=400.0, joules=1e6)
    bench.segment("one", 0)
    bench.read(0.0, 0.0, "counter")
    bench.joules += step_j - IDLE_W
    bench.batch(0, 0.5, 10.0)
    bench.read(1.0, 0.0, "counter")
    account = bench.meter.account

    assert bench.meter.refused == refused
    assert account.total_j == pytest.approx(POWER_W if refused else step_j)
    assert account.parts_j == pytest.approx(account.total_j)
    bench.read(1.0, 10.0, "counter")
    assert bench.meter.account.total_j - account.total_j == pytest.approx(IDLE_W + 10.0)


@given(
    steps=st.lists(st.floats(-1e7, 1e7, allow_nan=False), min_size=1, max_size=20),
    elapsed_s=st.floats(0.0, 5.0),
)
def test_no_meter_can_bill_more_than_a_board_draws(steps: list[float], elapsed_s: float) -> None:
    """Whatever a counter shows, the account is within the limit, and its parts sum to it."""
    with TemporaryDirectory() as folder:
        bench = Bench(Path(folder), limit_w=400.0, joules=1e7)
        bench.segment("one", 0)
        bench.read(0.0, 0.0, "counter")
        for step_j in steps:
            bench.joules = max(bench.joules + step_j - IDLE_W * elapsed_s, 0.0)
            bench.read(elapsed_s, 0.0, "counter")
        account = bench.meter.account

    assert 0 <= account.total_j <= 1.5 * 400 * (elapsed_s + TICK_S) * len(steps)
    assert account.parts_j == pytest.approx(account.total_j, abs=1e-6)


def test_a_counter_that_restarts_is_believed(tmp_path: Path) -> None:
    """A driver that was loaded again counts from 0: that step a board can make."""
    bench = Bench(tmp_path, limit_w=400.0, joules=1e6)
    bench.read(0.0, 0.0, "counter")
    bench.joules = 0.0
    bench.read(1.0, 10.0, "counter")

    assert bench.meter.account.total_j == pytest.approx(IDLE_W + 10.0)
    assert bench.meter.refused == 0


def test_a_power_that_no_board_draws_is_not_shown(tmp_path: Path) -> None:
    bench = Bench(tmp_path, limit_w=40.0)
    bench.read(0.0, 0.0, "counter")
    bench.read(1.0, 5.0, "counter")

    assert bench.meter.account.power_w == pytest.approx(IDLE_W + 5.0)


def test_a_batch_is_counted_at_no_more_than_a_board_draws(tmp_path: Path) -> None:
    """Energy of the window before it, as counters lag, is no power of a worker that hardly ran."""
    bench = Bench(tmp_path, limit_w=40.0)
    bench.segment("one", 0)
    bench.read(0.0, 0.0, "counter")
    bench.batch(0, 1e-3, 0.02)
    bench.read(1.0, 9.0, "counter")

    assert bench.counters.grant(0).busy_power_w == 1.5 * 40.0


def test_an_account_of_an_agent_that_counted_no_receipts_owes_none(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.segment("one", 0)
    bench.read(0.0, 0.0)
    bench.batch(0, 0.5, 10.0)
    bench.read(1.0, 10.0)
    bench.meter.save()
    file = tmp_path / "energy.json"
    data = read_parsed(file, dict, version=1) or {}
    del data["account"]["segments"]["one"]["granted_j"]
    file.write_text(json.dumps(data))
    bench.start_agent()

    assert owed_j(bench.meter.account.segments["one"]) == 0


def test_after_a_reboot_time_counts_from_the_boot(tmp_path: Path) -> None:
    """Idle energy is neither lost nor charged for the time that the machine was off."""
    bench = Bench(tmp_path, sm_shares=True)
    bench.read(0.0, 0.0, "counter")
    bench.meter.save()
    bench.at_s = 0.0
    bench.start_agent()
    bench.read(20.0, 1.0, "counter")

    assert bench.meter.account.idle_j == pytest.approx(20.0 * IDLE_W)
    assert bench.meter.account.unattributed_j == pytest.approx(1.0)


def test_a_meter_that_starts_again_counts_from_zero(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.joules = 500.0
    bench.read(0.0, 0.0)
    bench.joules = 0.0
    bench.read(1.0, 10.0)

    assert bench.meter.account.total_j == pytest.approx(IDLE_W + 10.0)


def test_a_ledger_recreated_takes_nothing_back(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.segment("one", 0)
    bench.batch(0, 0.5, 10.0)
    bench.read(1.0, 10.0)
    bench.counters.write(0, Slot(pid=1, segment_id="one"))
    bench.read(1.0, 0.0)

    assert bench.meter.account.segments["one"].busy_s >= 0.0
    assert bench.meter.account.parts_j == pytest.approx(bench.meter.account.total_j)


def test_a_batch_whose_end_is_recorded_late_is_counted_for_no_longer_than_it_took(
    tmp_path: Path,
) -> None:
    """The worker waited for a core: a reading saw it busy 0.2 s after it had ended."""
    bench = Bench(tmp_path)
    bench.segment("one", 0)
    bench.read(0.0, 0.0)
    begun = replace(bench.counters.slot(0), busy_since_s=bench.at_s)
    bench.counters.write(0, begun)
    bench.read(0.7, 0.0)
    bench.counters.write(0, begun.ended(bench.at_s - 0.2, 0.0, 1))
    bench.read(0.5, 0.0)
    bench.batch(0, 0.4, 0.0)
    bench.read(0.5, 0.0)

    entry = bench.meter.account.segments["one"]
    assert entry.requests == 2
    assert entry.busy_s == pytest.approx(0.5 + 0.4)


def test_a_damaged_account_is_set_aside_and_begun_again(tmp_path: Path) -> None:
    (tmp_path / "energy.json").write_text("{")

    assert Bench(tmp_path).meter.account.total_j == 0.0
    assert [path.read_text() for path in tmp_path.glob("energy.json.damaged-*")] == ["{"]


def test_an_account_states_when_it_began_over_restarts_of_its_agent(tmp_path: Path) -> None:
    """An account whose file is gone began later, so that a sum over accounts shows another."""

    def started(began_s: float) -> GpuMeter:
        counters = SharedCounters(tmp_path / "ledger", lambda: 1000.0)
        return GpuMeter(tmp_path / "energy.json", counters, MeteredGpu(IDLE_W, IDLE_W, 98), began_s)

    first = started(5.0)
    first.read(MeterReading(10.0, 70.0, "counter"), 1000.0, ())
    first.save()
    again = started(9.0)
    (tmp_path / "energy.json").unlink()
    fresh = started(12.0)

    assert [each.account.since_s for each in (first, again, fresh)] == [5.0, 5.0, 12.0]
