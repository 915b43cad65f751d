"""The one file that describes a deployment: `cinquefoil.yaml`, as types.

Every service reads the same file and uses its part. Unknown keys are refused; environment
variables `CINQUEFOIL_<SECTION>__<KEY>` override single values (see `services.kit.settings`).
"""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    field_serializer,
    model_validator,
)

from services.kit.net import split_address


def _address(value: str) -> str:
    if value:
        split_address(value)
    return value


Address = Annotated[str, AfterValidator(_address), Field(description='"host:port"')]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]
Fraction = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
ClockRatio = Annotated[float, Field(gt=0, le=1)]


class Section(BaseModel):
    """Base of every section: immutable, and a mistyped key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Tls(Section):
    """Certificates, PEM. With `require_client_certificate`, both sides show one (mutual TLS)."""

    certificate_file: Path | None = None
    key_file: Path | None = None
    ca_file: Path | None = None
    require_client_certificate: bool = False


class Endpoint(Section):
    """Where a service listens, and where others find it.

    Attributes:
        listen: "host:port" to bind. Loopback unless told otherwise.
        address: "host:port" that others dial; `listen` where empty.
        metrics: "host:port" of the Prometheus endpoint; empty: none.
    """

    listen: Address
    address: Address = ""
    metrics: Address = ""

    @property
    def dial(self) -> str:
        """Where others dial this service."""
        return self.address or self.listen


# ---- carbon ------------------------------------------------------------------------------------


class StaticSource(Section):
    """One value for ever."""

    kind: Literal["static"]
    intensity_gco2e_per_kwh: Annotated[float, Field(ge=0)]


class SyntheticSource(Section):
    """A documented daily curve with a seed; see `services.carbon.sources.synthetic`."""

    kind: Literal["synthetic"]
    mean_gco2e_per_kwh: Positive = 207.13
    std_gco2e_per_kwh: Annotated[float, Field(ge=0)] = 69.23
    seed: int = 0
    step_s: Positive = 1800.0


class TraceSource(Section):
    """Replay of a CSV file: our own format or an Electricity Maps export."""

    kind: Literal["trace"]
    path: Path
    loop: bool = True


Source = Annotated[StaticSource | SyntheticSource | TraceSource, Field(discriminator="kind")]


class Zone(Section):
    """An electricity grid area.

    Attributes:
        source: Where its intensity comes from.
        signal: What the numbers mean. Average and marginal are never mixed.
        average_window_s: Window of the average carbon intensity (ACI), s.
    """

    source: Source
    signal: Literal["average", "marginal"] = "average"
    average_window_s: Positive = 86_400.0


class Replay(Section):
    """Grid time for replayed sources.

    Attributes:
        start: First instant, UTC. None: now (synthetic) or the trace's beginning.
        speedup: Grid seconds per second. 1440: a day in a minute.
    """

    start: datetime | None = None
    speedup: Positive = 1.0


class Carbon(Endpoint):
    """The carbon service."""

    listen: Address = "127.0.0.1:8461"
    zones: Annotated[dict[Name, Zone], Field(min_length=1)]
    replay: Replay = Replay()


# ---- hardware ----------------------------------------------------------------------------------


class Workers(Section):
    """What a node's worker processes may take and do before they are started again, or given up.

    Attributes:
        load_timeout_s: Time from a worker's start to its first answer, s.
        memory_limit_mib: Resident memory of a worker, with what it starts, MiB. None: no bound.
        max_failures: Failures within `failure_window_s` after which a worker is not started again
            until a new plan, or an operator, asks for its segment.
        failure_window_s: How long a failure counts, s.
    """

    load_timeout_s: Positive = 60.0
    memory_limit_mib: Positive | None = None
    max_failures: Annotated[int, Field(ge=1)] = 5
    failure_window_s: Positive = 600.0


class Mps(Section):
    """CUDA MPS: lets several processes compute on one slice at the same time.

    Attributes:
        control_binary: NVIDIA's control program, by path or by name.
        check_interval_s: How often a control daemon is asked whether it lives, s.
        timeout_s: Time a control daemon has to answer, s.
    """

    control_binary: Path = Path("nvidia-cuda-mps-control")
    check_interval_s: Positive = 5.0
    timeout_s: Positive = 10.0


class Node(Endpoint):
    """A machine with GPUs and the agent on it.

    Attributes:
        listen: Where the agent listens.
        zone: Electricity zone, a key of carbon.zones.
        simulated: GPU types to simulate, for example ["a100-40gb", "a100-40gb"]. None: real GPUs.
        gpus: UUIDs the agent may touch. None: all of the node's.
        control: The agent may change the node: slices, segments, clocks. None: yes where GPUs are
            simulated; of real ones it reads inventory and energy only (docs/rights.md).
        pue: Power usage effectiveness: wall energy per device energy.
        state_dir: Journal, meters and (simulated) hardware state.
        worker_host: Address workers bind and routers dial.
        allow_mig_mode: The agent may enable MIG mode on an idle GPU.
        allow_clocks: The agent may hold SM clocks (simulated GPUs: it always may).
        clock_loop: "miad": the agent lowers SM clocks for as long as requests stay in time, below
            what the plan says; it must be allowed to hold clocks. "off": plans alone set clocks.
        clock_floor: Least clock of that loop over a GPU's highest. From a half, one doubling
            reaches the top; far below two thirds, the same work takes more energy again.
        orphan_timeout_s: Workers end themselves when no agent looked after them for so long, s.
        workers: Bounds of worker processes.
        mps: How several processes share a slice. None: CUDA MPS as it comes with the driver, for
            real GPUs; simulated ones share without.
    """

    listen: Address = "127.0.0.1:8463"
    zone: Name
    simulated: tuple[Name, ...] | None = None
    gpus: tuple[str, ...] | None = None
    control: bool | None = None
    pue: Annotated[float, Field(ge=1)] = 1.0
    state_dir: Path = Path("out/state")
    worker_host: str = "127.0.0.1"
    allow_mig_mode: bool = False
    allow_clocks: bool = False
    clock_loop: Literal["off", "miad"] = "off"
    clock_floor: ClockRatio = 0.5
    orphan_timeout_s: Positive = 60.0
    workers: Workers = Workers()
    mps: Mps | None = None

    @property
    def controlled(self) -> bool:
        """Whether the agent may change the node."""
        return self.simulated is not None if self.control is None else self.control

    @property
    def may_hold_clocks(self) -> bool:
        """Whether the agent may hold SM clocks."""
        return self.controlled and (self.simulated is not None or self.allow_clocks)

    @model_validator(mode="after")
    def _loop_may_hold_clocks(self) -> Node:
        if self.clock_loop != "off" and not self.may_hold_clocks:
            raise ValueError(
                f"clock_loop: {self.clock_loop!r} holds clocks; the agent of real GPUs may where "
                "control and allow_clocks are true"
            )
        return self


# ---- models ------------------------------------------------------------------------------------


class AnalyticProfile(Section):
    """Parameters of the analytic profile model (`services.kit.profiles.analytic`).

    Attributes:
        gmacs_per_item: Multiply-accumulates per item, 1e9. Inception-V3: 5.7.
        memory_mib: Memory of one process at batch size 1, MiB.
        memory_mib_per_item: Memory each further item of a batch takes, MiB.
    """

    kind: Literal["analytic"]
    gmacs_per_item: Positive
    memory_mib: Positive = 1024.0
    memory_mib_per_item: Annotated[float, Field(ge=0)] = 32.0


class TableProfile(Section):
    """A measured table, CSV or Parquet (`services.kit.profiles.table`).

    Attributes:
        path: The file.
        gpu: GPU type it was measured on.
        gmacs_per_item: For power, which ParvaGPU's tables lack: arithmetic per item, 1e9.
    """

    kind: Literal["table"]
    path: Path
    gpu: Name
    gmacs_per_item: Positive


Profile = Annotated[AnalyticProfile | TableProfile, Field(discriminator="kind")]


class OnnxRuntime(Section):
    """Run by the worker itself, with ONNX Runtime."""

    kind: Literal["onnx"] = "onnx"


class ExternalRuntime(Section):
    """Run by a server of the Open Inference Protocol: Triton, MLServer, or one's own.

    Either `command` starts one for each worker, in the worker's slice and with its MPS bounds; or
    one runs already at `address`. In `command` and `environment`, "{port}" stands for a free port
    at which the server must serve gRPC, "{port_1}" .. "{port_9}" for further free ones, "{file}"
    for the variant's file.

    Attributes:
        command: Program and arguments.
        environment: Added to the program's environment.
        address: "host:port" of a server that runs already.
        model_name: The server's name for the model. Empty: the variant's.
        model_version: The version asked of it. Empty: the server's choice.
    """

    kind: Literal["external"]
    command: tuple[str, ...] = ()
    environment: dict[str, str] = {}
    address: Address = ""
    model_name: str = ""
    model_version: str = ""

    @model_validator(mode="after")
    def _one_server(self) -> ExternalRuntime:
        if bool(self.command) == bool(self.address):
            raise ValueError("give either command or address")
        if self.command and not _mentions_port((*self.command, *self.environment.values())):
            raise ValueError('"{port}" must be in command or environment: the server serves there')
        return self


def _mentions_port(words: tuple[str, ...]) -> bool:
    return any("{port}" in word for word in words)


Runtime = Annotated[OnnxRuntime | ExternalRuntime, Field(discriminator="kind")]


class Variant(Section):
    """One trained network for a model's task.

    Attributes:
        file: ONNX file; with an external runtime, whatever "{file}" stands for there, if anything.
        accuracy: Measured accuracy, in the model's unit, > 0.
        profile: How fast it runs, and how much it draws, on which slice.
        load_s: Time a worker takes to load it, s; what InfAdapter's loading cost counts.
        clock_sensitivity: How its latency follows the SM clock, 0 (not at all) .. 1 (in
            proportion): mu-Serve's weight of the variant in the clock loop.
        runtime: Who runs it.
    """

    file: Path = Path()
    accuracy: Positive
    profile: Profile
    load_s: Annotated[float, Field(ge=0)] = 0.0
    clock_sensitivity: Fraction = 1.0
    runtime: Runtime = OnnxRuntime()

    @model_validator(mode="after")
    def _file_for_onnx(self) -> Variant:
        if self.runtime.kind == "onnx" and self.file == Path():
            raise ValueError("file: required")
        return self


class Slo(Section):
    """A latency objective: the percentile of requests that must be answered in time."""

    percentile: Annotated[float, Field(gt=0, lt=100)] = 95.0
    latency_s: Positive


class Model(Section):
    """What clients name in `model_name`.

    Attributes:
        slo: Latency objective.
        accuracy_unit: For example "top-1".
        demand_rps: Load to provide for before any is seen, and never less than, req/s.
        instance_choice: "shares" (smooth weighted round robin) or "idle_longest" (CLOVER).
        max_queue: Requests that may wait; more are refused.
        variants: By name.
    """

    slo: Slo
    accuracy_unit: str = "top-1"
    demand_rps: Positive
    instance_choice: Literal["shares", "idle_longest"] = "shares"
    max_queue: Annotated[int, Field(ge=1)] = 1000
    variants: Annotated[dict[Name, Variant], Field(min_length=1)]


# ---- planner -----------------------------------------------------------------------------------


def _no_other_url(value: object) -> object:
    """A URL that we do not speak to would else pass for the path of a file."""
    if isinstance(value, str) and "://" in value and not re.match(_DATABASE_URL, value):
        raise ValueError("must be a file, or a URL that begins with postgresql:// or sqlite://")
    return value


_DATABASE_URL = r"^(postgresql|sqlite)(\+\w+)?://"
Dsn = Annotated[str, Field(pattern=_DATABASE_URL)]
Database = Annotated[Path | Dsn, BeforeValidator(_no_other_url)]
Strategy = Literal[
    "annealing",
    "base",
    "co2opt",
    "exact",
    "infadapter",
    "oracle",
    "parvagpu",
    "parvagpu-single",
    "parvagpu-unoptimized",
    "random",
]


class Goals(Section):
    """Weights of the goals in the objective; only their ratios matter.

    Attributes:
        clover: CLOVER's f (SC'23, Eq. 3): carbon against accuracy, percentage points.
        fewest_gpus: GPUs in use, as a percentage of the fleet (ParvaGPU). Where it is the only
            goal, ties go to fewer GPCs, then to less energy.
        infadapter: InfAdapter's Eq. 1 (EuroMLSys'23): accuracy against resources and loading.
    """

    clover: NonNegative = 1.0
    fewest_gpus: NonNegative = 0.0
    infadapter: NonNegative = 0.0

    @model_validator(mode="after")
    def _some_goal(self) -> Goals:
        if not (self.clover or self.fewest_gpus or self.infadapter):
            raise ValueError("at least one goal must have a weight above 0")
        return self


class InfAdapter(Section):
    """InfAdapter's Eq. 1: alpha x accuracy - (beta x resources + gamma x loading).

    Attributes:
        accuracy: alpha, of the mean accuracy over all requests relative to the best variants' (1).
        resources: beta, of the compute slices in use as a share of the fleet's (1).
        loading: gamma, of the longest loading time of a changed variant, per s.
    """

    accuracy: NonNegative = 1.0
    resources: NonNegative = 0.05
    loading: NonNegative = 0.001


class Objective(Section):
    """What a good plan is (CLOVER Eq. 1-3, unless `goals` say otherwise).

    Attributes:
        goals: What counts, and how much.
        infadapter: Weights inside the goal of that name.
        carbon_weight: CLOVER's lambda, 0 (accuracy only) .. 1 (carbon only).
        baseline_intensity_gco2e_per_kwh: Intensity in C_base; the reference that makes carbon
            differences relative. It scales the objective, not the set of plans.
        accuracy_floor: Least mean accuracy of a model relative to its best variant, 0..1.
        latency_share: theta: a segment's batch latency may take this share of the SLO; the rest is
            for waiting (ParvaGPU section IV-A uses 0.5).
        max_utilisation: rho: share of a segment's throughput that a plan may use.
        switch_price: Objective points that replacing a segment costs, per segment and GPU. Paid
            once, for points that last: the plan must gain them for one hour of grid time to be
            worth the change. A plan without a horizon takes it that the next hour is like now.
        layout_price: Objective points that creating or destroying a slice costs, per slice and
            GPU; paid like `switch_price`.
        park_idle_gpus: Count idle power only of GPUs that serve (consolidation); otherwise all.
    """

    goals: Goals = Goals()
    infadapter: InfAdapter = InfAdapter()
    carbon_weight: Fraction = 0.5
    baseline_intensity_gco2e_per_kwh: Positive = 207.13
    accuracy_floor: Fraction = 0.0
    latency_share: Annotated[float, Field(gt=0, le=1)] = 0.5
    max_utilisation: Annotated[float, Field(gt=0, le=1)] = 0.7
    switch_price: Annotated[float, Field(ge=0)] = 0.0
    layout_price: Annotated[float, Field(ge=0)] = 0.0
    park_idle_gpus: bool = False


class Triggers(Section):
    """When to plan anew.

    Attributes:
        intensity_change: Relative change of a zone's intensity since the last plan (CLOVER: 5 %).
        demand_change: Relative change of a model's demand since the last plan.
        min_interval_s: Least time between plans, s. Changes meanwhile are taken together.
        settle_s: Time to wait for nodes before the first plan, s.
    """

    intensity_change: Positive = 0.05
    demand_change: Positive = 0.2
    min_interval_s: Annotated[float, Field(ge=0)] = 30.0
    settle_s: Annotated[float, Field(ge=0)] = 2.0


class Horizon(Section):
    """How far ahead a plan looks (receding horizon).

    In grid time, which replayed sources run faster than clocks: with a speedup of 1440, an hour
    of horizon passes in 2.5 s.

    Attributes:
        length_s: 0: the present carbon intensity alone; at most 48 h.
        step_s: Length of one period, s.
    """

    length_s: Annotated[float, Field(ge=0, le=172_800)] = 0.0
    step_s: Annotated[float, Field(ge=300)] = 3600.0


class LoadForecast(Section):
    """What load to provide for.

    Attributes:
        interval_s: The forecast is of the busiest second within the next interval, s.
        coverage: Share of intervals whose busiest second must not exceed what is provided for.
    """

    interval_s: Annotated[float, Field(ge=1)] = 60.0
    coverage: Annotated[float, Field(ge=0.5, lt=1)] = 0.9


class Online(Section):
    """Search by trying, for profiles that are unknown or stale (CLOVER, SC'23, section 4.2).

    With the strategies that search (annealing, random): a configuration serves for a while, is
    measured and corrects the profiles, then the next; the best one stays. What was learned is kept
    for later searches; other strategies, dry runs and explanations go by the profiles.

    Attributes:
        enabled: Search so.
        evaluate_s: How long each configuration serves, s. The first tenth is not measured: there
            the queues of the rollout empty.
    """

    enabled: bool = False
    evaluate_s: Positive = 300.0


class Planner(Endpoint):
    """The planner service.

    Attributes:
        database: Of plans, inputs, reasons and outcomes: an SQLite file, or the URL of a database
            ("postgresql://user@host/name"; a password belongs in PGPASSWORD or ~/.pgpass).
        strategy: Who decides; `cinquefoil plan strategies` explains them.
        online: Search by trying, for profiles that are unknown or stale.
        horizon: How far ahead a plan looks.
        load_forecast: What load to provide for.
        batch_sizes: Batch sizes considered.
        max_processes: Most worker processes per segment.
        clock_ratios: SM clocks considered, as shares of a GPU's highest. Locking clocks takes
            privileges on the node.
        time_limit_s: Longest a strategy may think, s.
        seed: For strategies that draw numbers.
    """

    listen: Address = "127.0.0.1:8462"
    database: Database = Path("out/state/planner.sqlite3")
    strategy: Strategy = "exact"
    online: Online = Online()
    horizon: Horizon = Horizon()
    load_forecast: LoadForecast = LoadForecast()
    objective: Objective = Objective()
    triggers: Triggers = Triggers()
    batch_sizes: Annotated[tuple[int, ...], Field(min_length=1)] = (1, 2, 4, 8, 16, 32)
    max_processes: Annotated[int, Field(ge=1, le=8)] = 3
    clock_ratios: Annotated[tuple[ClockRatio, ...], Field(min_length=1)] = (1.0,)
    time_limit_s: Positive = 5.0
    seed: int = 0

    @field_serializer("database", when_used="json")
    def _without_password(self, database: Path | str) -> str:
        # Settings are logged and printed as JSON.
        return re.sub(r"(?<=password=)[^&]*|(?<=:)[^:@/]+(?=@)", "***", str(database))


class Router(Endpoint):
    """The router service.

    Attributes:
        max_request_bytes: Largest request; larger ones get RESOURCE_EXHAUSTED.
        report_interval_s: How often load is reported to the planner, s.
        max_attempts: Workers a request may meet before it fails with UNAVAILABLE.
        default_timeout_s: Deadline of requests that bring none, s.
    """

    listen: Address = "127.0.0.1:8464"
    max_request_bytes: Annotated[int, Field(ge=1024)] = 16 * 2**20
    report_interval_s: Positive = 1.0
    max_attempts: Annotated[int, Field(ge=1)] = 5
    default_timeout_s: Positive = 30.0


class Deployment(Section):
    """The whole file."""

    version: Literal["v1"]
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    tls: Tls | None = None
    carbon: Carbon
    nodes: Annotated[dict[Name, Node], Field(min_length=1)]
    models: Annotated[dict[Name, Model], Field(min_length=1)]
    planner: Planner = Planner()
    router: Router = Router()

    @model_validator(mode="after")
    def _zones_exist(self) -> Deployment:
        for name, node in self.nodes.items():
            if node.zone not in self.carbon.zones:
                known = ", ".join(sorted(self.carbon.zones))
                raise ValueError(
                    f"nodes.{name}.zone: no zone {node.zone!r}; carbon.zones has {known}"
                )
        return self
