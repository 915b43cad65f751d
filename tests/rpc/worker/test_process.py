"""A worker as a real process: what it answers, what it charges, how it ends."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from ctypes.util import find_library
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
import pytest
import pytest_asyncio
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2_grpc import HealthStub

from cinquefoil.gpuagent.v1 import worker_pb2 as pb
from inference import grpc_service_pb2 as oip
from services.gpuagent.core.batch_costs import CostCurve, Costs
from services.gpuagent.core.worker_slot import Grant
from services.gpuagent.core.worker_spec import ADDRESS_TAKEN
from services.gpuagent.shared_memory.shared_counters import SharedCounters
from services.kit.rpc import dial
from tests.support.worker.worker_process import (
    Running,
    flat_costs,
    infer_request,
    output,
    routed,
    until,
    work,
    worker,
    worker_spec,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def plain(model: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    """A worker for the tests that do not end it."""
    spec = worker_spec(tmp_path_factory.mktemp("plain"), model)
    async with worker(spec) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def slow(model: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    """One that takes 0.3 s for each request, by itself."""
    spec = worker_spec(
        tmp_path_factory.mktemp("slow"),
        model,
        batch_size=1,
        costs=flat_costs(0.3, 1.0, batch_size=1),
    )
    async with worker(spec) as running:
        yield running


@pytest.fixture
def readable(model: Path) -> Iterator[Path]:
    """A model that every user can read; tests' folders are their user's alone."""
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o711)
        copied = Path(folder) / "model.onnx"
        copied.write_bytes(model.read_bytes())
        yield copied


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
async def test_the_worker_of_an_agent_that_is_root_runs_as_another_user(
    readable: Path, tmp_path: Path
) -> None:
    """The worker has read its spec and mapped the counters before; both stay closed to it."""
    spec = worker_spec(tmp_path, readable, user=(65534, 65534))
    async with worker(spec) as running, routed(spec.listen) as router:
        result = await router.infer(infer_request([[1.0, 2.0]]))
        process = psutil.Process(running.process.pid)
        users, groups = process.uids(), process.gids()
    assert result.status == ""
    assert {*users, *groups} == {65534}
    assert spec.ledger.stat().st_uid == 0
    assert spec.ledger.stat().st_mode & 0o777 == 0o600


async def test_hello_says_what_is_served_and_health_says_serving(plain: Running) -> None:
    async with routed(plain.spec.listen) as router:
        hello = router.hello
    async with dial(plain.spec.listen) as channel:
        stub: Any = HealthStub(channel)
        health = await stub.Check(health_pb2.HealthCheckRequest())

    assert (hello.segment_id, hello.model, hello.variant) == ("s-1", "m", "v")
    assert hello.credits == 4
    assert (hello.execution_provider, hello.max_batch) == ("CPUExecutionProvider", 0)
    metadata = oip.ModelMetadataResponse.FromString(hello.metadata)
    assert [(t.name, t.datatype, list(t.shape)) for t in metadata.inputs] == [
        ("x", "FP32", [-1, 2]),
        ("index", "INT64", [-1]),
    ]
    assert health.status == health_pb2.HealthCheckResponse.SERVING


async def test_a_worker_has_given_up_what_it_does_not_need(plain: Running) -> None:
    """A parser of clients' bytes has no capability, no new privileges, filtered system calls."""
    async with routed(plain.spec.listen):  # it serves once it has given up what it can
        text = await asyncio.to_thread(Path(f"/proc/{plain.process.pid}/status").read_text)
        limits = await asyncio.to_thread(Path(f"/proc/{plain.process.pid}/limits").read_text)
    bounds = {line[:25].strip(): line[25:].split()[1] for line in limits.splitlines()[1:]}
    assert bounds["Max core file size"] == "0"
    assert bounds["Max file size"] == f"{4 * 2**30}"
    assert int(bounds["Max open files"]) <= 65_536
    status = dict(line.split(":", 1) for line in text.splitlines())

    assert {int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")} == {0}
    assert int(status["NoNewPrivs"]) == 1
    if find_library("seccomp") is not None:
        assert int(status["Seccomp"]) == 2


async def test_answers_are_the_models_and_in_batches_each_gets_its_own(plain: Running) -> None:
    """Requests of several items, more than a batch takes: none is split, none is mixed up."""
    sizes = [1, 2, 3, 1, 4, 2, 1, 6]
    async with routed(plain.spec.listen) as router:
        await router.send(
            *(
                work(number, infer_request([[number, item] for item in range(size)], [1] * size))
                for number, size in enumerate(sizes)
            )
        )
        results = await router.wait_for(*range(len(sizes)))

    for number, (size, result) in enumerate(zip(sizes, results, strict=True)):
        assert result.status == "", result.message
        expected = [value for item in range(size) for value in (number + 1, item + 1)]
        assert output(result.response, "y") == expected
        assert output(result.response, "picked") == [20.0] * size
        assert size <= result.receipt.batch_size <= max(4, size)


async def test_receipts_sum_to_the_ledgers_energy(plain: Running) -> None:
    """Conservation: what receipts state is what the device was charged, and counts agree."""
    before = plain.counters.slot(0)
    async with routed(plain.spec.listen) as router:
        for number in range(30):
            await router.send(work(number, infer_request([[number, 0]] * (1 + number % 3))))
        results = await router.wait_for(*range(30))
        after = plain.counters.slot(0)

    receipts = [result.receipt for result in results]
    batches, busy_s = after.batches - before.batches, after.busy_s - before.busy_s
    charged_j = after.active_j - before.active_j
    assert sum(receipt.energy_j for receipt in receipts) == pytest.approx(charged_j)
    assert after.requests - before.requests == 30
    # A batch and its time count once, however many requests it has.
    shares = [(1 + n % 3) / receipt.batch_size for n, receipt in enumerate(receipts)]
    assert sum(shares) == pytest.approx(batches)
    batch_times = (share * each.compute_s for share, each in zip(shares, receipts, strict=True))
    assert sum(batch_times) == pytest.approx(busy_s)
    assert {receipt.energy_method for receipt in receipts} == {"model"}
    assert all(receipt.idle_energy_j >= 0 for receipt in receipts)


async def test_idle_energy_is_all_time_since_the_batch_before_at_the_granted_power(
    plain: Running,
) -> None:
    """Idle power is drawn while a batch runs, too: receipts of a busy slice add up to all of it."""
    async with routed(plain.spec.listen) as router:
        await router.infer(infer_request([[0, 0]]), 1)
        idle_since_s = plain.counters.slot(0).idle_since_s
        await asyncio.sleep(0.2)
        result = await router.infer(infer_request([[0, 0]]), 2)
        ended_s = plain.counters.slot(0).idle_since_s

    assert result.receipt.idle_energy_j == pytest.approx(10.0 * (ended_s - idle_since_s))
    assert result.receipt.idle_energy_j >= 2.0


async def test_a_batch_takes_the_profiles_time_at_the_present_clock(
    tmp_path: Path, model: Path
) -> None:
    costs = Costs(
        (
            CostCurve(0.5, ((0.2,),), ((1.0,),)),
            CostCurve(1.0, ((0.1,),), ((2.0,),)),
        )
    )
    async with (
        worker(worker_spec(tmp_path, model, batch_size=1, costs=costs)) as running,
        routed(running.spec.listen) as router,
    ):
        fast = (await router.infer(infer_request([[0, 0]]), 1)).receipt
        running.counters.set_clock_ratio(0.5)
        slow = (await router.infer(infer_request([[0, 0]]), 2)).receipt
        running.counters.set_clock_ratio(0.75)
        between = (await router.infer(infer_request([[0, 0]]), 3)).receipt

    # Not less than the profile says; more only where this machine itself was slower.
    assert fast.compute_s >= 0.1
    assert slow.compute_s >= 0.2
    assert between.compute_s >= 0.15
    for receipt, latency_s, energy_j in ((fast, 0.1, 2.0), (slow, 0.2, 1.0), (between, 0.15, 1.5)):
        assert receipt.energy_j == pytest.approx(energy_j * receipt.compute_s / latency_s)


async def test_processes_of_one_slice_slow_each_other_down(tmp_path: Path, model: Path) -> None:
    """A batch that starts while a sibling is busy costs as the profile says for two."""
    costs = Costs((CostCurve(1.0, ((0.3, 0.6),), ((3.0, 12.0),)),))  # 10 W alone, 20 W beside one
    specs = [
        worker_spec(tmp_path, model, slot=slot, siblings=(0, 1), costs=costs) for slot in (0, 1)
    ]
    async with AsyncExitStack() as stack:
        workers = [await stack.enter_async_context(worker(spec)) for spec in specs]
        one, two = [await stack.enter_async_context(routed(each.spec.listen)) for each in workers]
        await one.send(work(1, infer_request([[0, 0]])))
        await until(lambda: workers[0].counters.slot(0).busy_since_s > 0)
        contended = (await two.infer(infer_request([[0, 0]]))).receipt
        alone = (await one.wait_for(1))[0].receipt

    assert contended.compute_s >= 0.6
    assert contended.energy_j / contended.compute_s == pytest.approx(20.0)
    assert alone.energy_j / alone.compute_s == pytest.approx(10.0)


async def test_a_request_that_the_model_cannot_run_fails_alone(plain: Running) -> None:
    async with routed(plain.spec.listen) as router:
        # The first keeps the device busy; the poisoned one shares a batch with its neighbours.
        await router.send(
            *(
                work(number, infer_request([[0, 0]], [7 if number == 2 else 1]))
                for number in range(4)
            )
        )
        results = await router.wait_for(0, 1, 2, 3)

    assert [result.status for result in results] == ["", "", "INTERNAL", ""]
    assert results[2].message == "the model failed on this request"


async def test_a_wrong_request_is_answered_with_its_field(plain: Running) -> None:
    request = infer_request([[0, 0]])
    request.inputs[0].shape[1] = 3
    async with routed(plain.spec.listen) as router:
        wrong = await router.infer(request, 1)
        await router.send(pb.Work(id=2, request=b"\xff\xff"))
        garbage = (await router.wait_for(2))[0]
        right = await router.infer(infer_request([[0, 0]]), 3)

    assert (wrong.status, garbage.status, right.status) == ("INVALID_ARGUMENT",) * 2 + ("",)
    assert "inputs[0].shape" in wrong.message


async def test_work_past_its_deadline_or_cancelled_is_not_started(slow: Running) -> None:
    before = slow.counters.slot(0).requests
    async with routed(slow.spec.listen) as router:
        await router.send(
            work(1, infer_request([[0, 0]])),
            work(2, infer_request([[0, 0]]), remaining_s=0.05),
            work(3, infer_request([[0, 0]])),
            work(4, infer_request([[0, 0]]), remaining_s=60.0),
        )
        await router.send(cancelled=[3])
        results = await router.wait_for(1, 2, 3, 4)
        ran = slow.counters.slot(0).requests - before

    assert [r.status for r in results] == ["", "DEADLINE_EXCEEDED", "CANCELLED", ""]
    assert ran == 2


async def test_an_id_used_twice_on_a_stream_is_refused(slow: Running) -> None:
    async with routed(slow.spec.listen) as router:
        await router.send(work(1, infer_request([[0, 0]])), work(1, infer_request([[5, 5]])))
        refused = (await router.wait_for(1))[0]
        router.results.clear()
        answered = (await router.wait_for(1))[0]

    assert refused.status == "INVALID_ARGUMENT"
    assert output(answered.response, "y") == [1.0, 1.0]


async def test_work_of_a_broken_stream_does_not_hold_up_others(slow: Running) -> None:
    before = slow.counters.slot(0).requests
    async with routed(slow.spec.listen) as leaving:
        await leaving.send(*(work(number, infer_request([[0, 0]])) for number in range(10)))
        await leaving.wait_for(0)
    async with routed(slow.spec.listen) as staying:
        answered = await staying.infer(infer_request([[0, 0]]))
    ran = slow.counters.slot(0).requests - before

    assert answered.status == ""
    assert ran <= 4, "what the broken stream had queued was dropped"


async def test_sigterm_drains_accepted_work_is_answered_later_work_refused(
    tmp_path: Path, model: Path
) -> None:
    spec = worker_spec(tmp_path, model, batch_size=1, costs=flat_costs(0.3, 1.0, batch_size=1))
    async with worker(spec) as running, routed(spec.listen) as router:
        await router.send(work(1, infer_request([[0, 0]])), work(2, infer_request([[0, 0]])))
        await router.wait_for(1)
        running.process.terminate()
        while not router.draining:
            await router.receive()
        await router.send(work(3, infer_request([[0, 0]])))
        late = (await router.wait_for(3))[0]
        accepted = (await router.wait_for(2))[0]
        while not router.ended:
            await router.receive()

        assert (late.status, accepted.status) == ("UNAVAILABLE", "")
        assert await running.exit_status() == 0
        assert running.counters.slot(0).pid == 0, "the slot was given back"


async def test_a_worker_ends_itself_when_no_agent_looks_after_it(
    tmp_path: Path, model: Path
) -> None:
    async def beat(counters: SharedCounters) -> None:
        while True:
            counters.beat()
            await asyncio.sleep(0.2)

    async with worker(worker_spec(tmp_path, model, orphan_timeout_s=3.0)) as running:
        beating = asyncio.create_task(beat(running.counters))
        async with routed(running.spec.listen):
            await asyncio.sleep(3.5)
            assert running.process.returncode is None
        beating.cancel()
        assert await running.exit_status() == 0


async def test_a_killed_workers_energy_is_settled_and_its_successor_goes_on_from_there(
    tmp_path: Path, model: Path
) -> None:
    spec = worker_spec(tmp_path, model, batch_size=1, costs=flat_costs(30.0, 300.0, batch_size=1))
    async with worker(spec) as running:
        async with routed(spec.listen) as router:
            await router.send(work(1, infer_request([[0, 0]])))
            await until(lambda: running.counters.energy_j() >= 1.0)
        os.kill(running.process.pid, signal.SIGKILL)
        await running.exit_status()
        before_j = running.counters.energy_j()
        running.counters.settle(0)
        settled_j = running.counters.energy_j()
    async with worker(spec) as successor, routed(spec.listen):
        after_j = successor.counters.energy_j()

    assert settled_j >= before_j >= 1.0
    assert after_j == settled_j


async def test_on_a_real_gpu_energy_is_the_granted_power_over_the_real_time(
    tmp_path: Path, model: Path
) -> None:
    async with (
        worker(worker_spec(tmp_path, model, costs=None)) as running,
        routed(running.spec.listen) as router,
    ):
        running.counters.set_grant(0, Grant(busy_power_w=80.0, idle_power_w=5.0, method="counter"))
        receipt = (await router.infer(infer_request([[0, 0]]))).receipt
        slot = running.counters.slot(0)

    assert receipt.energy_method == "counter"
    assert receipt.compute_s > 0
    assert receipt.energy_j == pytest.approx(80.0 * receipt.compute_s)
    assert slot.busy_s == pytest.approx(receipt.compute_s)


async def test_before_a_real_gpu_was_measured_energy_is_the_profiles_and_says_so(
    tmp_path: Path, model: Path
) -> None:
    costs = flat_costs(0.5, 30.0, batch_size=4)  # 60 W
    async with (
        worker(worker_spec(tmp_path, model, costs=costs, charged=False)) as running,
        routed(running.spec.listen) as router,
    ):
        before = (await router.infer(infer_request([[0, 0]]), 1)).receipt
        running.counters.set_grant(0, Grant(busy_power_w=80.0, method="counter"))
        after = (await router.infer(infer_request([[0, 0]]), 2)).receipt
        counted_j = running.counters.slot(0).active_j

    assert (before.energy_method, after.energy_method) == ("model", "counter")
    assert before.energy_j == pytest.approx(60.0 * before.compute_s)
    assert after.energy_j == pytest.approx(80.0 * after.compute_s)
    assert counted_j == pytest.approx(before.energy_j + after.energy_j)


async def test_an_address_in_use_has_an_exit_status_of_its_own(tmp_path: Path, model: Path) -> None:
    first = worker_spec(tmp_path, model)
    second = worker_spec(tmp_path, model, slot=1, listen=first.listen)
    async with worker(first), routed(first.listen), worker(second) as late:
        assert await late.exit_status() == ADDRESS_TAKEN


async def test_a_file_that_is_not_a_model_ends_the_worker(tmp_path: Path) -> None:
    (tmp_path / "broken.onnx").write_bytes(b"not a model")
    async with worker(worker_spec(tmp_path, tmp_path / "broken.onnx")) as running:
        assert await running.exit_status() == 1


async def test_a_file_of_another_digest_is_not_loaded(tmp_path: Path, model: Path) -> None:
    """The file would load: only its SHA-256 is another than the deployment file says."""
    async with worker(worker_spec(tmp_path, model, sha256="0" * 64)) as running:
        assert await running.exit_status() == 1
