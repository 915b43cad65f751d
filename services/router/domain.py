"""The router's words: where requests may go, and one request on its way.

Time is monotonic seconds; nothing here reads a clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

InstanceChoice = Literal["shares", "idle_longest"]

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
        share: Share of the model's load, 0..1.
        credits: Requests that may be in flight, until the worker itself says how many.
        zone: Electricity zone.
        pue: Wall energy per device energy, >= 1.
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
        instance_choice: "shares" or "idle_longest".
        instances: Workers that may take its requests.
    """

    model: str
    slo_latency_s: float
    slo_percentile: float
    instance_choice: InstanceChoice
    instances: tuple[Instance, ...] = ()


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
    """Bounds of one model's queue.

    Attributes:
        max_queue: Requests that may wait; more are refused.
        max_attempts: Workers a request may meet.
    """

    max_queue: int = 1000
    max_attempts: int = 5


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
        attempts: Workers it was given to.
        deaths: Workers that died while they held it.
        holder: The worker that has it; None while it waits.
        sent: It left on the stream of `holder`, so the worker may have seen it.
        sent_s: When it was given to `holder`.
        over: Its caller has been answered, told why not, or has gone.
    """

    number: int
    model: str
    body: bytes
    arrived_s: float
    deadline_s: float
    traceparent: str = ""
    attempts: int = 0
    deaths: int = 0
    holder: InstanceId | None = None
    sent: bool = False
    sent_s: float = field(default=0.0)
    over: bool = False
