"""A worker supervisor with a real worker process."""

import asyncio
import socket
from pathlib import Path

import pytest

from services.gpuagent.shared_memory.shared_counters import opened
from services.gpuagent.supervision.worker_supervisor import (
    SupervisionContext,
    WorkerSupervisor,
    answers,
)
from services.kit.clock import RealClock
from services.kit.errors import FailedPrecondition
from tests.support.worker.worker_process import routed, save_model, worker_spec


def _left_by(worker: str, folder: Path) -> list[Path]:
    return list(folder.glob(f"{worker}.*"))


async def test_an_address_that_somebody_took_is_given_up_for_another(tmp_path: Path) -> None:
    """The new endpoint is announced, and taking an address is no failure of the worker."""
    announced: list[str] = []
    spec = worker_spec(tmp_path, save_model(tmp_path / "m.onnx"))
    host, _, port = spec.listen.partition(":")
    with opened(spec.ledger) as counters, socket.create_server((host, int(port))):
        counters.beat()
        world = SupervisionContext(
            RealClock(), answers, lambda: announced.append(supervisor.spec.listen)
        )
        supervisor = WorkerSupervisor(spec, tmp_path / "s-1.0.json", counters, {}, world)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(supervisor.run())
            await supervisor.started()
            async with routed(supervisor.spec.listen) as router:
                segment_id = router.hello.segment_id
            await supervisor.stop(5.0)

    assert segment_id == "s-1"
    assert supervisor.spec.listen != spec.listen
    assert supervisor.spec.listen in announced
    assert supervisor.restarts == 0


async def test_a_worker_that_never_answers_says_why(tmp_path: Path) -> None:
    (tmp_path / "broken.onnx").write_bytes(b"not a model")
    spec = worker_spec(tmp_path, tmp_path / "broken.onnx")
    with opened(spec.ledger) as counters:
        counters.beat()
        world = SupervisionContext(RealClock(), answers, lambda: None)
        supervisor = WorkerSupervisor(spec, tmp_path / "s-1.0.json", counters, {}, world)
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(supervisor.run())
            with pytest.raises(FailedPrecondition, match="status 1: cannot load the model"):
                await supervisor.started()
            await supervisor.stop(0.0)
            task.cancel()

    assert _left_by("s-1.0", tmp_path) == []
