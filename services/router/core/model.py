"""The router's values: the routing table, the limits of a model, and a request as it arrived.

Time is monotonic seconds; nothing here reads a clock.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from services.kit.config import Discipline, DispatchRules, InstanceChoice, RequestLimits
from services.kit.request_cost import Usage
from services.kit.terms import MOST_TERMS_AHEAD

POISON_DEATHS = 2
"""A request that this many workers held when they died is not given to another worker."""


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
        accuracy: Accuracy of the variant, in the model's unit.
        share: Planned share of its stage's requests, 0..1.
        credits: Requests that may be in flight, until the worker itself reports a number.
        zone: Electricity zone.
        pue: Wall energy per device energy, >= 1.
        gpu_idle_power_w: Idle power of its whole GPU, W, which distinguishes high-end GPUs from
            low-end ones; 0: not known.
        power_limit_w: Most power that the meter of what it runs on can show, W; 0: not known.
        stage: Index of the stage it runs, where the variant is a pipeline; from 0.
        stages: Number of stages of the variant; 1: no pipeline.
        id: Identity from one routing table to the next.
        feeds_next_stage: Its answers are the inputs of a next stage.
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
    power_limit_w: float = 0.0
    id: InstanceId = field(init=False, repr=False, compare=False)
    feeds_next_stage: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "id", InstanceId(self.endpoint, self.segment_id))
        object.__setattr__(self, "feeds_next_stage", self.stage + 1 < self.stages)


@dataclass(frozen=True, slots=True)
class ModelRoutes:
    """Routes of one model: its instances and policies.

    Attributes:
        model: The name that clients use.
        slo_latency_s: Latency objective, s.
        slo_percentile: Percentile of the objective.
        instance_choice: Policy that chooses the instance of the next request.
        instances: Workers that may take its requests.
        discipline: Order in which waiting requests are served.
        intensity_threshold: CARBONDIS' CIT.
        slo_first_token_s: Objective of the time from arrival to the first token, s.
        slo_token_s: Objective of the mean time between tokens, s.
    """

    model: str
    slo_latency_s: float
    slo_percentile: float
    instance_choice: InstanceChoice
    instances: tuple[Instance, ...] = ()
    discipline: Discipline = "fcfs"
    intensity_threshold: float = 1.0
    slo_first_token_s: float = math.inf
    slo_token_s: float = math.inf

    def in_time(self, latency_s: float, usage: Usage | None) -> bool:
        """Return whether an answer met every objective.

        Args:
            latency_s: Time from arrival to answer, s.
            usage: Its tokens, where it is a text; one that came at once has no first token.
        """
        if latency_s > self.slo_latency_s:
            return False
        return not (usage and usage.first_token_s) or (
            usage.first_token_s <= self.slo_first_token_s and usage.token_s <= self.slo_token_s
        )


@dataclass(frozen=True, slots=True)
class RoutingTable:
    """Routes of all models.

    Attributes:
        revision: Number given by the planner; 0: no table has arrived yet.
        plan_version: Version of the plan that it implements.
        models: Every model that clients may name.
        term: Term of the planner that sent it; 0: that planner counts no terms.
    """

    revision: int
    plan_version: int
    models: tuple[ModelRoutes, ...]
    term: int = 0

    def supersedes(self, known: "RoutingTable", *, planned: bool) -> bool:
        """Return whether this table may take the place of the one in use.

        A planner of a lower term does not lead any more, and none is in a term far above the last.
        A new one that has never planned knows of no fleet: that it routes nowhere is no reason to
        stop requests that are served.

        Args:
            known: The table in use.
            planned: Whether the planner that sends this one has a plan.
        """
        ahead = self.term - known.term
        if known.term and self.term and not 0 <= ahead <= MOST_TERMS_AHEAD:
            return False
        if self.term == known.term:
            return True
        return planned or self.leads_somewhere or not known.leads_somewhere

    @property
    def leads_somewhere(self) -> bool:
        """True if any model has an instance."""
        return any(each.instances for each in self.models)


class Limits(RequestLimits, DispatchRules):
    """Bounds of one model: its own in the deployment file, and the router's.

    Attributes:
        survives: It must survive the loss of a GPU or node: requests do not wait for an instance
            that has been silent for as long as the objective.
    """

    survives: bool = False


class ResponseReceiver(Protocol):
    """The caller's side of a request whose answer may come as several responses.

    Every result of the worker before the last is a part; the last one may be empty.
    """

    def receive_part(self, instance: Instance | None, response: bytes) -> None:
        """Take a response that is not the last.

        Args:
            instance: Where it comes from; None: a peer region, the response names its variant.
            response: A serialized ModelInferResponse.

        Raises:
            ServiceError: The caller takes no more; this ends the request.
        """
        ...

    def complete(self, response: bytes) -> bytes:
        """Return the final answer, given the last response; b"": no more is to be sent.

        Raises:
            ServiceError: The responses together are no answer for this caller.
        """
        ...


class Request(NamedTuple):
    """One inference request as it arrived.

    Attributes:
        number: In order of arrival, unique in this process; the id on the worker's stream.
        model: The model it names.
        body: Serialized inference.ModelInferRequest, untouched.
        arrived_s: Time of arrival.
        deadline_s: When its caller stops waiting.
        traceparent: W3C trace context, or "".
        tracestate: The vendor part of the trace context, or "".
        priority: As Triton's parameter: lower is sooner, 0 is the default.
        client: Returns the client's identity, for fairness; None: all clients are one.
        in_parts: Its caller takes an answer in several responses.
        accuracy_floor: Least accuracy of the variant that answers, in the model's unit.
        max_tokens: Tokens that the answer may have at most; 0: not known.
        id: The caller's identifier of it, which its answer repeats.
        text_bytes: Length of its prompt, where its body is longer for pictures in it; 0: as its
            body.
        deferrable: It can wait until its deadline: it is of the class below all others.
        one_of_many: It came with others of a batch, which the batch service reports itself.
    """

    number: int
    model: str
    body: bytes
    arrived_s: float
    deadline_s: float
    traceparent: str = ""
    tracestate: str = ""
    priority: int = 0
    client: Callable[[], str] | None = None
    in_parts: bool = False
    accuracy_floor: float = 0.0
    max_tokens: int = 0
    id: str = ""
    text_bytes: int = 0
    deferrable: bool = False
    one_of_many: bool = False

    @property
    def prompt_bytes(self) -> int:
        """Bytes that stand for the work of reading its prompt."""
        return self.text_bytes or len(self.body)
