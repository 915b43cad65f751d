"""Advice day by day: records on disk, profiles learnt from them, and plans in shadow."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from services.cli.observe import days
from services.cli.observe.learned import learnt, together
from services.cli.observe.metrics import AdviceCollector
from services.cli.observe.shadow import Shadow, shadow
from services.gpuagent.core.gpu_info import GpuInfo
from services.gpuagent.observation import history as stored
from services.gpuagent.observation.core.ledger import GpuLedger, Observation
from services.gpuagent.observation.core.record import STEP_S, Record
from services.gpuagent.observation.history import History
from services.gpuagent.observation.observer import ObservedGpu, ObservedServer, Observer
from services.gpuagent.observation.process_readings import ProcessReader
from services.gpuagent.observation.recorder import Recorder
from services.gpuagent.observation.scraping import Page
from services.kit.errors import FailedPrecondition, NotFound
from services.kit.hardware import gpu_types
from services.kit.server_metrics.figures import ServerFigures
from tests.support.observed_day import START, Law, day
from tests.support.virtual_clock import VirtualClock

LAW = Law()


@pytest.fixture(scope="module")
def morning() -> list[Record]:
    """An hour and a half with little load."""
    return day(LAW, hours=1.5, peak_rps=2.0)


def test_a_law_is_learnt_from_a_day_of_pages() -> None:
    """Steps are found to a tenth at the observed load; energies, too."""
    records = day(LAW)
    served = learnt(together(each for record in records for each in record.servers), "h100-80gb")
    assert served.reason == ""
    assert served.step is not None
    for items in (2.0, 8.0, 20.0):
        prompts = LAW.prompt_tokens * items / LAW.answer_tokens
        seen_s = served.step_s(items) + served.step.prompt_token * prompts
        assert seen_s == pytest.approx(
            LAW.fixed_s + items * LAW.item_s + LAW.prompt_s * prompts, rel=0.1
        )
    assert served.profile()["prompt_tokens"] == pytest.approx(LAW.prompt_tokens)


@pytest.mark.timeout(240)
def test_plans_in_shadow_save_what_their_clocks_save(
    morning: list[Record], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """BASE has the meters' energy; plans have less; a day that ended is planned for once."""
    history = History(tmp_path / "observations.db")
    for each in morning:
        assert history.add(each)
    days.report(history.path, 7, intensity=None, again=False, out=tmp_path, as_json=False)
    (found,) = json.loads((tmp_path / "advice.json").read_text())["days"]
    assert found["day"] == START.date().isoformat()
    assert found["metered_j"] == pytest.approx(sum(r.gpus[0].energy_j for r in morning))
    assert found["fit"] == pytest.approx(1.0, abs=0.2)
    assert 0 < found["saved_share"] < 1
    assert found["saved_gco2e"] < found["metered_gco2e"]
    assert "</html>" in (tmp_path / "advice.html").read_text()
    monkeypatch.setattr(days, "shadow", None)  # no day is planned for again
    (kept,) = days.advised(history, 7)
    assert json.loads(json.dumps(kept.document())) == found


def test_a_day_says_why_there_is_no_plan_for_it(morning: list[Record]) -> None:
    def reasons(*records: Record) -> str:
        found = shadow(START.date(), records)
        assert found.saved_j is None
        return "; ".join(found.reasons)

    def changed(**given: object) -> list[Record]:
        return [replace(r, servers=(replace(r.servers[0], **given),)) for r in morning]  # type: ignore[arg-type]

    assert "60 minutes" in reasons(*morning[:3])
    assert "60 minutes" in reasons(*morning[::2])  # with gaps
    assert "parameters" in reasons(*changed(model="gpt-oss"))
    assert "several GPUs" in reasons(*changed(gpus=("GPU-0", "GPU-0")))
    assert "does not count requests" in reasons(*changed(requests=None))
    divided = [replace(r, gpus=(replace(r.gpus[0], divided=True),)) for r in morning]
    assert "MIG" in reasons(*divided)


def test_a_model_that_the_meters_contradict_has_no_saving() -> None:
    seen = Shadow("2026-11-27", 7200.0, metered_j=100.0, base_j=200.0, planned_j=100.0)
    assert (seen.fit, seen.saved_share, seen.saved_j) == (2.0, None, None)


def test_a_history_is_bounded_and_survives_what_is_in_it(
    morning: list[Record], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest records go first; one that is damaged costs itself; records come back equal."""
    monkeypatch.setattr(stored, "MAX_RECORDS", 5)
    history = History(tmp_path / "state" / "observations.db")
    with pytest.raises(NotFound, match="--store"):
        history.days()
    for each in morning[:8]:
        history.add(each)
    assert history.records(START.date()) == tuple(morning[3:8])
    assert history.days() == (START.date(),)
    with sqlite3.connect(history.path) as database:
        at_s = morning[4].start_s
        database.execute("update records set document = '{\"gpus\": 3}' where start_s = ?", (at_s,))
    assert len(history.records(START.date())) == 4
    history.keep_day(START.date() - timedelta(40), {"day": "old"})
    history.add(replace(morning[9], start_s=morning[9].start_s + STEP_S))
    assert history.kept_days() == {}
    monkeypatch.setattr(stored, "MAX_RECORD_BYTES", 100)
    assert not history.add(morning[10])


def test_another_file_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("no database, and longer than the header of one is: " * 10)
    before = path.read_bytes()
    with pytest.raises(FailedPrecondition, match="damaged"):
        History(path).records(date(2026, 11, 27))
    assert path.read_bytes() == before


def test_metrics_sum_the_days_of_which_a_saving_is_known() -> None:
    collector, registry = AdviceCollector(), CollectorRegistry()
    registry.register(collector)
    known = Shadow(
        "2026-11-27", 86400.0, metered_j=1000.0, metered_gco2e=10.0, base_j=1000.0,
        planned_j=750.0, carbon_ratio=0.5,
    )  # fmt: skip
    collector.days = (known, replace(known, base_j=None))
    text = generate_latest(registry).decode()
    assert "cinquefoil_advised_saved_joules 250.0" in text
    assert "cinquefoil_advised_metered_joules 1000.0" in text
    assert "cinquefoil_advised_saved_gco2e 5.0" in text
    assert "cinquefoil_advised_days_total 2.0" in text


async def test_a_recorder_stores_what_came_since_the_record_before(tmp_path: Path) -> None:
    """Amounts are steps of running totals; what was seen before the first record is in none."""
    clock = VirtualClock(START)
    observer = Observer(None, lambda: 300.0)  # type: ignore[arg-type]  # nothing is read here
    model = gpu_types.load("h100-80gb")
    info = GpuInfo("GPU-0", 0, model, mig_enabled=False, slices=(), clock_mhz=model.max_clock_mhz)
    ledger = GpuLedger(model.idle_power_w, model.context_power_w, model.max_power_w)
    observer.gpus["GPU-0"] = ObservedGpu(info, ledger, ProcessReader("GPU-0"))
    server = observer.servers["u"] = ObservedServer("u", "pod:1")
    recorder = Recorder(observer, History(tmp_path / "observations.db"), clock)

    def seen(now_s: float, energy_j: float, requests: float) -> None:
        ledger.observe(
            Observation(now_s, energy_j, {"pod:1": 1.0}, {"pod:1": 2**30}, gco2e_per_kwh=300.0)
        )
        page = Page(
            "u", (ServerFigures("vLLM", "m", requests, 10 * requests, 100 * requests, running=2),)
        )
        server.add(now_s, page, observer.active_j(server))

    seen(0.0, 0.0, 0.0)
    seen(10.0, 2000.0, 5.0)
    recorder.record(0)
    seen(20.0, 5000.0, 12.0)
    found = recorder.record(STEP_S)
    assert (found.gpus[0].energy_j, found.gpus[0].observed_s) == (3000.0, 10.0)
    assert (found.servers[0].requests, found.servers[0].answer_tokens) == (7.0, 700.0)
    assert found.servers[0].gpus == ("GPU-0",)
    assert found.servers[0].steps.times.windows == 1
    assert Record.of(STEP_S, json.loads(json.dumps(found.document()))) == found
    assert recorder.record(2 * STEP_S) == Record(2 * STEP_S)
