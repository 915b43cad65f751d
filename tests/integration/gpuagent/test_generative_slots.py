"""Continuous batching: while requests wait, no slot is without one."""

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cinquefoil.gpuagent.v1.worker_pb2 import Work
from inference import grpc_service_pb2 as oip
from services.gpuagent.core.worker_spec import WorkerSpec
from services.gpuagent.shared_memory.shared_counters import opened
from services.gpuagent.worker.core.batcher import Batcher
from services.gpuagent.worker.core.credits import Credits
from services.gpuagent.worker.generative.decode_step import DecodeStep
from services.gpuagent.worker.generative.executor import SlotExecutor
from services.gpuagent.worker.generative.generation import Generation, TextModel, TextRequest
from services.gpuagent.worker.generative.shared_device import SharedDevice
from services.kit.clock import RealClock
from services.kit.config import GenerativeRuntime
from tests.support.examples import examples


class Held(TextModel):
    """Generates until the test says that it is enough. Attributes: ends (of whom it works for)."""

    def __init__(self) -> None:
        super().__init__("held", GenerativeRuntime(kind="generative"))
        self.ends: list[asyncio.Event] = []

    async def generate(
        self,
        wanted: TextRequest,  # noqa: ARG002 - any will do
        generation: Generation,
    ) -> str:
        end = asyncio.Event()
        self.ends.append(end)
        generation.take(DecodeStep(b"one", 5, 5, 1))
        await end.wait()
        self.ends.remove(end)
        return "stop"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("slots")


def request() -> bytes:
    made = oip.ModelInferRequest(model_name="m")
    made.inputs.add(name="text_input", datatype="BYTES", shape=[1])
    made.raw_input_contents.append(b"\x02\0\0\0hi")
    return made.SerializeToString()


@examples(0.5)
@given(
    slots=st.integers(1, 5),
    requests=st.integers(1, 12),
    order=st.lists(st.integers(0, 4), min_size=12, max_size=12),
)
def test_all_slots_are_busy_as_long_as_enough_requests_are_open(
    folder: Path, slots: int, requests: int, order: list[int]
) -> None:
    """Whichever answers end first; and every request is answered once."""
    asyncio.run(serve(folder / "ledger", slots, requests, order))


async def serve(ledger_file: Path, slots: int, requests: int, order: list[int]) -> None:
    spec = WorkerSpec(
        segment_id="s",
        model="m",
        variant="v",
        file=ledger_file,
        batch_size=1,
        slice_uuid="slice",
        costs=None,
        runtime=GenerativeRuntime(kind="generative", slots=slots),
        ledger=ledger_file,
        siblings=(0,),
    )
    model, answered = Held(), list[int]()
    with opened(ledger_file) as counters:
        clock = RealClock()
        device = SharedDevice(spec, counters, clock)
        executor = SlotExecutor(Batcher(1, 64), device, model, Credits(slots), clock)
        session = executor.open()
        running = asyncio.create_task(executor.run())
        for number in range(requests):
            executor.submit(session, Work(id=number), request(), clock.monotonic())
        for left in range(requests, 0, -1):
            await settled()
            assert len(model.ends) == min(slots, left)
            model.ends[order[left - 1] % len(model.ends)].set()
        await settled()
        news = await session.next_update()
        assert news is not None
        answered += [answer.id for answer in news.answers if not answer.more]
        executor.close(session)
        running.cancel()

    assert sorted(answered) == list(range(requests))


async def settled() -> None:
    """Run every task as far as it can go: nothing here waits for a thread or for time."""
    for _ in range(20):
        await asyncio.sleep(0)
