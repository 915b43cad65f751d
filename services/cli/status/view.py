"""The rows of `cinquefoil status`, independent of fetching and rendering."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Zone:
    """A zone's intensity: CI and ACI in gCO2e/kWh, CIR = CI / ACI; its age, grid time.

    `provenance` says how it is known; `percentile` is the rank, where there is no intensity.
    """

    zone: str
    signal: str
    intensity_gco2e_per_kwh: float
    average_gco2e_per_kwh: float
    ratio: float
    source: str
    staleness_s: float = 0.0
    provenance: str = "measured"
    percentile: float | None = None


@dataclass(frozen=True, slots=True)
class Slice:
    """A slice and what runs on it; no model: nothing does. `reason`: why a worker is down."""

    placement: str
    model: str = ""
    variant: str = ""
    stage: int = 0
    batch_size: int = 0
    processes: int = 0
    state: str = ""
    restarts: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU, as its agent last reported it. Powers in W, energy in J."""

    node: str
    connected: bool
    simulated: bool
    index: int
    uuid: str
    type: str
    power_w: float
    energy_j: float
    slices: tuple[Slice, ...]


@dataclass(frozen=True, slots=True)
class Variant:
    """A variant that serves: its share of the model's load, and its worker processes."""

    variant: str
    share: float
    instances: int
    connected: int


@dataclass(frozen=True, slots=True)
class Model:
    """A model at the router. Latencies since the router's start, s; None before any request."""

    model: str
    slo_latency_s: float
    p50_s: float | None
    p95_s: float | None
    queue_depth: int
    in_flight: int
    answered: int
    failed: int
    retried: int
    late: int
    accuracy: float
    variants: tuple[Variant, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """The newest plan. Attributes: parked (GPUs that it leaves empty, by UUID)."""

    version: int
    state: str
    strategy: str
    reason: str
    parked: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Totals:
    """The planner's account since it began."""

    energy_j: float
    carbon_gco2e: float


@dataclass(frozen=True, slots=True)
class Drift:
    """A kind of segment that deviates from its profile; ratios are 1 where the profile is right."""

    node: str
    model: str
    variant: str
    gpu: str
    slice: str
    batch_size: int
    processes: int
    latency_ratio: float
    energy_ratio: float


@dataclass(frozen=True, slots=True)
class Lengths:
    """How well the lengths of a model's answers are predicted.

    Attributes:
        model: The model.
        predictions: Predictions since the predictor's start.
        cache_hits: Of them, those that came from the cache.
        class_right: Share of them whose class turned out right; None before any is known.
        prompts: Prompts that the cache remembers.
    """

    model: str
    predictions: int
    cache_hits: int
    class_right: float | None
    prompts: int


@dataclass(frozen=True, slots=True)
class Effectiveness:
    """A node's PUE. Attributes: pue (wall energy per GPU energy), measured (else configured)."""

    node: str
    pue: float
    measured: bool


@dataclass(frozen=True, slots=True)
class Fleet:
    """What the planner says: GPUs, PUEs, nodes that are away, wrong profiles, plan, account."""

    gpus: tuple[Gpu, ...] = ()
    pues: tuple[Effectiveness, ...] = ()
    away: tuple[str, ...] = ()
    drifts: tuple[Drift, ...] = ()
    plan: Plan | None = None
    totals: Totals | None = None


@dataclass(frozen=True, slots=True)
class Status:
    """Everything; the parts of a service that does not answer are empty.

    Attributes:
        pues: Of every node of the deployment file.
        away: Nodes of the deployment file whose agent is not connected.
        drifts: Profiles that are wrong.
        problems: A sentence per service that does not answer.
    """

    zones: tuple[Zone, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    pues: tuple[Effectiveness, ...] = ()
    away: tuple[str, ...] = ()
    drifts: tuple[Drift, ...] = ()
    models: tuple[Model, ...] = ()
    lengths: tuple[Lengths, ...] = ()
    plan: Plan | None = None
    totals: Totals | None = None
    problems: tuple[str, ...] = ()
