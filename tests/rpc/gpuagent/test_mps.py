"""MPS: the real driver against a stand-in for NVIDIA's control program, agent and workers real."""

import asyncio
import json
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY

from cinquefoil.gpuagent.v1 import inventory_pb2
from cinquefoil.gpuagent.v1.records import MpsLimit
from services.gpuagent.devices.mps.control_program import MpsDaemon, daemons, end_daemon
from services.kit.config import Mps
from services.kit.errors import FailedPrecondition, Unavailable
from tests.support.gpuagent.agent_process import agent_process, killed
from tests.support.gpuagent.agent_service import (
    NODE,
    Planner,
    agent,
    deployment,
    placement,
    planning,
    segment_spec,
    workers_in,
)
from tests.support.paths import SUPPORT
from tests.support.worker.worker_process import infer_request, output, routed, until

BINARY = SUPPORT / "gpuagent/fake_mps_control.py"
READY = inventory_pb2.SEGMENT_STATE_READY


@dataclass(frozen=True)
class Node:
    """An agent that has joined its planner, and the files of its MPS daemons."""

    planner: Planner
    state: Path

    @property
    def mps(self) -> Path:
        return self.state / NODE / "mps"

    def journal(self) -> list[dict[str, Any]]:
        """Return what the stand-ins did."""
        file = self.mps / "journal.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def events(self) -> list[str]:
        return [entry["event"] for entry in self.journal()]

    def violations(self) -> list[str]:
        return [entry["what"] for entry in self.journal() if entry["event"] == "violation"]

    def daemons(self) -> int:
        return len(daemons(BINARY.name, self.mps))

    def upset(self, what: str, command: str) -> None:
        """Make the only daemon crash or hang at a command."""
        (daemon,) = (entry for entry in self.mps.iterdir() if entry.is_dir())
        (daemon / "log" / what).write_text(command)

    def pids(self) -> set[int]:
        return {process.pid for process in workers_in(self.state)}

    def environments(self) -> Mapping[str, list[dict[str, str]]]:
        """Return the environments of the workers, by segment."""
        found = defaultdict(list)
        for process in workers_in(self.state):
            found[Path(process.cmdline()[-1]).name.split(".")[0]].append(process.environ())
        return found

    async def share(self, **changes: Any) -> inventory_pb2.Segment:
        """Start a segment of several processes on a slice."""
        assert (await self.planner.create("3g.20gb", 0)).ok
        result = await self.planner.start(segment_spec(**({"processes": 2} | changes)))
        assert result.ok, result.message
        segment = self.planner.segment("s-1")
        assert segment is not None
        return segment


@pytest.fixture(scope="module")
def binary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stand-in, run by the bare interpreter: it is started some hundred times."""
    program = tmp_path_factory.mktemp("bin") / BINARY.name
    program.write_text(f"#!{sys.executable} -IS\n{BINARY.read_text()}")
    program.chmod(0o700)
    return program


@pytest.fixture
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short path, as a Unix socket must have."""
    return tmp_path_factory.mktemp("s")


@pytest.fixture
async def node(state: Path, model: Path, binary: Path) -> AsyncIterator[Node]:
    mps = Mps(control_binary=binary, check_interval_s=0.5, timeout_s=3.0)
    async with planning() as (planner, port):
        settings = deployment(state, model, f"127.0.0.1:{port}", mps=mps)
        async with agent(settings):
            await planner.until(lambda: planner.node.name == NODE)
            yield Node(planner, state)


async def test_unequal_limits_reach_their_processes_through_a_daemon_of_the_slice(
    node: Node,
) -> None:
    """The daemon is bounded before its first client, and ends after its last."""
    limits = [
        inventory_pb2.MpsLimit(thread_percentage=70, memory_bytes=3 * 2**30),
        inventory_pb2.MpsLimit(thread_percentage=30, memory_bytes=512 * 2**20),
    ]
    segment = await node.share(limits=limits)

    assert list(segment.spec.limits) == limits
    slice_uuid = node.planner.node.gpus[0].slices[0].uuid
    start, *commands = (entry for entry in node.journal() if "get_" not in entry["event"])
    assert start["device"] == slice_uuid
    assert [entry["event"] for entry in commands] == [
        "set_default_active_thread_percentage 70",
        "set_default_device_pinned_mem_limit 0 3072M",
    ]
    environments = [process.environ() for process in workers_in(node.state)]
    assert sorted(
        (each["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"], each["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"])
        for each in environments
    ) == [("30", "0=512M"), ("70", "0=3072M")]
    assert all("CUDA_VISIBLE_DEVICES" not in each for each in environments)
    for endpoint in segment.endpoints:
        async with routed(endpoint) as router:
            result = await router.infer(infer_request([[1, 2]]))
            assert output(result.response, "y") == [2.0, 3.0]

    assert (await node.planner.stop("s-1")).ok
    assert node.events()[-1] == "quit"
    assert node.daemons() == 0
    assert [entry.name for entry in node.mps.iterdir()] == ["journal.jsonl"]
    assert node.violations() == []


async def test_each_shared_slice_has_a_daemon_and_a_process_that_is_alone_needs_none(
    node: Node,
) -> None:
    """Without limits processes share equally, and their memory is not bounded."""
    places = {"s-1": placement("3g.20gb", 0), "s-2": placement("2g.10gb", 4)}
    places["alone"] = placement("1g.5gb", 6)
    processes = {"s-1": 3, "s-2": 2, "alone": 1}
    created = [await node.planner.create(each.profile, each.start) for each in places.values()]
    started = await asyncio.gather(
        *(
            node.planner.start(segment_spec(name, processes=processes[name], placement=place))
            for name, place in places.items()
        )
    )

    assert all(result.ok for result in (*created, *started)), (created, started)
    environments = node.environments()
    shares = {
        name: {each.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE") for each in environments[name]}
        for name in places
    }
    assert shares == {"s-1": {"33"}, "s-2": {"50"}, "alone": {None}}
    assert not [name for name in environments["alone"][0] if name.startswith("CUDA_")]
    assert not [event for event in node.events() if "pinned_mem" in event]
    assert node.daemons() == 2
    assert (await node.planner.stop("s-1")).ok
    assert node.daemons() == 1


async def test_a_daemon_that_fails_is_restarted_after_its_clients_have_gone(node: Node) -> None:
    """One that crashes, then one that hangs. Clients come back; the neighbour is not touched."""
    await node.share()
    assert (await node.planner.create("3g.20gb", 4)).ok
    assert (await node.planner.start(segment_spec("n", placement=placement("3g.20gb", 4)))).ok
    (neighbour,) = node.pids() - {
        process.pid for process in workers_in(node.state) if "/s-1." in process.cmdline()[-1]
    }
    for failures, mishap in enumerate(("crash_on", "hang_on"), 1):
        before = node.pids() - {neighbour}
        node.upset(mishap, "get_default_active_thread_percentage")

        await asyncio.wait_for(until(lambda: node.events().count("start") > failures, 0.05), 45)  # noqa: B023 - awaited at once
        await asyncio.wait_for(until(lambda: len(node.pids()) == 3, 0.05), 45)
        await node.planner.until(
            lambda: (found := node.planner.segment("s-1")) is not None and found.state == READY
        )

        assert node.pids() & before == set()
        assert neighbour in node.pids()
        assert node.daemons() == 1
        assert node.violations() == []
        restarted = node.planner.segment("s-1")
        assert restarted is not None
        assert restarted.restarts == 0, "that was no failure of theirs"
        counts = [
            sample.value
            for metric in REGISTRY.collect()
            for sample in metric.samples
            if sample.name == "cinquefoil_mps_restarts_total"
        ]
        assert counts == [failures]


async def test_the_next_agent_keeps_daemons_in_use_and_ends_the_others(
    state: Path, binary: Path
) -> None:
    """A daemon that does not listen is ended, too, by force."""
    root = state / "mps"
    used = MpsDaemon(binary, 2.0, "MIG-1", root / "a")
    left = MpsDaemon(binary, 2.0, "MIG-2", root / "b")
    for daemon in (used, left):
        await daemon.start(MpsLimit(50))
    (left.logs / "hang_on").write_text("quit")

    await used.check()
    assert daemons(binary.name, root).keys() == {used.pipes, left.pipes}
    await left.stop()
    assert daemons(binary.name, root).keys() == {used.pipes}
    await used.stop()
    assert daemons(binary.name, root) == {}
    with pytest.raises(Unavailable, match="Cannot find MPS control daemon"):
        await used.check()


async def test_when_the_agent_is_killed_clients_are_adopted_with_their_daemon_or_start_again(
    state: Path, model: Path, binary: Path
) -> None:
    """SIGKILL, twice: daemon and clients keep serving; then the daemon dies with its agent.

    Clients of nothing are given another daemon. Both end with the segment.
    """
    mps = Mps(control_binary=binary)
    async with planning() as (planner, port):
        settings = deployment(state, model, f"127.0.0.1:{port}", mps=mps)
        here = Node(planner, state)
        async with agent_process(settings) as first:
            await planner.until(lambda: planner.node.name == NODE)
            await here.share()
            workers = here.pids()
            await killed(first)
        async with agent_process(settings) as second:
            await planner.until(lambda: len(planner.first_requests) > 1)
            segment = planner.segment("s-1")
            assert segment is not None
            assert (segment.state, here.pids()) == (READY, workers)
            assert here.events().count("start") == here.daemons() == 1
            await killed(second)
        (pipes,) = daemons(binary.name, here.mps)
        assert end_daemon(binary.name, pipes, 0.0)
        async with agent_process(settings):
            await planner.until(
                lambda: (
                    len(planner.first_requests) > 2
                    and (found := planner.segment("s-1")) is not None
                    and found.state == READY
                )
            )
            assert here.pids() & workers == set()
            assert here.daemons() == 1
            assert (await planner.stop("s-1")).ok
            assert here.daemons() == 0
        assert here.violations() == []


async def test_an_agent_ends_a_daemon_of_the_one_before_it_that_no_segment_needs(
    state: Path, model: Path, binary: Path
) -> None:
    stray = MpsDaemon(binary, 2.0, "MIG-gone", state / NODE / "mps" / "stray")
    await stray.start(MpsLimit(50))
    mps = Mps(control_binary=binary)
    async with (
        planning() as (planner, port),
        agent(deployment(state, model, f"127.0.0.1:{port}", mps=mps)),
    ):
        await planner.until(lambda: planner.node.name == NODE)
        assert daemons(binary.name, state) == {}


async def test_without_the_control_program_processes_do_not_share_and_nothing_changes(
    state: Path, model: Path
) -> None:
    mps = Mps(control_binary=state / "no-such-program")
    async with (
        planning() as (planner, port),
        agent(deployment(state, model, f"127.0.0.1:{port}", mps=mps)),
    ):
        await planner.until(lambda: planner.node.name == NODE)
        assert (await planner.create("3g.20gb", 0)).ok
        result = await planner.start(segment_spec(processes=2))
        assert (result.ok, result.status) == (False, "FAILED_PRECONDITION")
        assert "no-such-program" in result.message
        assert "planner.max_processes: 1" in result.message
        assert planner.segment("s-1") is None
        assert (await planner.start(segment_spec(processes=1))).ok


async def test_a_path_that_no_socket_can_have_is_refused(tmp_path: Path, binary: Path) -> None:
    daemon = MpsDaemon(binary, 2.0, "MIG-1", tmp_path / ("long" * 30))

    with pytest.raises(FailedPrecondition, match="state_dir"):
        await daemon.start(MpsLimit(50))


async def test_a_program_that_does_not_start_a_daemon_is_reported(state: Path) -> None:
    daemon = MpsDaemon(Path("/bin/false"), 2.0, "MIG-1", state / "a")

    with pytest.raises(FailedPrecondition, match="cannot start MPS on MIG-1: status 1"):
        await daemon.start(MpsLimit(50))


async def test_limits_must_be_one_per_process(node: Node) -> None:
    assert (await node.planner.create("3g.20gb", 0)).ok
    limit = inventory_pb2.MpsLimit(thread_percentage=50)

    one_short = await node.planner.start(segment_spec(processes=2, limits=[limit]))
    too_much = await node.planner.start(
        segment_spec(limits=[inventory_pb2.MpsLimit(thread_percentage=101)])
    )

    assert (one_short.status, too_much.status) == ("INVALID_ARGUMENT", "INVALID_ARGUMENT")
    assert "spec.limits" in one_short.message
    assert "1..100" in too_much.message
