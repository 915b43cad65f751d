"""A worker process from its first line to its exit status."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import uvloop

from services.gpuagent.core.worker_spec import ADDRESS_TAKEN, WorkerSpec, load
from services.gpuagent.worker.app import AddressTaken, ModelLost, run
from services.kit.process.event_loop import Loop
from services.kit.process.memory import collect_seldom
from services.kit.rpc import serve_until
from services.kit.telemetry import export, logs


def launch(path: Path) -> int:
    """Run the worker that a spec file describes; return its exit status.

    Returns:
        0 after a drain, `ADDRESS_TAKEN`, or 1 where the model cannot be loaded, or cannot go on.
    """
    spec = load(path)
    logs.configure(f"worker {spec.segment_id}/{spec.slot}", level=spec.log_level)
    log = logs.get("worker")
    collect_seldom()
    try:
        _bind(spec.cores)
        with export.exported("worker"):
            uvloop.run(_until_stopped(spec), loop_factory=Loop)
    except AddressTaken:
        log.warning("address in use", listen=spec.listen)
        return ADDRESS_TAKEN
    except ModelLost as error:
        log.critical("the model failed", error=str(error))
        return 1
    except RuntimeError as error:
        log.critical("cannot load the model", error=str(error))
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


async def _until_stopped(spec: WorkerSpec) -> None:
    stop = asyncio.Event()
    signals = asyncio.create_task(serve_until(stop), name="signals")
    await run(spec, stop)
    stop.set()
    await signals
