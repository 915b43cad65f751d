"""Measured times of a network on cores of this machine, as a profile's table."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import onnxruntime as ort
from pydantic import Field

from services.cli.init.inputs import KnownInputs
from services.cli.init.network import Network, reads
from services.cli.samples import Array
from services.gpuagent.core import cpu_geometry
from services.kit.operators.onnx_nodes import read_nodes
from services.kit.operators.onnx_reader import load
from services.kit.operators.random_inputs import Sizes, drawn
from services.kit.operators.shape_trace import session
from services.kit.process.confined import confined
from services.kit.profiles.core.measurement import Fingerprint, Measurement
from services.kit.profiles.table_file import write_table

_POINT_S: Final = 0.4
"""Duration of a point's measurement, s."""

_FEWEST, _MOST = 5, 200
"""Runs of a point."""

_SLOW_S: Final = 2.0
"""Time of a batch, s, above which larger ones are left out."""

_COLUMNS: Final = tuple(f.name for f in fields(Measurement) if not f.name.startswith("energy"))
"""Energy is not measured: the planner takes the power of busy cores."""


@dataclass(frozen=True, slots=True)
class Timed:
    """Times of a batch. Attributes: cores, batch_size, runs_s (each run's time, s)."""

    cores: Annotated[int, Field(ge=1)]
    batch_size: Annotated[int, Field(ge=1)]
    runs_s: Annotated[tuple[Annotated[float, Field(gt=0)], ...], Field(min_length=1)]


def write_times(
    network: Network, data: Path | None, cores: int, batch_sizes: Sequence[int], path: Path
) -> None:
    """Measure a network on slices of this machine's cores, and write the table. Blocks.

    Args:
        network: The network.
        data: Validation set, whose first item is run; None: random values are.
        cores: That this machine has.
        batch_sizes: To measure, ascending; one item only where items share no batch.
        path: CSV file.
    """
    slices = [kind.sm_count for kind in cpu_geometry.geometry(cores, cores).kinds]
    sizes = [1] if network.alone else [*batch_sizes]
    timed = confined(
        timed_runs, network.file, KnownInputs(network.items, data), slices, sizes,
        file=network.file, reads=reads(network.file, data),
    )  # fmt: skip
    machine = Fingerprint(
        gpu=cpu_geometry.name(cores),
        product_name=f"{cores} cores",
        onnxruntime=ort.__version__,
        measured_on=datetime.now(UTC).date().isoformat(),
    )
    write_table(path, machine, (_row(each, machine.gpu) for each in timed), _COLUMNS)


def timed_runs(
    file: Path, known: KnownInputs, cores: Sequence[int], batch_sizes: Sequence[int]
) -> list[Timed]:
    """Run batches of a network. Call it in a confined process.

    Args:
        file: ONNX file.
        known: Sizes of an item.
        cores: Numbers of cores to run on.
        batch_sizes: Items of a batch, ascending.
    """
    model = load(file).SerializeToString()
    texts = read_nodes(file).texts or ("",)
    found = list[Timed]()
    for count in cores:
        running = session(model, threads=count)
        inputs = running.get_inputs()
        example = known.first_item(inputs)
        items = known.item_shapes(inputs, example)
        for size in batch_sizes:
            given = drawn(inputs, Sizes(batch=size, items=items, texts=texts), 0, example)
            runs_s = tuple(_runs_s(running, given))
            found.append(Timed(count, size, runs_s))
            if min(runs_s) > _SLOW_S:
                break
    return found


def _runs_s(running: Any, given: Mapping[str, Array]) -> Iterator[float]:
    running.run(None, dict(given))
    until_s = time.perf_counter() + _POINT_S
    for number in range(_MOST):
        began_s = time.perf_counter()
        if number >= _FEWEST and began_s > until_s:
            return
        running.run(None, dict(given))
        yield time.perf_counter() - began_s


def _row(timed: Timed, gpu: str) -> Measurement:
    runs_s = np.array(timed.runs_s)
    mean_s = float(runs_s.mean())
    return Measurement(
        gpu=gpu,
        profile=f"{timed.cores}c",
        batch_size=timed.batch_size,
        processes=1,
        latency_s=round(mean_s, 7),
        latency_p50_s=round(float(np.median(runs_s)), 7),
        latency_p95_s=round(float(np.quantile(runs_s, 0.95)), 7),
        latency_std_s=round(float(runs_s.std()), 7),
        throughput_rps=round(timed.batch_size / mean_s, 3),
        batches=len(runs_s),
    )
