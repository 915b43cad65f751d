"""Composition root of a worker process: one model, one device, one server."""

import asyncio
import os
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

import uvloop

from cinquefoil.gpuagent.v1 import worker_pb2 as pb
from services.gpuagent.core import worker_spec
from services.gpuagent.core.worker_spec import NOT_LOADED, WorkerSpec
from services.gpuagent.shared_memory.group_counters import Counters, opened_together
from services.gpuagent.worker.batch_executor import BatchExecutor
from services.gpuagent.worker.core.batcher import Batcher
from services.gpuagent.worker.core.credits import Credits
from services.gpuagent.worker.external_model import external_model
from services.gpuagent.worker.external_server import with_secrets
from services.gpuagent.worker.generative.executor import SlotExecutor
from services.gpuagent.worker.generative.generation import TextModel
from services.gpuagent.worker.generative.shared_device import SharedDevice
from services.gpuagent.worker.gpu_slot import WorkerDevice
from services.gpuagent.worker.intake import Intake, Job
from services.gpuagent.worker.model_port import Model, Reader
from services.gpuagent.worker.onnx_engine import Engine
from services.gpuagent.worker.onnx_model import LocalModel
from services.gpuagent.worker.servicer import WorkerServicer, add_worker
from services.kit.clock import Clock, RealClock
from services.kit.config import (
    ExternalRuntime,
    GenerativeRuntime,
    OpenAiRuntime,
    ServerRuntime,
    TextRuntime,
)
from services.kit.errors import FailedPrecondition
from services.kit.package_data import require_sha256
from services.kit.process.confinement import confine
from services.kit.process.memory import collect_rarely, keep_large_blocks
from services.kit.rpc import ADDRESS_TAKEN, Access, Limits, serve_until, serving
from services.kit.telemetry import export, logs

SERVICE: Final = "cinquefoil.gpuagent.v1.WorkerService"
QUEUED_BATCHES: Final = 16
QUEUED_LEAST: Final = 1024
"""Work that may wait, in batches, and at least so many requests; routers within their credits
never reach it: each has one at least, so that the second bounds their number."""

_log = logs.get("worker")


class AddressTaken(Exception):
    """Another process listens at this worker's address."""


class ModelLost(Exception):
    """The model failed for good; the message says why."""


Core: TypeAlias = Intake[Any, Any, Any]
"""The model that reads requests, the device, and the core that does the work."""


async def run(spec: WorkerSpec, counters: Counters, stop: asyncio.Event) -> None:
    """Serve one process of one segment until `stop`, or until no agent has shown life for long.

    Args:
        spec: What it serves.
        counters: Of its GPUs.
        stop: Ends it.

    Raises:
        RuntimeError: The model cannot be loaded.
        AddressTaken: The address is in use.
        ModelLost: The model could not go on.
    """
    clock = RealClock()
    async with _core(spec, counters, clock) as core:
        async with _served(spec, WorkerServicer(_hello(spec, core.model), core)):
            core.device.claim(os.getpid())
            failure = await _work(spec, core, counters, stop)
        core.device.release()
    if failure:
        raise ModelLost(failure)


async def _work(spec: WorkerSpec, core: Core, counters: Counters, stop: asyncio.Event) -> str:
    """Run batches until `stop`, then drain; return why the model could not go on, or ""."""

    async def watch() -> str:
        failure: str = await core.model.failure()
        stop.set()
        return failure

    async with asyncio.TaskGroup() as tasks:
        batches = tasks.create_task(core.run(), name="worker.batches")
        orphan = tasks.create_task(_end_orphan(spec, counters, stop), name="worker.orphan")
        failing = tasks.create_task(watch(), name="worker.failure")
        await stop.wait()
        await core.drain()
        failure = failing.result() if failing.done() else ""
        for task in (batches, orphan, failing):
            task.cancel()
    return failure


@asynccontextmanager
async def _core(spec: WorkerSpec, counters: Counters, clock: Clock) -> AsyncIterator[Core]:
    """Load the model, or connect to its server, while the block runs."""
    if spec.sha256:
        try:
            await asyncio.to_thread(require_sha256, spec.file, spec.sha256)
        except FailedPrecondition as error:
            raise RuntimeError(error.message) from error
    batcher = Batcher[Job[Any]](
        1 if isinstance(spec.runtime, TextRuntime) else spec.batch_size,
        max(QUEUED_BATCHES * spec.batch_size, QUEUED_LEAST),
    )
    credits_ = Credits(spec.slots)  # one batch; the next one waits beyond them (docs/scaling.md)
    if isinstance(spec.runtime, OpenAiRuntime | GenerativeRuntime):
        shared = SharedDevice(spec, counters, clock)
        async with _language_model(spec, spec.runtime, shared) as text:
            yield SlotExecutor(batcher, shared, text, credits_, clock)
        return
    device = WorkerDevice(spec, counters, clock)
    async with _model(spec, clock) as model:
        yield BatchExecutor(batcher, device, model, credits_, clock)


@asynccontextmanager
async def _model(spec: WorkerSpec, clock: Clock) -> AsyncIterator[Model[Any]]:
    if isinstance(spec.runtime, ExternalRuntime):
        async with external_model(spec, spec.runtime, clock) as external:
            yield external
        return
    with ThreadPoolExecutor(1, "device") as thread:
        engine = await asyncio.to_thread(Engine, spec.file, spec.provider, spec.threads)
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(thread, engine.warm_up, spec.batch_size)
        await loop.run_in_executor(thread, engine.prove_batches, spec.batch_size)
        yield LocalModel(engine, thread, passes_on=spec.passes_on)


@asynccontextmanager
async def _language_model(
    spec: WorkerSpec, runtime: OpenAiRuntime | GenerativeRuntime, device: SharedDevice
) -> AsyncIterator[TextModel]:
    if isinstance(runtime, OpenAiRuntime):
        from services.gpuagent.worker.generative.openai_server import (  # noqa: PLC0415 - 0.2 s
            openai_model,
        )

        async with openai_model(spec, runtime, device.note_server_load) as model:
            yield model
        return
    from services.gpuagent.worker.generative.llama import llama_model  # noqa: PLC0415 - 0.2 s

    async with llama_model(spec, runtime) as model:
        yield model


@asynccontextmanager
async def _served(spec: WorkerSpec, servicer: WorkerServicer) -> AsyncIterator[None]:
    try:
        async with serving(
            spec.listen,
            partial(add_worker, servicer.Execute),
            [SERVICE],
            tls=spec.tls,
            access=None
            if spec.principals is None
            else Access(spec.principals, node=spec.node, lent=spec.lent),
            grace_s=0.5,
            limits=Limits(message_bytes=spec.message_bytes),
            transport=spec.rpc.transport,
        ):
            yield
    except FailedPrecondition as error:  # errors of the block come as groups, from its TaskGroup
        if error.reason == ADDRESS_TAKEN:
            raise AddressTaken(spec.listen) from error
        raise


def _hello(spec: WorkerSpec, model: Reader[Any]) -> pb.Hello:
    return pb.Hello(
        segment_id=spec.segment_id,
        model=spec.model,
        variant=spec.variant,
        metadata=model.metadata,
        decoupled=model.decoupled,
        execution_provider=model.execution_provider,
        max_batch=model.max_batch,
        alone_reason=model.alone,
        in_batches=not isinstance(spec.runtime, TextRuntime) and spec.batch_size > 1,
        kv_tokens_per_credit=model.kv_tokens // spec.slots,
        server=model.server,
        adapters=model.adapters,
    )


async def _end_orphan(spec: WorkerSpec, counters: Counters, stop: asyncio.Event) -> None:
    """Set `stop` when the agent's heartbeat is older than the spec allows."""
    clock = RealClock()
    while (silent_s := clock.monotonic() - counters.heartbeat_s) < spec.orphan_timeout_s:
        await clock.sleep(min(1.0, spec.orphan_timeout_s - silent_s))
    _log.warning("no agent looks after this worker: ending", silent_s=silent_s)
    stop.set()


def launch(path: Path) -> int:
    """Run the worker that a spec file describes; return its exit status.

    Returns:
        0 after a drain, `worker_spec.ADDRESS_TAKEN`, or 1: the model cannot be loaded or go on.
    """
    spec = worker_spec.load(path)
    logs.configure(f"worker {spec.segment_id}/{spec.slot}", level=spec.log_level)
    collect_rarely()
    keep_large_blocks()
    try:
        with opened_together((spec.ledger, *spec.peer_ledgers)) as counters:
            spec = with_secrets(spec)
            # Files that only the agent may read are read or open by now.
            starts_programs = isinstance(spec.runtime, ServerRuntime) and bool(spec.runtime.command)
            confine(starts_programs=starts_programs, user=spec.user)
            _bind(spec.cores)
            with export.exported("worker"):
                uvloop.run(_until_stopped(spec, counters))
    except AddressTaken:
        _log.warning("address in use", listen=spec.listen)
        return worker_spec.ADDRESS_TAKEN
    except ModelLost as error:
        _log.critical("the model failed", error=str(error))
        return 1
    except RuntimeError as error:
        _log.critical(NOT_LOADED, error=str(error))
        return 1
    return 0


def _bind(cores: tuple[int, ...]) -> None:
    """Run on these cores only; what this process starts, an external server too, inherits it."""
    if not cores:
        return
    try:
        os.sched_setaffinity(0, cores)
    except OSError as error:
        raise RuntimeError(f"may not run on the cores {cores}: {error}") from error


async def _until_stopped(spec: WorkerSpec, counters: Counters) -> None:
    stop = asyncio.Event()
    signals = asyncio.create_task(serve_until(stop), name="signals")
    await run(spec, counters, stop)
    stop.set()
    await signals
