"""The router's words: where requests may go, and one request on its way.

Time is monotonic seconds; nothing here reads a clock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from services.kit.config import Discipline, InstanceChoice

if TYPE_CHECKING:
    from services.router.core.pipeline.pipeline_request import PipelineRequest

POISON_DEATHS = 2
"""A request that was with this many workers when they died is not given to another."""


class InstanceId(NamedTuple):
    """Identity of a worker: a port may be used again by another segment's worker."""

    endpoint: str
    segment_id: str


@dataclass(frozen=True, slots=True)
class Instance:
    """One worker process of the routing table.

    Attributes:
        endpoint: "host:port" to dial.
        segment_id: Its segment.
        model: The model it serves.
        variant: The variant it runs.
        accuracy: The variant's, in the model's unit.
        share: Share of what its stage gets, 0..1.
        credits: Requests that may be in flight, until the worker itself says how many.
        zone: Electricity zone.
        pue: Wall energy per device energy, >= 1.
        gpu_idle_power_w: Idle power of the whole GPU it is on, W: tells high-end GPUs from low-end
            ones; 0: not known.
        stage: Which part of the variant it runs, where that is a pipeline; from 0.
        stages: Of the variant; 1: it is in one piece.
    """

    endpoint: str
    segment_id: str
    model: str
    variant: str
    accuracy: float
    share: float
    credits: int
    zone: str = ""
    pue: float = 1.0
    gpu_idle_power_w: float = 0.0
    stage: int = 0
    stages: int = 1

    @property
    def passes_on(self) -> bool:
        """Its answers are the requests of a next stage."""
        return self.stage + 1 < self.stages

    @property
    def id(self) -> InstanceId:
        """Its identity from one table to the next."""
        return InstanceId(self.endpoint, self.segment_id)


@dataclass(frozen=True, slots=True)
class ModelRoutes:
    """Where the requests of one model may go.

    Attributes:
        model: What clients name.
        slo_latency_s: Latency objective, s.
        slo_percentile: Its percentile.
        instance_choice: Which instance takes the next request.
        instances: Workers that may take its requests.
        discipline: Which request is the next.
        intensity_threshold: CARBONDIS' CIT.
    """

    model: str
    slo_latency_s: float
    slo_percentile: float
    instance_choice: InstanceChoice
    instances: tuple[Instance, ...] = ()
    discipline: Discipline = "fcfs"
    intensity_threshold: float = 1.0


@dataclass(frozen=True, slots=True)
class RoutingTable:
    """Where requests may go now.

    Attributes:
        revision: The planner's number of it; 0: none has arrived.
        plan_version: The plan it serves.
        models: Every model that clients may name.
    """

    revision: int
    plan_version: int
    models: tuple[ModelRoutes, ...]


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one model.

    Attributes:
        max_queue: Requests that may wait; more are refused.
        max_attempts: Workers a request may meet.
        max_queue_bytes: Their bodies' size; more are refused.
        default_deadline_s: Time for requests that bring no deadline; None: the router's.
        retry_share: Requests given to another worker because one failed, per request, 0..1.
        retry_burst: And so many more at once.
        hedge_after_s: A request that has no answer by then is given to a second worker that has
            nothing else to do; None: never.
        fair_clients: Clients take turns while the model is under pressure.
        overtaking_s: Under "ssjf": no request goes before one that came more than this earlier.
    """

    max_queue: int = 1000
    max_attempts: int = 5
    max_queue_bytes: int = 256 * 2**20
    default_deadline_s: float | None = None
    retry_share: float = 0.1
    retry_burst: int = 100
    hedge_after_s: float | None = None
    fair_clients: bool = True
    overtaking_s: float = 10.0


class ResponseReceiver(Protocol):
    """A caller's side of a request whose answer may come in parts.

    A worker's results before the last are parts; the last may be empty where all was said before.
    """

    def add(self, instance: Instance, response: bytes) -> None:
        """Take a part of the answer, not the last.

        Raises:
            ServiceError: The caller takes no more; ends the request.
        """
        ...

    def last(self, response: bytes) -> bytes:
        """Return what the request is answered with, given its last result; b"": nothing is left.

        Raises:
            ServiceError: This was no answer for the caller.
        """
        ...


@dataclass(slots=True, eq=False)
class Request:
    """One request on its way. The dispatcher of its model is the only one that changes it.

    Attributes:
        number: In order of arrival, unique in this process; the id on the worker's stream.
        model: The model it names.
        body: Serialized inference.ModelInferRequest, untouched.
        arrived_s: When it arrived.
        deadline_s: When its caller stops waiting.
        traceparent: W3C trace context, or "".
        tracestate: What goes with it, or "".
        priority: As Triton's parameter: lower is sooner, 0 is the default.
        client: Who asks, for fairness among clients; "": ask `whose`.
        whose: Returns who asks, once it matters; None: all are one.
        length_class: How long its answer will be, 0..9; None: nobody has told.
        boost_s: By how much earlier it is ranked for that.
        prompt_key: What the predictor calls its prompt; empty: nothing.
        attempts: Workers it was given to.
        deaths: Workers that died while they held it.
        holder: The worker that has it; None while it waits.
        sent: It left on the stream of `holder`, so the worker may have seen it.
        sent_s: When it was given to `holder`.
        place: How many `holder` then had, it included.
        hedge: A second worker that has it, too.
        over: Its caller has been answered, told why not, or has gone.
        parts: Who takes its answer in parts; None: nobody has asked for it so.
        begun: A part of its answer has come: nobody else can answer it any more.
        said: Results that have come, where its model is decoupled.
        said_s: When the newest did.
        pipeline: Its way through a pipeline, once a stage has answered; None: it is on none.
    """

    number: int
    model: str
    body: bytes
    arrived_s: float
    deadline_s: float
    traceparent: str = ""
    tracestate: str = ""
    priority: int = 0
    client: str = ""
    whose: Callable[[], str] | None = None
    length_class: int | None = None
    boost_s: float = 0.0
    prompt_key: bytes = b""
    attempts: int = 0
    deaths: int = 0
    holder: InstanceId | None = None
    sent: bool = False
    sent_s: float = 0.0
    place: int = 0
    hedge: InstanceId | None = None
    over: bool = False
    parts: ResponseReceiver | None = None
    begun: bool = False
    said: int = 0
    said_s: float = 0.0
    pipeline: PipelineRequest | None = None

    @property
    def order(self) -> int:
        """Its place by arrival: what a pipeline has begun stands where its client's request did."""
        return self.number if self.pipeline is None else self.pipeline.number
