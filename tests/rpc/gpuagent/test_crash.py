"""A killed agent: traffic continues, its successor takes over, and no joule is forgotten."""

from pathlib import Path

import pytest

from cinquefoil.gpuagent.v1 import inventory_pb2
from services.kit.state_file import read_parsed, write_json
from tests.support.gpuagent.agent_process import agent_process, killed
from tests.support.gpuagent.agent_service import (
    GPU,
    NODE,
    Planner,
    deployment,
    placement,
    planning,
    segment_spec,
    workers_in,
)
from tests.support.worker.worker_process import infer_request, routed, until

READY = inventory_pb2.SEGMENT_STATE_READY


async def _start_two(planner: Planner) -> None:
    assert (await planner.create("3g.20gb", 0)).ok
    assert (await planner.create("3g.20gb", 4)).ok
    assert (await planner.start(segment_spec("s-0"))).ok
    assert (await planner.start(segment_spec("s-4", placement=placement("3g.20gb", 4)))).ok


async def test_traffic_goes_on_without_the_agent_and_its_successor_adopts_the_workers(
    tmp_path: Path, model: Path
) -> None:
    """SIGKILL under load: no request fails, no worker restarts, no energy and no batch is lost."""
    async with planning() as (planner, port):
        settings = deployment(tmp_path, model, f"127.0.0.1:{port}")
        async with agent_process(settings) as first:
            await _start_two(planner)
            before = {s.spec.segment_id: s for s in planner.node.segments}
            pids = {process.pid for process in workers_in(tmp_path)}
            async with routed(before["s-0"].endpoints[0]) as router:
                statuses = [
                    (await router.infer(infer_request([[0, 0]]), number)).status
                    for number in range(20)
                ]
                await killed(first)
                statuses += [
                    (await router.infer(infer_request([[0, 0]]), number)).status
                    for number in range(20, 40)
                ]
                async with agent_process(settings):
                    await planner.until(lambda: len(planner.first_requests) == 2)
                    report = planner.first_requests[1].node
                    statuses += [
                        (await router.infer(infer_request([[0, 0]]), number)).status
                        for number in range(40, 60)
                    ]

                    def all_counted() -> bool:
                        segments = planner.energy[GPU].segments if planner.energy else []
                        return sum(segment.requests for segment in segments) == 60

                    await planner.until(all_counted)
                    account = planner.energy[GPU]
                    assert {process.pid for process in workers_in(tmp_path)} == pids

    assert statuses == [""] * 60
    assert {s.spec.segment_id: s.endpoints for s in report.segments} == {
        name: segment.endpoints for name, segment in before.items()
    }
    assert [s.state for s in report.segments] == [READY, READY]
    parts_j = account.idle_j + account.unattributed_j + sum(s.active_j for s in account.segments)
    assert parts_j == pytest.approx(account.total_j)
    assert sum(s.batches for s in account.segments) == 60, "requests came one by one"


async def test_a_worker_that_died_with_the_agent_comes_back_and_a_forgotten_one_is_ended(
    tmp_path: Path, model: Path
) -> None:
    """One on its endpoint; the other as when the agent died while it stopped a segment."""
    async with planning() as (planner, port):
        settings = deployment(tmp_path, model, f"127.0.0.1:{port}")
        async with agent_process(settings) as first:
            await _start_two(planner)
            before = {s.spec.segment_id: list(s.endpoints) for s in planner.node.segments}
            await killed(first)
            _forget(tmp_path / NODE / "journal.json", "s-0")
            died, forgotten = sorted(workers_in(tmp_path), key=lambda p: "s-0" in p.cmdline()[-1])
            died.kill()
        async with agent_process(settings):
            await planner.until(lambda: len(planner.first_requests) == 2)
            await planner.until(lambda: [s.state for s in planner.node.segments] == [READY])
            after = {s.spec.segment_id: list(s.endpoints) for s in planner.node.segments}
            async with routed(after["s-4"][0]) as router:
                answer = await router.infer(infer_request([[0, 0]]))
            assert not {died.pid, forgotten.pid} & {p.pid for p in workers_in(tmp_path)}
            assert len(workers_in(tmp_path)) == 1
            assert (await planner.destroy("3g.20gb", 0)).ok

    assert after == {"s-4": before["s-4"]}
    assert answer.status == ""


def _forget(journal: Path, segment_id: str) -> None:
    """Strike a segment out of an agent's journal."""
    written = read_parsed(journal, dict, version=1)
    assert written is not None
    kept = [each for each in written["segments"] if each["segment_id"] != segment_id]
    assert len(kept) == len(written["segments"]) - 1
    write_json(journal, written | {"segments": kept})


async def test_workers_without_an_agent_end_themselves_and_a_reboot_ends_their_segments(
    tmp_path: Path, model: Path
) -> None:
    """No MIG slice survives a reboot; a segment whose slice is gone is dropped."""
    async with planning() as (planner, port):
        settings = deployment(tmp_path, model, f"127.0.0.1:{port}", orphan_timeout_s=2.0)
        async with agent_process(settings) as first:
            assert (await planner.create("3g.20gb", 0)).ok
            assert (await planner.start(segment_spec())).ok
            assert len(workers_in(tmp_path)) == 1
            await killed(first)
            await until(lambda: not workers_in(tmp_path), every_s=0.1)
            for state in (tmp_path / NODE / "hardware").iterdir():
                state.unlink()
        async with agent_process(settings):
            await planner.until(lambda: len(planner.first_requests) == 2)
            assert planner.slices() == []
            assert not planner.node.segments


async def test_an_agent_that_is_stopped_may_leave_its_workers_to_its_successor(
    tmp_path: Path, model: Path
) -> None:
    """SIGTERM with --leave-workers: the same processes keep serving, at the same addresses."""
    async with planning() as (planner, port):
        settings = deployment(tmp_path, model, f"127.0.0.1:{port}")
        async with agent_process(settings, "--leave-workers") as first:
            await _start_two(planner)
            before = [list(segment.endpoints) for segment in planner.node.segments]
            pids = {process.pid for process in workers_in(tmp_path)}
            first.terminate()
            assert await first.wait() == 0
        async with agent_process(settings):
            await planner.until(lambda: len(planner.first_requests) == 2)
            report = planner.first_requests[1].node
            assert {process.pid for process in workers_in(tmp_path)} == pids

    assert [s.state for s in report.segments] == [READY, READY]
    assert [list(segment.endpoints) for segment in report.segments] == before
