"""The measurements, read only: no clock, power limit or MIG setting is touched."""

import asyncio
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pynvml

from benchmarks.gpu_report.engines import Open, Run
from benchmarks.gpu_report.networks import ConvNet
from cinquefoil.gpuagent.v1.records import MpsLimit
from services.gpuagent.core.gpu_info import GpuInfo
from services.gpuagent.devices.mps.control_program import MpsDaemon
from services.gpuagent.devices.nvml.energy import EnergyMeter
from services.gpuagent.devices.nvml_gpus import NvmlGpus
from services.kit.errors import ServiceError
from services.kit.mig import WHOLE
from services.kit.profiles.core.analytic import AnalyticProfile
from services.kit.profiles.core.profile import SliceShape

BATCH_SIZES: Final = (1, 4, 16, 64)
_SAMPLE_S: Final = 0.02
_WARM_RUNS: Final = 3

Row = dict[str, Any]


@dataclass(slots=True)
class Power:
    """A GPU's energy over a block. Attributes: counter_j, integrated_j, took_s, samples, method."""

    counter_j: float = 0.0
    integrated_j: float = 0.0
    took_s: float = 0.0
    samples: int = 0
    method: str = ""


@contextmanager
def metered(gpus: NvmlGpus, uuid: str) -> Iterator[Power]:
    """Measure a GPU's energy while the block runs: by its counter, and by its power over time."""
    found, integral, ended = Power(), EnergyMeter(), threading.Event()
    device = pynvml.nvmlDeviceGetHandleByUUID(uuid.encode())

    def sample() -> None:
        while not ended.wait(_SAMPLE_S):
            power_w = pynvml.nvmlDeviceGetPowerUsage(device) / 1e3
            energy = integral.read(time.monotonic(), None, power_w)
            found.integrated_j = energy[0] if energy else 0.0
            found.samples += 1

    sampler = threading.Thread(target=sample, name="power")
    before, began_s = gpus.meter(uuid), time.monotonic()
    sampler.start()
    try:
        yield found
    finally:
        ended.set()
        sampler.join()
        after, found.took_s = gpus.meter(uuid), time.monotonic() - began_s
        found.counter_j, found.method = after.energy_j - before.energy_j, after.method


def settings(gpus: NvmlGpus) -> list[tuple[object, ...]]:
    """Return all that an agent could change, to compare before and after."""
    return [(gpu.uuid, gpu.mig_enabled, gpu.slices, *_limits(gpu.uuid)) for gpu in gpus.list()]


def _limits(uuid: str) -> tuple[object, ...]:
    device = pynvml.nvmlDeviceGetHandleByUUID(uuid.encode())
    found: list[object] = []
    for read in (pynvml.nvmlDeviceGetPowerManagementLimit, pynvml.nvmlDeviceGetComputeMode):
        try:
            found.append(read(device))
        except (pynvml.NVMLError, pynvml.NVMLLibraryMismatchError):
            found.append(None)
    return tuple(found)


def energy(gpus: NvmlGpus, uuid: str, run: Run, images: Any, seconds: float) -> list[Row]:
    """Compare the counter with the integral of power, idle and under load."""

    def load() -> None:
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            run(images)

    return [
        _compared("idle", gpus, uuid, lambda: time.sleep(seconds)),
        _compared("load", gpus, uuid, load),
    ]


def _compared(name: str, gpus: NvmlGpus, uuid: str, work: Callable[[], object]) -> Row:
    with metered(gpus, uuid) as power:
        work()
    whole_j = power.integrated_j * power.took_s / max(power.took_s - _SAMPLE_S, _SAMPLE_S)
    return {
        "while": name,
        "method": power.method,
        "counter_w": power.counter_j / power.took_s,
        "integrated_w": whole_j / power.took_s,
        "counter_over_integrated": power.counter_j / whole_j if whole_j else float("nan"),
        "power_samples": power.samples,
    }


def profiles(
    gpus: NvmlGpus, gpu: GpuInfo, networks: tuple[ConvNet, ...], engine: Open, seconds: float
) -> Iterator[Row]:
    """Yield latency and energy of each network and batch size, beside the analytic model's.

    Args:
        gpus: Their meters.
        gpu: The one that computes.
        networks: Networks to run.
        engine: The engine that runs them.
        seconds: Time per point, s.
    """
    shape = whole(gpu)
    for network in networks:
        run, model = engine(network), AnalyticProfile(network.gmacs_per_item)
        for batch_size in BATCH_SIZES:
            images = network.images(batch_size)
            latency_s, energy_j = _point(gpus, gpu, run, images, seconds)
            modelled = model.batch(shape, batch_size, 1)
            energy_ratio = modelled.energy_j / energy_j if modelled and energy_j > 0 else None
            yield {
                "network": network.name,
                "gmacs": network.gmacs_per_item,
                "batch": batch_size,
                "latency_ms": 1e3 * latency_s,
                "items_per_s": batch_size / latency_s,
                "active_j_per_item": energy_j / batch_size,
                "model_latency_ms": 1e3 * modelled.latency_s if modelled else None,
                "model_over_latency": modelled.latency_s / latency_s if modelled else None,
                "model_over_energy": energy_ratio,
            }


def _point(
    gpus: NvmlGpus, gpu: GpuInfo, run: Run, images: Any, seconds: float
) -> tuple[float, float]:
    """Return the median latency of a batch, s, and its active energy, J."""
    for _ in range(_WARM_RUNS):
        run(images)
    took_s: list[float] = []
    with metered(gpus, gpu.uuid) as power:
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            began_s = time.perf_counter()
            run(images)
            took_s.append(time.perf_counter() - began_s)
    active_j = power.counter_j - gpu.model.context_power_w * power.took_s
    return statistics.median(took_s), max(active_j, 0.0) / len(took_s)


def whole(gpu: GpuInfo) -> SliceShape:
    """Return a whole GPU as profiles see it."""
    model = gpu.model
    return SliceShape(
        gpu=model.name,
        profile=WHOLE,
        compute_slices=max(kind.compute_slices for kind in model.geometry.kinds),
        sm_count=model.sm_count,
        gpu_sm_count=model.sm_count,
        memory_bytes=model.memory_bytes,
        context_power_w=model.context_power_w,
        max_power_w=model.max_power_w,
        performance=model.performance,
    )


def agreement(engine: Open, reference: Open, network: ConvNet) -> Row:
    """Compare the scores of two engines, on the same images."""
    images = network.images(BATCH_SIZES[-1])
    ours, theirs = engine(network)(images), reference(network)(images)
    return {
        "network": network.name,
        "same_labels": float(np.mean(ours.argmax(axis=1) == theirs.argmax(axis=1))),
        "worst_difference_over_largest": float(np.abs(ours - theirs).max() / np.abs(theirs).max()),
    }


def mps(uuid: str, binary: Path) -> Row:
    """Start an MPS control daemon of our own, query it, and stop it; the GPU stays as it is."""
    with tempfile.TemporaryDirectory(prefix="cfmps-") as folder:
        daemon = MpsDaemon(binary, 10.0, uuid, Path(folder) / "m")

        async def try_it() -> str:
            try:
                await daemon.start(MpsLimit(50))
                await daemon.check()
            except ServiceError as error:
                return error.message
            finally:
                await daemon.stop()
            return ""

        why = asyncio.run(try_it())
    return {
        "daemon": "started, took a limit of 50 %, and stopped" if not why else f"refused: {why}"
    }
