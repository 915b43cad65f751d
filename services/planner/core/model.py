"""The planner's records: inputs, segments that may run, segments to run.

    Problem --strategy--> Configuration --placement--> tuple[Segment, ...] --rollout--> stages

Everything here is frozen: a strategy is a pure function of a Problem.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from cinquefoil.gpuagent.v1.records import Performance, Placement, SegmentSpec, SliceProfile
from cinquefoil.planner.v1.records import Dispersion
from services.kit.config import Objective, PlacementRule, ServerPool, Spread
from services.kit.mig import Geometry
from services.kit.power_limits import PROCESSORS_W
from services.kit.profiles.core.language import TokenTimes
from services.kit.profiles.core.profile import Profile, SliceShape


@dataclass(frozen=True, slots=True)
class GpuType:
    """A GPU type, as its agent read it from the driver.

    Attributes:
        name: For example "a100-40gb".
        geometry: Its possible layouts.
        sm_count: Streaming multiprocessors of the whole GPU.
        idle_power_w: Power with no CUDA context open, W.
        context_power_w: Power with one open and idle, as while segments wait, W.
        max_power_w: Default power limit, W.
        max_clock_mhz: Highest SM clock, MHz; 0: unknown, so that plans leave its clock alone.
        core_gmacs_per_s: CPU cores only: multiply-accumulates of one core, measured, 1e9/s.
        performance: Peaks of the GPU; None: CPU cores, or unknown.
    """

    name: str
    geometry: Geometry
    sm_count: int
    idle_power_w: float
    context_power_w: float
    max_power_w: float
    max_clock_mhz: int = 0
    core_gmacs_per_s: float = 0.0
    performance: Performance | None = None

    @property
    def metered_limit_w(self) -> float:
        """Most power that its meter can show, W: that of CPU cores may count whole processors."""
        return max(self.max_power_w, PROCESSORS_W) if self.core_gmacs_per_s else self.max_power_w

    @property
    def use_power_w(self) -> float:
        """Power of a GPU with segments above that of one without, before it computes, W."""
        return max(self.context_power_w - self.idle_power_w, 0.0)

    def __hash__(self) -> int:
        # Kinds and pools are dictionary keys everywhere; hashing a geometry each time is slow.
        return hash(self.name)

    def shape(self, kind: SliceProfile, gpus: int = 1) -> SliceShape:
        """Return the shape of a slice of `kind`, or of several whole GPUs, as profiles need it."""
        return SliceShape(
            gpu=self.name,
            profile=kind.name,
            compute_slices=kind.compute_slices,
            sm_count=gpus * kind.sm_count,
            gpu_sm_count=self.sm_count,
            memory_bytes=gpus * kind.memory_bytes,
            context_power_w=self.context_power_w,
            max_power_w=self.max_power_w,
            core_gmacs_per_s=self.core_gmacs_per_s,
            performance=self.performance,
        )


@dataclass(frozen=True, slots=True)
class Pool:
    """GPUs that a plan need not distinguish: same type, same zone, same PUE.

    Attributes:
        type: GPU type.
        zone: Electricity zone.
        pue: Power usage effectiveness, >= 1.
        intensity_gco2e_per_kwh: Carbon intensity now.
        site: Site whose power budget it draws on; "": none.
        eur_per_kwh: Price of electricity now, EUR/kWh; 0 where none is known.
    """

    type: GpuType
    zone: str
    pue: float
    intensity_gco2e_per_kwh: float
    site: str = ""
    eur_per_kwh: float = 0.0

    def __hash__(self) -> int:
        return hash(self.zone)  # most pools differ in it

    def carbon_gco2e(self, energy_j: float) -> float:
        """Return the carbon of device energy used in the pool, gCO2e, PUE included."""
        return energy_j * self.pue * self.intensity_gco2e_per_kwh / 3.6e6

    def cost_eur(self, energy_j: float, carbon_price_eur_per_t: float) -> float:
        """Return the cost of device energy used in the pool and of its carbon, EUR."""
        energy_eur = energy_j * self.pue * self.eur_per_kwh / 3.6e6
        return energy_eur + 1e-6 * carbon_price_eur_per_t * self.carbon_gco2e(energy_j)


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU of the fleet.

    Attributes:
        uuid: UUID of the GPU.
        node: The node it is in.
        pool: Pool that it belongs to.
        slices: Slices that exist on it now.
        clock_mhz: SM clock that it is locked at, MHz; 0: not locked.
    """

    uuid: str
    node: str
    pool: Pool
    slices: tuple[Placement, ...] = ()
    clock_mhz: int = 0


@dataclass(frozen=True, slots=True)
class PipelineStage:
    """A stage of a network; a network in one piece is its own only stage.

    Attributes:
        index: Position, 0 .. of - 1.
        of: Number of stages of the network.
        budget: Stage's share of the latency rule; those of a network sum to 1.
        transfer_s: Time from its answer to its arrival at the next stage, s.
        clock_sensitivity: Clock sensitivity of the stage, 0..1; in one piece: see `Variant`.
    """

    index: int = 0
    of: int = 1
    budget: float = 1.0
    transfer_s: float = 0.0
    clock_sensitivity: float = 1.0

    def __hash__(self) -> int:
        # As with GpuType: kinds are dictionary keys everywhere.
        return self.index


IN_ONE_PIECE = PipelineStage()

Queue = tuple[str, str, int]
"""Queue of requests: model, variant and stage.

Clients' requests wait in one queue for all variants of their model, ("digits", "", 0); requests
inside a pipeline wait for that pipeline's next stage, ("digits", "large", 1).
"""


def queue_of(model: str, variant: str, stage: int) -> Queue:
    """Return the queue that segments of a stage take requests from."""
    return (model, variant, stage) if stage else (model, "", 0)


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Variant:
    """A trained network.

    Attributes:
        name: Name of the variant.
        accuracy: Accuracy in the model's unit, > 0.
        profile: Batch times and energies.
        load_s: Time a worker takes to load it, s (InfAdapter's readiness time).
        pipeline: Its stages with their profiles, if it runs as a pipeline; else ().
        clock_sensitivity: Clock sensitivity, 0 (none) .. 1 (in proportion).
        max_batch: Largest batch that its file allows; None: no limit.
        context_tokens: Most tokens of a prompt and its answer; None: not stated.
        gpus: Whole GPUs of one node that each of its segments holds.
    """

    name: str
    accuracy: float
    profile: Profile
    load_s: float = 0.0
    pipeline: tuple[tuple[PipelineStage, Profile], ...] = ()
    clock_sensitivity: float = 1.0
    max_batch: int | None = None
    context_tokens: int | None = None
    gpus: int = 1

    @property
    def clock_sensitivities(self) -> tuple[float, ...]:
        """Clock sensitivity of each stage that runs by itself."""
        return tuple(stage.clock_sensitivity for stage, _ in self.pipeline) or (
            self.clock_sensitivity,
        )

    @property
    def stages(self) -> tuple[tuple[PipelineStage, Profile], ...]:
        """Stages that run by themselves, with their profiles."""
        return self.pipeline or ((IN_ONE_PIECE, self.profile),)


POISSON = Dispersion(at_1s=1.0, at_10s=1.0)


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """A task with an SLO and a demand.

    Attributes:
        name: Name that clients use.
        slo_latency_s: Latency objective, s.
        slo_percentile: Percentile of the latency objective.
        demand_rps: Load to serve, req/s.
        variants: Networks for the task, at least one.
        overload_weight: Weight of an unserved request, > 0.
        replicas_min: Least number of segments, >= 1.
        spread: Domain that segments are spread over, and whose loss counts; None: they need not be
            spread, and the loss of a GPU counts.
        survive: Share of the demand that must be served after such a loss, 0..1.
        slo_first_token_s: Objective of the time to the first token, s.
        slo_token_s: Objective of the mean time between tokens, s.
        dispersion: Burstiness of its load.
        servers: Pools of servers that answer it instead of segments, by name.
        fills: Routers fill its segments one after another; else they load them evenly.
    """

    name: str
    slo_latency_s: float
    slo_percentile: float
    demand_rps: float
    variants: tuple[Variant, ...]
    overload_weight: float = 1.0
    replicas_min: int = 1
    spread: Spread | None = None
    survive: float = 0.0
    slo_first_token_s: float = math.inf
    slo_token_s: float = math.inf
    dispersion: Dispersion = POISSON
    servers: Mapping[str, ServerPool] = field(default_factory=dict)
    fills: bool = False

    @property
    def best(self) -> Variant:
        """The most accurate variant (ties: first): CLOVER's A_base."""
        return max(self.variants, key=lambda variant: variant.accuracy)


Variants = Mapping[tuple[str, str], Variant]
"""Variants by names of model and variant."""


def variants_of(models: Iterable[Model]) -> Variants:
    """Return the variants of models by name."""
    return {(model.name, variant.name): variant for model in models for variant in model.variants}


@dataclass(frozen=True, slots=True)
class SegmentKind:
    """A kind of segment that the profiles allow: one row of the catalog, `s` of the formulation.

    Attributes:
        model, variant: Names of model and variant.
        pool: Pool of its GPU.
        profile: Name of the slice kind.
        batch_size: Largest batch, items.
        processes: Worker processes on the slice.
        latency_s: Time of a full batch with every process busy, s.
        throughput_rps: Throughput of all processes together, req/s.
        energy_j: Active energy per request in full batches, J; of texts in a posed problem in
            those of the demand (`power_curve.at_load`).
        accuracy: Accuracy of the variant.
        clock_mhz: SM clock of its GPU, common to all segments there, MHz; 0: not lowered.
        stage: Stage of the variant; all figures are those of the stage.
        times_s: Times of a batch of one item, of half a batch (rounded up) and of a full one, each
            while 1, 2, .. processes of the segment run, s; empty: `latency_s`, the worst case.
        token_times: Times of a text while a full batch is generated; None: the profile has no
            tokens.
        gpus: GPUs of one node that a segment holds; above 1 each as a whole.
    """

    model: str
    variant: str
    pool: Pool
    profile: str
    batch_size: int
    processes: int
    latency_s: float
    throughput_rps: float
    energy_j: float
    accuracy: float
    clock_mhz: int = 0
    stage: PipelineStage = IN_ONE_PIECE
    times_s: tuple[tuple[float, ...], ...] = field(default=(), repr=False)
    token_times: TokenTimes | None = field(default=None, repr=False)
    gpus: int = 1

    def __hash__(self) -> int:
        # Kinds are dictionary keys everywhere; most of them differ in these already.
        return hash((self.model, self.variant, self.profile, self.latency_s, self.clock_mhz))

    @property
    def single_times_s(self) -> tuple[float, ...]:
        """Time of a single item while 1 .. `processes` of the segment run, s."""
        return self.times_s[0] if self.times_s else self.full_times_s

    @property
    def half_times_s(self) -> tuple[float, ...]:
        """Time of half a batch, rounded up, while 1 .. `processes` of the segment run, s."""
        return self.times_s[1] if self.times_s else self.full_times_s

    @property
    def full_times_s(self) -> tuple[float, ...]:
        """Time of a full batch while 1 .. `processes` of the segment run, s."""
        return self.times_s[2] if self.times_s else (self.latency_s,) * self.processes

    @property
    def queue(self) -> Queue:
        """Queue that it takes requests from."""
        return queue_of(self.model, self.variant, self.stage.index)


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment kind at a place: the element of a plan.

    Attributes:
        segment_id: Unique over the deployment's life.
        kind: Kind of the segment.
        node, gpu_uuid: Node and GPU.
        placement: Placement of its slice.
        share: Share of its queue's load, 0..1: of the model's load, or at later stages of a
            pipeline of the load that earlier stages pass on.
        peers: Further GPUs of the node that it holds as a whole.
    """

    segment_id: str
    kind: SegmentKind
    node: str
    gpu_uuid: str
    placement: Placement
    share: float
    peers: tuple[str, ...] = ()

    @property
    def gpu_uuids(self) -> tuple[str, ...]:
        """Every GPU that it holds, or holds a slice of."""
        return (self.gpu_uuid, *self.peers)

    @property
    def spec(self) -> SegmentSpec:
        """Specification that the node's agent runs."""
        return SegmentSpec(
            segment_id=self.segment_id,
            model=self.kind.model,
            variant=self.kind.variant,
            batch_size=self.kind.batch_size,
            processes=self.kind.processes,
            gpu_uuid=self.gpu_uuid,
            placement=self.placement,
            stage=self.kind.stage.index,
            peer_gpu_uuids=self.peers,
        )

    @property
    def identity(self) -> SegmentSpec:
        """All but the id: a running segment with an equal identity is kept as it is."""
        return replace(self.spec, segment_id="any")


@dataclass(frozen=True, slots=True)
class SiteLimit:
    """Power that a site may draw for the GPUs of a plan and what is beside them.

    Attributes:
        name: Name of the site.
        limit_w: Most power at the wall, W.
        setting: Setting or event that it is from.
        overhead_w: Power at the wall that no plan changes, beside the GPUs of the plan, W.
    """

    name: str
    limit_w: float
    setting: str
    overhead_w: float = 0.0


@dataclass(frozen=True, slots=True)
class Period:
    """A stretch of time with one carbon intensity per zone.

    Attributes:
        length_s: Length, s; grid time, which under replay runs faster than clocks.
        intensity_gco2e_per_kwh: Intensity by zone.
        sites: Strictest power budgets within it; None: those of now.
        eur_per_kwh: Price of electricity by zone; missing: that of now.
    """

    length_s: float
    intensity_gco2e_per_kwh: Mapping[str, float]
    sites: tuple[SiteLimit, ...] | None = None
    eur_per_kwh: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Problem:
    """Everything that a strategy may know.

    Attributes:
        gpus: The fleet.
        models: The models to serve.
        catalog: Segment kinds whose batch latency fits theta x SLO and whose memory fits.
        objective: The objective.
        running: Segments that run now, with their current shares.
        seed: Seed for strategies that draw random numbers.
        time_limit_s: Limit of the strategy's time, s.
        batch_sizes: Batch sizes that a segment may have; the catalog keeps to them.
        forecast: Carbon intensity in the coming periods, the current one first; empty: only the
            current one is known.
        placement: Rule for placement where the configuration leaves a choice.
        accuracy_price: Emissions that a percentage point of accuracy of a request is worth, by
            model, gCO2e; missing: CLOVER's lambda says it.
        embodied_gco2e_per_s: Embodied carbon of a powered GPU over time, by type; missing: plans do
            not count it.
        sites: Power budgets in force.
        boot_s: Measured times from a worker's start to its first answer, by model and variant, s;
            missing: as stated (`Variant.load_s`).
        pays_back_h: Time within which a change must gain its price, h.
        pools: Number of GPUs per pool.
        node_sizes: Per pool, how many of its nodes have how many GPUs of it; empty while no
            variant takes several GPUs.
    """

    gpus: tuple[Gpu, ...]
    models: tuple[Model, ...]
    catalog: tuple[SegmentKind, ...]
    objective: Objective
    running: tuple[Segment, ...] = ()
    seed: int = 0
    time_limit_s: float = 5.0
    batch_sizes: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    forecast: tuple[Period, ...] = ()
    placement: PlacementRule = "least_change"
    accuracy_price: Mapping[str, float] = field(default_factory=dict)
    embodied_gco2e_per_s: Mapping[str, float] = field(default_factory=dict)
    sites: tuple[SiteLimit, ...] = ()
    boot_s: Mapping[tuple[str, str], float] = field(default_factory=dict)
    pays_back_h: float = 1.0
    pools: Counter[Pool] = field(init=False, compare=False, repr=False)
    node_sizes: Mapping[Pool, Counter[int]] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "pools", _counted(gpu.pool for gpu in self.gpus))
        together = any(variant.gpus > 1 for model in self.models for variant in model.variants)
        object.__setattr__(self, "node_sizes", _node_sizes(self.gpus) if together else {})

    def groups(self, pool: Pool, gpus: int) -> int:
        """Return how many groups of so many GPUs the nodes of a pool have."""
        sizes = self.node_sizes.get(pool, Counter())
        return sum(count * (size // gpus) for size, count in sizes.items())


def _counted(pools: Iterable[Pool]) -> Counter[Pool]:
    """Count pools; most of a large fleet's are one object, and hashing each would be slow."""
    seen: dict[int, Pool] = {}
    numbers = Counter(id(seen.setdefault(id(pool), pool)) for pool in pools)
    counted: Counter[Pool] = Counter()
    for number, count in numbers.items():
        counted[seen[number]] += count
    return counted


def _node_sizes(gpus: Iterable[Gpu]) -> dict[Pool, Counter[int]]:
    sizes: dict[Pool, Counter[int]] = {}
    for (_, pool), size in Counter((gpu.node, gpu.pool) for gpu in gpus).items():
        sizes.setdefault(pool, Counter())[size] += 1
    return sizes


@dataclass(frozen=True, slots=True)
class Configuration:
    """A strategy's decision: the configuration graph (CLOVER Def. 1) with its load.

    Attributes:
        segments: Number of segments of each kind.
        load_rps: Load of all segments of a kind together, req/s. A pipeline's load goes through
            each of its stages.
        gap: Proven relative optimality gap of the objective; None: nothing is proven.
        limited: Power at the wall that the strategy would draw without a budget, W, by site whose
            power budget makes the decision worse.
    """

    segments: Mapping[SegmentKind, int]
    load_rps: Mapping[SegmentKind, float]
    gap: float | None = None
    limited: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Score:
    """Score of a configuration under a problem's objective; compare with `worth`.

    Attributes:
        unserved_rps: Demand per model that is not served within the SLO, req/s.
        objective: Weighted sum of the objective's goals, less `reconfiguration`, percentage points.
        accuracy: Mean accuracy per model over its served load.
        latency_s: Predicted latency per model at the SLO's percentile, s.
        power_w: Fleet power, W.
        carbon_gco2e_per_h: Fleet emissions, gCO2e/h.
        cost_eur_per_h: Cost of the fleet's energy and, with `objective.kind: cost`, of its carbon,
            EUR/h; None: no price is known.
        gpus: GPUs whose idle power counts.
        floor_violation: Distances of the models' mean accuracy below the floor, summed up, each as
            a share of its best variant's.
        reconfiguration: Price of the change from what runs, percentage points.
        worst_unserved: Largest unserved share of a model's demand, times its weight, among the
            models that the fleet can serve at all; 0 where overload is not shared out
            (`Objective.overload`).
        gpus_in_use: The fewest GPUs that hold the slices.
        gpcs: Compute slices in use.
        loading_s: Longest loading time of a variant of which a segment has to be started, s.
        active_power_w: Power above idle, W.
        ties: Tie-breaker between equal objectives, larger is better.
        refused_rps: All unserved load, weighted by model (`Model.overload_weight`).
        site_w: Power at the wall of each site with a budget, W.
        over_budget: Power above the sites' budgets, beyond that of idle nodes, as shares of the
            budgets, summed up.
    """

    unserved_rps: Mapping[str, float]
    objective: float
    accuracy: Mapping[str, float]
    latency_s: Mapping[str, float]
    power_w: float
    carbon_gco2e_per_h: float
    gpus: int
    floor_violation: float = 0.0
    reconfiguration: float = 0.0
    worst_unserved: float = 0.0
    gpus_in_use: int = 0
    gpcs: int = 0
    loading_s: float = 0.0
    active_power_w: float = 0.0
    ties: tuple[float, ...] = ()
    refused_rps: float = 0.0
    site_w: Mapping[str, float] = field(default_factory=dict)
    over_budget: float = 0.0
    cost_eur_per_h: float | None = None

    @property
    def shortage(self) -> tuple[float, float, float, float]:
        """Failures that no objective outweighs, 0 is best.

        Power above a budget, starved models, refusals, low accuracy. To six digits: the rest is
        left by a solver's tolerance, and decides nothing.
        """
        refused_rps = float(f"{self.refused_rps:.6g}")
        low = round(self.floor_violation, 6)
        return round(self.over_budget, 6), round(self.worst_unserved, 6), refused_rps, low

    @property
    def worth(self) -> tuple[float, ...]:
        """Larger is better: within budgets, then serve, keep the floor, then the objective."""
        return (*(-each for each in self.shortage), self.objective, *self.ties)
