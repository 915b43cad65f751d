"""The latency that a worker counts: from the router's front door to the answer."""

from pathlib import Path

from services.gpuagent.shared_memory.latency_counters import largest_s
from tests.support.worker.worker_process import (
    Running,
    infer_request,
    routed,
    until,
    work,
    worker,
    worker_spec,
)


def counted(running: Running) -> int:
    return int(running.counters.latencies(0).read().sum())


async def test_the_time_before_the_worker_is_part_of_the_latency(
    tmp_path: Path, model: Path
) -> None:
    async with (
        worker(worker_spec(tmp_path, model)) as running,
        routed(running.spec.listen) as router,
    ):
        request = work(1, infer_request([[0, 0]]))
        request.waited_s = 30.0
        await router.send(request)
        await router.wait_for(1)
        await until(lambda: counted(running) == 1)

        assert 29.4 < largest_s(running.counters.latencies(0).read(), 1) < 35.0


async def test_a_request_that_came_too_late_counts_and_a_wrong_one_does_not(
    tmp_path: Path, model: Path
) -> None:
    """A queue that answers no request in time must not look like an empty one."""
    async with (
        worker(worker_spec(tmp_path, model)) as running,
        routed(running.spec.listen) as router,
    ):
        late = work(2, infer_request([[0, 0]]), remaining_s=1e-9)
        await router.send(work(1, infer_request([[0, 0]])), late)
        await router.send(work(3, infer_request([[0, 0]], [9])))
        first, second, third = await router.wait_for(1, 2, 3)
        await until(lambda: counted(running) == 2)

    assert (first.status, second.status, third.status) == ("", "DEADLINE_EXCEEDED", "INTERNAL")


async def test_the_counts_outlive_the_worker(tmp_path: Path, model: Path) -> None:
    """A successor's first sample must not be the whole past."""
    spec = worker_spec(tmp_path, model)
    async with worker(spec) as first, routed(spec.listen) as router:
        await router.infer(infer_request([[0, 0]]))
        await until(lambda: counted(first) == 1)
    async with worker(spec) as second, routed(spec.listen) as router:
        await router.infer(infer_request([[0, 0]]))
        await until(lambda: counted(second) > 1)

        assert counted(second) == 2
