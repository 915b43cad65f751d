"""Messages of `cinquefoil.router.v1` as frozen values; written by `make protos`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, UTC


@dataclass(frozen=True, slots=True, order=True)
class InstanceStatus:
    """An instance as a router sees it.

    Attributes:
        endpoint: Where it is dialled.
        segment_id: Its segment.
        variant: The variant it runs.
        connected: Its stream is open.
        share: Share the plan gives it, 0..1.
        answered: Requests it answered.
        in_flight: Requests it holds now.
        stage: Which stage of the variant it runs, where that is a pipeline; from 0.
    """

    endpoint: str = ""
    segment_id: str = ""
    variant: str = ""
    connected: bool = False
    share: float = 0.0
    answered: int = 0
    in_flight: int = 0
    stage: int = 0


@dataclass(frozen=True, slots=True, order=True)
class WaitingStatus:
    """Requests that can wait, of one model: a class below all others.

    Attributes:
        queued: Requests that no instance has now.
        in_flight: Requests that instances have now.
        room: Requests that instances may have now beside all others.
        answered: Requests answered since start.
        ended: Requests that ended without an answer since start: expired, cancelled or failed.
        output_tokens: Tokens generated since start.
        energy_j: Active energy attributed to the answers since start. Unit: J.
        marginal_energy_j: Energy that the answers have added, by what one more takes at the present
            batch. Unit: J.
        held_by: What holds queued requests back. Empty: nothing does.
    """

    queued: int = 0
    in_flight: int = 0
    room: int = 0
    answered: int = 0
    ended: int = 0
    output_tokens: int = 0
    energy_j: float = 0.0
    marginal_energy_j: float = 0.0
    held_by: str = ""


@dataclass(frozen=True, slots=True)
class ModelStatus:
    """A model as a router sees it.

    Attributes:
        model: The model.
        accepted: Requests accepted since start.
        answered: Requests answered since start.
        failed: Requests that ended in an error since start, but errors of clients and what they
            cancelled.
        retried: Requests sent again because their worker died or drained.
        late: Requests answered later than the SLO.
        queue_depth: Waiting for an instance now.
        in_flight: Sent to a worker and not yet answered.
        latency_s: Latency quantiles since start: "50", "95", "99". Unit: s.
        slo_latency_s: Latency objective. Unit: s.
        energy_j: Active energy of the answered requests. Unit: J.
        carbon_gco2e: Its carbon. Unit: gCO2e.
        accuracy: Mean stated accuracy of the variants that answered, weighted by requests.
        instances: Workers.
        rate_rps: Requests that ended per second, over the shortest of `router.slo_windows_s` or
            since the router started, whichever is shorter. Unit: 1/s.
        input_tokens: Tokens of the answered prompts since start, where the model generates text.
        output_tokens: Tokens generated since start.
        output_tokens_per_s: Tokens of the answers that ended, per second, over the time of
            `rate_rps`. Unit: 1/s.
        idle_energy_j: Idle energy that the answers were charged since the start. Unit: J.
        carbon_total_gco2e: Carbon of active and idle energy since the start. Unit: gCO2e.
        waiting: Requests that can wait. No other field counts them, but `in_flight` does. Absent:
            there were none.
    """

    model: str = ""
    accepted: int = 0
    answered: int = 0
    failed: int = 0
    retried: int = 0
    late: int = 0
    queue_depth: int = 0
    in_flight: int = 0
    latency_s: Mapping[str, float] = field(default_factory=dict)
    slo_latency_s: float = 0.0
    energy_j: float = 0.0
    carbon_gco2e: float = 0.0
    accuracy: float = 0.0
    instances: tuple[InstanceStatus, ...] = ()
    rate_rps: float = 0.0
    input_tokens: int = 0
    output_tokens: int = 0
    output_tokens_per_s: float = 0.0
    idle_energy_j: float = 0.0
    carbon_total_gco2e: float = 0.0
    waiting: WaitingStatus | None = None


@dataclass(frozen=True, slots=True)
class Receipt:
    """Energy and carbon of one answer, as in the receipt that its caller has. It names no client and
    no content.

    Attributes:
        answered_at: When it was answered.
        model: The model.
        variant: The variant that answered; of a pipeline's last stage.
        segment_id: Its segment.
        accuracy: Stated accuracy of the variant.
        latency_s: From its arrival at the router until it was answered. Unit: s.
        queue_s: Of that, waiting in the router and in the worker. Unit: s.
        energy_j: Active energy. Absent: its worker reported no cost. Unit: J.
        idle_energy_j: Its share of the idle energy from the end of the batch before to its own.
            Unit: J.
        energy_method: How the energy was obtained.
        carbon_gco2e: Carbon of the active energy. Absent: the intensity is not known. Unit: gCO2e.
        carbon_total_gco2e: Carbon of active and idle energy. Absent: the intensity is not known.
            Unit: gCO2e.
        batch_size: Items in its batch.
        input_tokens: Tokens of the prompt, where the model generates text.
        output_tokens: Tokens of the answer, where the model generates text.
        waiting: It could wait: it ran beside requests of a higher class.
        marginal_energy_j: Energy that it added: what one more takes at the batch it ran in. Absent:
            not learned yet. Unit: J.
    """

    answered_at: datetime = datetime.fromtimestamp(0, UTC)
    model: str = ""
    variant: str = ""
    segment_id: str = ""
    accuracy: float = 0.0
    latency_s: float = 0.0
    queue_s: float = 0.0
    energy_j: float | None = None
    idle_energy_j: float = 0.0
    energy_method: str = ""
    carbon_gco2e: float | None = None
    carbon_total_gco2e: float | None = None
    batch_size: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    waiting: bool = False
    marginal_energy_j: float | None = None
