"""Amounts of a few minutes, as they are stored. Pure; values of JSON.

A reader meets files of others, and of other versions: what is not of this form is left out.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Self

from services.gpuagent.observation.core.steps import StepSums
from services.kit.server_metrics.figures import Histogram

STEP_S: Final = 300
"""Time that a record covers, s."""

TIMES: Final = ("first_token", "token", "latency")


@dataclass(frozen=True, slots=True)
class GpuRecord:
    """Energy of one GPU.

    Attributes:
        uuid, type: Of the GPU.
        observed_s: Time of the record that was observed, s.
        energy_j, idle_j: Of the meter, J.
        carbon_gco2e, known_j: Emissions, and the energy of which they are known, J.
        busy_s: Time in which kernels ran, s.
        clock_ratio: SM clock over the highest.
        divided: It is in MIG mode.
    """

    uuid: str
    type: str
    observed_s: float
    energy_j: float
    idle_j: float
    carbon_gco2e: float
    known_j: float
    busy_s: float
    clock_ratio: float = 1.0
    divided: bool = False


@dataclass(frozen=True, slots=True)
class ServerRecord:
    """Work of one model of a server.

    Attributes:
        url, server, model: Of the server.
        gpus: UUIDs of its GPUs.
        observed_s: Time of the record in which its page was read, s.
        requests, prompt_tokens, answer_tokens, items: Amounts; None: the server does not say.
        active_j: Active energy of its workload, J; None: not known, or shared.
        peak_running: Most requests seen in progress.
        times: Histograms by quantity, of `TIMES`.
        steps: Sums for its profile.
    """

    url: str
    server: str
    model: str
    gpus: tuple[str, ...]
    observed_s: float
    requests: float | None = None
    prompt_tokens: float | None = None
    answer_tokens: float | None = None
    items: float | None = None
    active_j: float | None = None
    peak_running: float = 0.0
    times: Mapping[str, Histogram] = field(default_factory=dict)
    steps: StepSums = field(default_factory=StepSums)


@dataclass(frozen=True, slots=True)
class Record:
    """A few minutes. Attributes: start_s (Unix time, a multiple of STEP_S), gpus, servers."""

    start_s: int
    gpus: tuple[GpuRecord, ...] = ()
    servers: tuple[ServerRecord, ...] = ()

    def document(self) -> dict[str, Any]:
        """Return it as values of JSON."""
        return {
            "gpus": [asdict(each) for each in self.gpus],
            "servers": [_server_document(each) for each in self.servers],
        }

    @classmethod
    def of(cls, start_s: int, document: Any) -> Self:
        """Return the record of a document.

        Raises:
            ValueError: It has another form.
        """
        try:
            gpus = tuple(_checked(GpuRecord(**each)) for each in document["gpus"])
            servers = tuple(map(_server, document["servers"]))
        except (TypeError, KeyError, AttributeError, OverflowError) as error:
            raise ValueError(f"no record of observations: {error}") from error
        return cls(start_s, gpus, servers)


def _server_document(record: ServerRecord) -> dict[str, Any]:
    times = {
        name: [each.count, each.total_s, [[str(b), n] for b, n in sorted(each.buckets.items())]]
        for name, each in record.times.items()
    }
    found = {name: getattr(record, name) for name in ServerRecord.__slots__}
    return found | {"times": times, "steps": record.steps.flat}


def _server(document: Mapping[str, Any]) -> ServerRecord:
    times = {
        str(name): Histogram(float(count), float(total_s), {float(b): float(n) for b, n in buckets})
        for name, (count, total_s, buckets) in document["times"].items()
    }
    given = dict(document) | {
        "gpus": tuple(map(str, document["gpus"])),
        "times": times,
        "steps": StepSums.of(document["steps"]),
    }
    found = ServerRecord(**given)
    _finite(found.requests, found.prompt_tokens, found.answer_tokens, found.active_j)
    _finite(found.items, found.observed_s, found.peak_running)
    return found


def _checked(record: GpuRecord) -> GpuRecord:
    _finite(record.observed_s, record.energy_j, record.idle_j, record.carbon_gco2e)
    _finite(record.known_j, record.busy_s, record.clock_ratio)
    return record


def _finite(*values: float | None) -> None:
    if not all(value is None or (math.isfinite(value) and value >= 0) for value in values):
        raise ValueError("amounts must be numbers >= 0")


def stretches(records: Iterable[Record]) -> Iterator[tuple[Record, ...]]:
    """Yield the stretches of records that follow one another, records in order of time."""
    found: list[Record] = []
    for each in records:
        if found and each.start_s != found[-1].start_s + STEP_S:
            yield tuple(found)
            found = []
        found.append(each)
    if found:
        yield tuple(found)
