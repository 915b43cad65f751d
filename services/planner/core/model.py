"""The planner's records: what is known, what may run, what should run.

    Problem --strategy--> Configuration --placement--> tuple[Segment, ...] --rollout--> stages

Everything here is frozen: a strategy is a pure function of a Problem.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from cinquefoil.gpuagent.v1.records import Performance, Placement, SegmentSpec, SliceProfile
from services.kit.config import Objective, PlacementRule, Spread
from services.kit.mig import Geometry
from services.kit.profiles.core.language import TokenTimes
from services.kit.profiles.core.profile import Profile, SliceShape


@dataclass(frozen=True, slots=True)
class GpuType:
    """A GPU type, as its agent read it from the driver.

    Attributes:
        name: For example "a100-40gb".
        geometry: What it can be cut into.
        sm_count: Streaming multiprocessors of the whole GPU.
        idle_power_w: Power with no CUDA context open, W.
        context_power_w: Power with one open and nothing computed, as where segments wait, W.
        max_power_w: Default power limit, W.
        max_clock_mhz: Highest SM clock, MHz; 0: unknown, so that plans leave its clock alone.
        core_gmacs_per_s: CPU cores only: multiply-accumulates of one core, measured, 1e9/s.
        performance: How fast it is; None: it is CPU cores, or nothing is known of it.
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
    def use_power_w(self) -> float:
        """Power that a GPU in use draws beyond one without a segment, W, before it computes."""
        return max(self.context_power_w - self.idle_power_w, 0.0)

    def __hash__(self) -> int:
        # Kinds and pools are dictionary keys everywhere; hashing a geometry each time is slow.
        return hash(self.name)

    def shape(self, kind: SliceProfile) -> SliceShape:
        """Return what a profile must know of a slice of `kind`."""
        return SliceShape(
            gpu=self.name,
            profile=kind.name,
            compute_slices=kind.compute_slices,
            sm_count=kind.sm_count,
            gpu_sm_count=self.sm_count,
            memory_bytes=kind.memory_bytes,
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
    """

    type: GpuType
    zone: str
    pue: float
    intensity_gco2e_per_kwh: float

    def __hash__(self) -> int:
        return hash(self.zone)  # tells most apart, and is what tells them apart soonest

    def carbon_gco2e(self, energy_j: float) -> float:
        """Return the carbon of device energy spent here, PUE included."""
        return energy_j * self.pue * self.intensity_gco2e_per_kwh / 3.6e6


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU of the fleet.

    Attributes:
        uuid: Its identity.
        node: The node it is in.
        pool: What it counts as.
        slices: Slices that exist on it now.
        clock_mhz: What its SM clock is held at now, MHz; 0: not held.
    """

    uuid: str
    node: str
    pool: Pool
    slices: tuple[Placement, ...] = ()
    clock_mhz: int = 0


@dataclass(frozen=True, slots=True)
class PipelineStage:
    """Which part of a network runs; one in one piece is its own only stage.

    Attributes:
        index: 0 .. of - 1.
        of: Stages of the network.
        budget: Share of the latency rule that is this stage's; those of a network sum to 1.
        transfer_s: From its answer until the next stage has it, s.
        clock_sensitivity: How its latency follows the SM clock, 0..1; in one piece: see `Variant`.
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
"""What segments take their requests from: model, variant and stage.

Requests of clients wait in one queue for all variants of their model, ("digits", "", 0); those that
a pipeline has begun wait for that pipeline's next stage, ("digits", "large", 1).
"""


def queue_of(model: str, variant: str, stage: int) -> Queue:
    """Return where the segments of a stage take their requests from."""
    return (model, variant, stage) if stage else (model, "", 0)


@dataclass(frozen=True, slots=True, eq=False)
class Variant:
    """A trained network.

    Attributes:
        name: Its name.
        accuracy: In the model's unit, > 0.
        profile: How fast it runs, and what it draws.
        load_s: Time a worker takes to load it, s (InfAdapter's readiness time).
        pipeline: Its stages with their profiles, where it runs as a pipeline; else ().
        clock_sensitivity: How its latency follows the SM clock, 0 (not) .. 1 (in proportion).
        max_batch: Largest batch that its file takes; None: any.
        context_tokens: Most tokens of a prompt and its answer; None: not stated.
    """

    name: str
    accuracy: float
    profile: Profile
    load_s: float = 0.0
    pipeline: tuple[tuple[PipelineStage, Profile], ...] = ()
    clock_sensitivity: float = 1.0
    max_batch: int | None = None
    context_tokens: int | None = None

    @property
    def clock_sensitivities(self) -> tuple[float, ...]:
        """How what runs by itself follows the SM clock, one per stage."""
        return tuple(stage.clock_sensitivity for stage, _ in self.pipeline) or (
            self.clock_sensitivity,
        )

    @property
    def stages(self) -> tuple[tuple[PipelineStage, Profile], ...]:
        """What runs by itself, with its profile."""
        return self.pipeline or ((IN_ONE_PIECE, self.profile),)


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """A task with an SLO and a demand.

    Attributes:
        name: What clients name.
        slo_latency_s: Latency objective, s.
        slo_percentile: Its percentile.
        demand_rps: Load to serve, req/s.
        variants: Networks for the task, at least one.
        overload_weight: How much an unserved request counts, > 0.
        replicas_min: Least number of segments, >= 1.
        spread: What they are spread over, and the loss of one of which counts; None: they need not
            be spread, and the loss of a GPU counts.
        survive: Share of the demand that is still served after such a loss, 0..1.
        slo_first_token_s: Objective of the time to the first token, s.
        slo_token_s: Objective of the mean time between tokens, s.
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

    @property
    def best(self) -> Variant:
        """The most accurate variant (ties: first): CLOVER's A_base."""
        return max(self.variants, key=lambda variant: variant.accuracy)


Variants = Mapping[tuple[str, str], Variant]
"""By names of model and variant."""


def variants_of(models: Iterable[Model]) -> Variants:
    """Return the variants of models."""
    return {(model.name, variant.name): variant for model in models for variant in model.variants}


@dataclass(frozen=True, slots=True)
class SegmentKind:
    """A kind of segment that the profiles allow: one row of the catalog, `s` of the formulation.

    Attributes:
        model, variant: What runs.
        pool: Where: which GPUs.
        profile: Slice kind's name.
        batch_size: Largest batch, items.
        processes: Worker processes on the slice.
        latency_s: One full batch with every process busy, s.
        throughput_rps: All processes together, req/s.
        energy_j: Active energy per request, J.
        accuracy: The variant's.
        clock_mhz: SM clock of the GPU it is on, which all segments there share; 0: not lowered.
        stage: Which part of the variant runs; figures are this part's.
        times_s: Of a batch of one item, of half a batch (rounded up) and of a full one, each while
            1, 2, .. processes of the segment run, s; empty: as `latency_s`, the worst case.
        token_times: Where the profile knows tokens: of a text while a full batch is generated.
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

    def __hash__(self) -> int:
        # Kinds are dictionary keys everywhere; these tell most of them apart already.
        return hash((self.model, self.variant, self.profile, self.latency_s, self.clock_mhz))

    @property
    def single_times_s(self) -> tuple[float, ...]:
        """Time of one item by itself while 1 .. `processes` of the segment run, s."""
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
        """Where it takes its requests from."""
        return queue_of(self.model, self.variant, self.stage.index)


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment kind at a place: what a plan is made of.

    Attributes:
        segment_id: Unique over the deployment's life.
        kind: What it is.
        node, gpu_uuid: Where.
        placement: Its slice.
        share: Share of what comes to its queue, 0..1: of the model's load, but at the later stages
            of a pipeline of what the stages before pass on.
    """

    segment_id: str
    kind: SegmentKind
    node: str
    gpu_uuid: str
    placement: Placement
    share: float

    @property
    def spec(self) -> SegmentSpec:
        """What the node's agent must run."""
        return SegmentSpec(
            segment_id=self.segment_id,
            model=self.kind.model,
            variant=self.kind.variant,
            batch_size=self.kind.batch_size,
            processes=self.kind.processes,
            gpu_uuid=self.gpu_uuid,
            placement=self.placement,
            stage=self.kind.stage.index,
        )

    @property
    def identity(self) -> SegmentSpec:
        """What must be equal for a running segment to be kept as it is: all but its id."""
        return replace(self.spec, segment_id="any")


@dataclass(frozen=True, slots=True)
class Period:
    """A stretch of time with one carbon intensity per zone.

    Attributes:
        length_s: How long it lasts, s; grid time, which under replay runs faster than clocks.
        intensity_gco2e_per_kwh: By zone.
    """

    length_s: float
    intensity_gco2e_per_kwh: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Problem:
    """All that a strategy may know.

    Attributes:
        gpus: The fleet.
        models: What is to be served.
        catalog: Segment kinds whose batch latency fits theta x SLO and whose memory fits.
        objective: What a good plan is.
        running: Segments that run now (shares as they are).
        seed: For strategies that draw numbers.
        time_limit_s: Longest a strategy may think, s.
        batch_sizes: Batch sizes that a segment may have; the catalog keeps to them already.
        forecast: Carbon intensity in the periods to come, the present one first; empty: only the
            present is known.
        placement: How segments find places, where the configuration leaves a choice.
        pools: Number of GPUs per pool.
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
    pools: Counter[Pool] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "pools", _counted(gpu.pool for gpu in self.gpus))


def _counted(pools: Iterable[Pool]) -> Counter[Pool]:
    """Count pools; of a large fleet most are the same object, and hashing each would be slow."""
    seen: dict[int, Pool] = {}
    numbers = Counter(id(seen.setdefault(id(pool), pool)) for pool in pools)
    counted: Counter[Pool] = Counter()
    for number, count in numbers.items():
        counted[seen[number]] += count
    return counted


@dataclass(frozen=True, slots=True)
class Configuration:
    """What a strategy decides: the configuration graph (CLOVER Def. 1) with its load.

    Attributes:
        segments: How many of each kind.
        load_rps: Load sent to each kind, all its segments together, req/s. What a pipeline serves
            goes through each of its stages.
        gap: Proven relative optimality gap of the objective, or None where nothing is proven.
    """

    segments: Mapping[SegmentKind, int]
    load_rps: Mapping[SegmentKind, float]
    gap: float | None = None


@dataclass(frozen=True, slots=True)
class Score:
    """What a configuration is worth under a problem's objective; compare with `worth`.

    Attributes:
        unserved_rps: Demand per model that is not served within the SLO, req/s.
        objective: Weighted sum of the objective's goals, less `reconfiguration`, percentage points.
        accuracy: Mean accuracy per model over its served load.
        latency_s: Predicted latency per model at the SLO's percentile, s.
        power_w: Fleet power, W.
        carbon_gco2e_per_h: Fleet emissions, gCO2e/h.
        gpus: GPUs whose idle power counts.
        floor_violation: By how much mean accuracy misses the floor, as a share of the best
            variant's, weighted by demand.
        reconfiguration: Price of getting there from what runs, percentage points.
        worst_unserved: Largest share of a model's demand that is not served, times its weight,
            among the models that the fleet can serve at all; 0 where overload is not shared out
            (`Objective.overload`).
        gpus_in_use: The fewest GPUs that hold the slices.
        gpcs: Compute slices in use.
        loading_s: Longest loading time of a variant of which a segment has to be started, s.
        active_power_w: Power beyond idle, W.
        ties: What decides between equal objectives, larger is better.
        refused_rps: All that is not served, weighed by model (`Model.overload_weight`).
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

    @property
    def shortage(self) -> tuple[float, float, float]:
        """What no objective makes up for, 0 is best: starving a model, refusing, bad answers.

        To six digits: what lies below is left by a solver's tolerance, and decides nothing.
        """
        refused_rps = float(f"{self.refused_rps:.6g}")
        return round(self.worst_unserved, 6), refused_rps, round(self.floor_violation, 6)

    @property
    def worth(self) -> tuple[float, ...]:
        """Larger is better: first serve, then keep the accuracy floor, then the objective."""
        return (*(-each for each in self.shortage), self.objective, *self.ties)
