"""Messages of `cinquefoil.gpuagent.v1` as frozen values; written by `make protos`."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import IntEnum

from cinquefoil.condition.v1.records import Condition


class SegmentState(IntEnum):
    """Where a segment stands in its life."""

    UNSPECIFIED = 0
    # Workers are loading; not yet for traffic.
    STARTING = 1
    # Every worker answers.
    READY = 2
    # At least one worker is down and is being restarted.
    DEGRADED = 3
    # Finishing accepted requests; takes no new ones.
    DRAINING = 4
    # Every worker failed too often and is not restarted; `StartSegment` tries again.
    QUARANTINED = 5

    @classmethod
    def _missing_(cls, value: object) -> "SegmentState":
        """Return UNSPECIFIED for a value that only newer programs know."""
        return cls.UNSPECIFIED


@dataclass(frozen=True, slots=True, order=True)
class SliceProfile:
    """One size of slice that a GPU type can be cut into.

    Attributes:
        name: NVIDIA's name, for example "3g.20gb"; "whole" for a GPU without MIG; "2c" for two CPU
            cores.
        gpu_instance_profile_id: Hardware profile id, as `nvidia-smi mig -lgip` prints it. 0 is
            valid (7g); unused for "whole".
        compute_slices: Compute slices (GPCs), 1..7. For "whole": all of the GPU's.
        memory_slices: Memory slices taken: the length of the placement.
        starts: Legal first memory slices.
        max_count: Most instances of this profile on one GPU.
        sm_count: Streaming multiprocessors. Not a constant share of the GPU: read from the driver.
        memory_bytes: Memory of the slice. Unit: bytes.
    """

    name: str = ""
    gpu_instance_profile_id: int = 0
    compute_slices: int = 0
    memory_slices: int = 0
    starts: tuple[int, ...] = ()
    max_count: int = 0
    sm_count: int = 0
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True, order=True)
class Performance:
    """Speed of a GPU type, as profiles that were not measured need it.

    Attributes:
        fp16_tflops: Dense matrix products of FP16 at the highest clock. Unit: 1e12 operations/s.
        memory_gb_per_s: Memory bandwidth. Unit: 1e9 bytes/s.
        like: GPU type whose clock curve and factors apply: its own, or the most similar one with a
            table.
    """

    fp16_tflops: float = 0.0
    memory_gb_per_s: float = 0.0
    like: str = ""


@dataclass(frozen=True, slots=True)
class GpuType:
    """A GPU type's geometry and power envelope. The cores of a CPU are such a type too: a core counts
    as a compute slice, a memory slice and a multiprocessor.

    Attributes:
        name: Table name, for example "a100-40gb".
        product_name: The driver's product name, for example "NVIDIA A100-SXM4-40GB".
        memory_slices: Memory slices of the whole GPU (8 on A100/H100, 4 on A30, 1 without MIG).
        sm_count: Streaming multiprocessors of the whole GPU.
        profiles: Sizes of slice; exactly one, "whole", without MIG.
        idle_power_w: Power drawn with no CUDA context open. Unit: W.
        max_power_w: Default power limit. Unit: W.
        max_clock_mhz: Highest SM clock. Unit: MHz.
        core_gmacs_per_s: CPU cores only (type "cpu-<cores>"): multiply-accumulates that one core
            does, measured when the agent first started there with a large matrix product. Unit:
            1e9/s.
        context_power_w: Power drawn with a CUDA context open and nothing computed, as where
            segments wait. 0: the agent is older than this field; as idle_power_w. Unit: W.
        performance: Its speed. Unset: CPU cores, or the agent is older than this field.
    """

    name: str = ""
    product_name: str = ""
    memory_slices: int = 0
    sm_count: int = 0
    profiles: tuple[SliceProfile, ...] = ()
    idle_power_w: float = 0.0
    max_power_w: float = 0.0
    max_clock_mhz: int = 0
    core_gmacs_per_s: float = 0.0
    context_power_w: float = 0.0
    performance: Performance | None = None


@dataclass(frozen=True, slots=True, order=True)
class Placement:
    """The place of a slice on its GPU. As text: `{profile}@{start}`.

    Attributes:
        profile: Slice size, a SliceProfile.name of the GPU's type.
        start: First memory slice.
    """

    profile: str = ""
    start: int = 0

    def __str__(self) -> str:
        return f"{self.profile}@{self.start}"


@dataclass(frozen=True, slots=True)
class Slice:
    """A slice that exists.

    Attributes:
        placement: Where it lies.
        uuid: "MIG-..." UUID; the GPU's UUID for a whole GPU.
    """

    placement: Placement = Placement()
    uuid: str = ""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU as its agent reports it.

    Attributes:
        uuid: NVML UUID, for example "GPU-6b0d..."; "CPU-..." for the cores of a node.
        index: Index on the node; may change over a reset, so never an identity.
        type: Geometry.
        mig_enabled: MIG mode is enabled. False: one "whole" slice. True for CPU cores.
        slices: Slices that exist now, in order of start.
        clock_mhz: Current SM clock. Unit: MHz.
        locked_clock_mhz: SM clock that the agent holds for the plan; 0: not held. With the agent's
            own clock loop this is the highest clock it uses. Unit: MHz.
        clock_lockable: The agent may hold its clock; otherwise plans leave it alone.
        wanted: An operator waits for it (GpuAgentService.Reserve), or its agent leaves: plans put
            nothing there, and move its segments elsewhere. Reported to the planner only.
    """

    uuid: str = ""
    index: int = 0
    type: GpuType = GpuType()
    mig_enabled: bool = False
    slices: tuple[Slice, ...] = ()
    clock_mhz: int = 0
    locked_clock_mhz: int = 0
    clock_lockable: bool = False
    wanted: bool = False


@dataclass(frozen=True, slots=True, order=True)
class MpsLimit:
    """Limits of one process on its slice, as MPS enforces them.

    Attributes:
        thread_percentage: Share of the slice's streaming multiprocessors that it may occupy,
            1..100. The shares of a slice's processes may add up to more than 100: they then compete
            for the rest. Unit: %.
        memory_bytes: Device memory that it may allocate. 0: no bound. Unit: bytes.
    """

    thread_percentage: int = 0
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True)
class SegmentSpec:
    """A variant with its batch size and processes, to run on one slice.

    Attributes:
        segment_id: Unique over the deployment and over time; chosen by the planner.
        model: A model of the deployment file.
        variant: A variant of that model.
        batch_size: Largest batch, in items, 1..1024.
        processes: Worker processes (MPS clients) on the slice, 1..64.
        gpu_uuid: The GPU it runs on.
        placement: The slice it runs on.
        limits: What each process may take of the slice, one entry per process. Empty: equal shares
            of its threads, and no bound on memory.
        stage: Which part of the variant, where it is a pipeline: its stages are numbered from 0 to
            63 at most. 0 for a variant in one piece.
        peer_gpu_uuids: Further GPUs of the same node that it runs on, each as a whole, besides
            `gpu_uuid`: the parts of one language model. All are then uncut, and so is `gpu_uuid`.
            Empty: one GPU.
    """

    segment_id: str = ""
    model: str = ""
    variant: str = ""
    batch_size: int = 0
    processes: int = 0
    gpu_uuid: str = ""
    placement: Placement = Placement()
    limits: tuple[MpsLimit, ...] = ()
    stage: int = 0
    peer_gpu_uuids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment as its agent reports it.

    Attributes:
        spec: What was requested.
        state: Its present state.
        endpoints: Worker endpoints ("host:port"), one per process. A restarted worker keeps its
            endpoint.
        restarts: Restarts of its workers so far.
        reason: Why a worker is down or is no longer restarted, for a person. Empty: none is.
        execution_provider: ONNX Runtime's execution provider that its workers' sessions use, as
            they say. Empty: another runtime computes, or no worker has answered yet.
    """

    spec: SegmentSpec = SegmentSpec()
    state: SegmentState = SegmentState.UNSPECIFIED
    endpoints: tuple[str, ...] = ()
    restarts: int = 0
    reason: str = ""
    execution_provider: str = ""


@dataclass(frozen=True, slots=True)
class Node:
    """A node as its agent reports it.

    Attributes:
        name: Node name of the deployment file.
        zone: Electricity zone.
        simulated: True where the GPUs are simulated.
        gpus: The GPUs that this agent may use.
        segments: Segments that run now.
        pue: Power usage effectiveness, measured with a meter of the node's wall power: wall energy
            over the energy of all its GPUs, over the last minutes, within 1..3. Unset: it is not
            measured, and the deployment file's value applies. Unit: 1.
        conditions: What keeps the node, or a model on it, from working.
    """

    name: str = ""
    zone: str = ""
    simulated: bool = False
    gpus: tuple[Gpu, ...] = ()
    segments: tuple[Segment, ...] = ()
    pue: float | None = None
    conditions: tuple[Condition, ...] = ()


@dataclass(frozen=True, slots=True, order=True)
class SegmentEnergy:
    """Energy and work of one segment on one GPU.

    Attributes:
        segment_id: The segment.
        model: The model it serves.
        variant: The variant it runs.
        active_j: Active energy attributed to it. Unit: J.
        requests: Requests it answered.
        busy_s: Busy time summed over its workers. Unit: s.
        batches: Batches that its workers ran, answered or not: those of busy_s and active_j.
        idle_share_j: Idle energy attributed to it by `nodes.<n>.idle_share`: part of the GPU's
            idle_j, reported separately and never part of active_j. Unit: J.
        granted_j: Energy granted in its workers' receipts; it follows active_j. Unit: J.
        slice: The slice it ran on, for example "3g.20gb@4". Empty: ended segments of one variant in
            sum.
        stage: Which stage of a pipeline it ran; a pipeline's requests are those of its stage 0.
    """

    segment_id: str = ""
    model: str = ""
    variant: str = ""
    active_j: float = 0.0
    requests: int = 0
    busy_s: float = 0.0
    batches: int = 0
    idle_share_j: float = 0.0
    granted_j: float = 0.0
    slice: str = ""
    stage: int = 0


@dataclass(frozen=True, slots=True)
class GpuEnergy:
    """Energy since the agent first saw the GPU. The parts sum to the whole: total_j = idle_j + sum
    over segments of active_j + unattributed_j.

    Attributes:
        gpu_uuid: The GPU.
        total_j: Metered by the device. Unit: J.
        idle_j: Idle power over the time the GPU was powered. Unit: J.
        unattributed_j: Active energy that no segment's busy time explains. Unit: J.
        power_w: Power now. Unit: W.
        segments: Per segment that ran on this GPU, those that have ended included.
        method: How total_j was obtained: "counter", "integrated", "rapl" (a CPU's counter) or
            "model".
        error_ratio: |sum of the parts - total_j| / total_j since the beginning: the account's
            consistency check.
        since: When this account began. The same as before: its counters only grew, and a lower one
            is late. Later than before: all counters restarted at 0. Unset: the agent does not
            report it.
    """

    gpu_uuid: str = ""
    total_j: float = 0.0
    idle_j: float = 0.0
    unattributed_j: float = 0.0
    power_w: float = 0.0
    segments: tuple[SegmentEnergy, ...] = ()
    method: str = ""
    error_ratio: float = 0.0
    since: datetime | None = None


@dataclass(frozen=True, slots=True, order=True)
class ScaleOut:
    """A GPU that runs at its highest allowed clock while some of its requests are late or nearly so:
    its load needs more capacity than a clock can give.

    Attributes:
        gpu_uuid: The GPU.
        models: Models without slack.
        reason: The observation, for a person.
    """

    gpu_uuid: str = ""
    models: tuple[str, ...] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True)
class CreateSlice:
    """Create a slice at an explicit placement. As text: `create {placement} on {gpu_uuid}`.

    Attributes:
        gpu_uuid: The GPU.
        placement: Where on the GPU.
    """

    gpu_uuid: str = ""
    placement: Placement = Placement()

    def __str__(self) -> str:
        return f"create {self.placement} on {self.gpu_uuid}"


@dataclass(frozen=True, slots=True)
class DestroySlice:
    """Destroy a slice on which nothing runs. As text: `destroy {placement} on {gpu_uuid}`.

    Attributes:
        gpu_uuid: The GPU.
        placement: Which slice.
    """

    gpu_uuid: str = ""
    placement: Placement = Placement()

    def __str__(self) -> str:
        return f"destroy {self.placement} on {self.gpu_uuid}"


@dataclass(frozen=True, slots=True)
class StartSegment:
    """Start a segment's workers on an existing slice and wait until they answer. As text: `start
    {spec.segment_id} on {spec.placement} of {spec.gpu_uuid}`.

    Attributes:
        spec: What to run. A slice with a segment of the same model accepts one more, its successor:
            both must fit, and the first is stopped soon. Any other slice in use:
            FAILED_PRECONDITION.
    """

    spec: SegmentSpec = SegmentSpec()

    def __str__(self) -> str:
        return f"start {self.spec.segment_id} on {self.spec.placement} of {self.spec.gpu_uuid}"


@dataclass(frozen=True, slots=True)
class StopSegment:
    """Drain a segment's workers, then stop them. As text: `stop {segment_id}`.

    Attributes:
        segment_id: Which segment.
        grace: How long accepted requests may take before workers are killed.
    """

    segment_id: str = ""
    grace: timedelta = timedelta()

    def __str__(self) -> str:
        return f"stop {self.segment_id}"


@dataclass(frozen=True, slots=True, order=True)
class LockClock:
    """Hold a GPU's SM clock, or release it. As text: `lock the clock of {gpu_uuid} at {clock_mhz} MHz
    (0: release it)`.

    Attributes:
        gpu_uuid: The GPU.
        clock_mhz: SM clock to hold; the driver takes the nearest one it supports. 0: release the
            clock to the driver. Unit: MHz.
    """

    gpu_uuid: str = ""
    clock_mhz: int = 0

    def __str__(self) -> str:
        return f"lock the clock of {self.gpu_uuid} at {self.clock_mhz} MHz (0: release it)"


@dataclass(frozen=True, slots=True, order=True)
class SetMigMode:
    """Needs an idle GPU, without slices or segments, and the node's `allow_mig_mode`. As text: `set
    MIG mode of {gpu_uuid} to {enabled}`.

    Attributes:
        gpu_uuid: The GPU.
        enabled: True: the GPU can be cut into slices.
    """

    gpu_uuid: str = ""
    enabled: bool = False

    def __str__(self) -> str:
        return f"set MIG mode of {self.gpu_uuid} to {self.enabled}"


@dataclass(frozen=True, slots=True)
class Action:
    """One action of a change.

    Attributes:
        create_slice: Create a slice at an explicit placement.
        destroy_slice: Destroy a slice on which nothing runs.
        start_segment: Start a segment's workers on an existing slice and wait until they answer.
        stop_segment: Drain a segment's workers and stop them.
        lock_clock: Hold a GPU's SM clock, or release it.
        set_mig_mode: Switch MIG mode on or off.
    """

    create_slice: CreateSlice | None = None
    destroy_slice: DestroySlice | None = None
    start_segment: StartSegment | None = None
    stop_segment: StopSegment | None = None
    lock_clock: LockClock | None = None
    set_mig_mode: SetMigMode | None = None


@dataclass(frozen=True, slots=True)
class ActionGroup:
    """Actions that run at the same time.

    Attributes:
        actions: These run at the same time.
    """

    actions: tuple[Action, ...] = ()


@dataclass(frozen=True, slots=True)
class Change:
    """Actions that the node carries out as one transaction.

    The state that it touches is written to disk first. When an action fails, or the agent dies
    half-way, everything done is undone: slices are back at their placements, segments run, clocks
    are held as before. What no action names, and what an action requests but already holds, is left
    alone, workers included. A second change of the same content does nothing.

    A change names each slice, segment, clock and mode at most once, else INVALID_ARGUMENT. Until it
    has ended, other steps of the node wait.

    Attributes:
        groups: In order: a group begins when all of the one before has succeeded.
    """

    groups: tuple[ActionGroup, ...] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """A change to one node. Every action is idempotent: requesting a state that already holds does
    nothing.

    Attributes:
        step_id: Unique within the rollout; echoed in the result.
        term: Term of the planner that sends it. An agent that was sent a step of a higher term
            answers FAILED_PRECONDITION, and does nothing. 0: a planner that counts no terms; never
            refused.
        create_slice: Create a slice at an explicit placement.
        destroy_slice: Destroy a slice on which nothing runs.
        start_segment: Start a segment's workers on an existing slice and wait until they answer.
        stop_segment: Drain a segment's workers and stop them.
        lock_clock: Hold a GPU's SM clock, or release it.
        change: Several actions as one: all of them, or none.
        set_mig_mode: Switch MIG mode on or off.
    """

    step_id: str = ""
    term: int = 0
    create_slice: CreateSlice | None = None
    destroy_slice: DestroySlice | None = None
    start_segment: StartSegment | None = None
    stop_segment: StopSegment | None = None
    lock_clock: LockClock | None = None
    change: Change | None = None
    set_mig_mode: SetMigMode | None = None


@dataclass(frozen=True, slots=True, order=True)
class StepResult:
    """The result of a step.

    Attributes:
        step_id: The step.
        ok: True: the node is now in the requested state, as read back from the hardware.
        status: When not ok: the status word, for example "FAILED_PRECONDITION".
        message: When not ok: what went wrong, for a person.
        elapsed_s: Wall-clock time taken. Unit: s.
        not_restored: Of a change that failed: what could not be restored, each a sentence for a
            person. Empty: the node is as it was before the change.
    """

    step_id: str = ""
    ok: bool = False
    status: str = ""
    message: str = ""
    elapsed_s: float = 0.0
    not_restored: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DesiredGpu:
    """The desired state of one GPU.

    Attributes:
        gpu_uuid: The GPU.
        mig_enabled: MIG mode. Unset: as it is.
        slices: All slices that it is to have. Ignored for a GPU without MIG: it is one slice,
            "whole".
        segments: All segments that are to run on it. Their gpu_uuid is this GPU's, or empty.
        clock_mhz: SM clock to hold; 0: none. Unset: as it is. Unit: MHz.
    """

    gpu_uuid: str = ""
    mig_enabled: bool | None = None
    slices: tuple[Placement, ...] = ()
    segments: tuple[SegmentSpec, ...] = ()
    clock_mhz: int | None = None


@dataclass(frozen=True, slots=True, order=True)
class Software:
    """Versions; each is empty if it is not known.

    Attributes:
        driver: NVIDIA driver.
        cuda: CUDA, as the driver supports it.
        onnxruntime: ONNX Runtime.
    """

    driver: str = ""
    cuda: str = ""
    onnxruntime: str = ""


@dataclass(frozen=True, slots=True, order=True)
class Work:
    """A request for a worker.

    Attributes:
        id: Unique on this stream; echoed in the result.
        request: A serialized inference.ModelInferRequest, untouched.
        remaining_s: Time left until the caller's deadline. 0: none. Unit: s.
        traceparent: W3C trace context of the request; empty where there is none.
        waited_s: Time since the request arrived at the caller of this stream: the worker adds its
            own to get the latency, and estimates from it how much waits there, for the division of
            credits. Unit: s.
        tracestate: W3C tracestate that goes with `traceparent`; empty where there is none.
        in_parts: The caller accepts an answer in parts (ModelStreamInfer). Otherwise a generating
            model returns its whole answer at the end.
        waiting: It can wait: work that cannot goes before it in every batch.
    """

    id: int = 0
    request: bytes = b""
    remaining_s: float = 0.0
    traceparent: str = ""
    waited_s: float = 0.0
    tracestate: str = ""
    in_parts: bool = False
    waiting: bool = False


@dataclass(frozen=True, slots=True, order=True)
class Hello:
    """A worker's description of itself.

    Attributes:
        segment_id: The segment this process belongs to.
        model: The model it serves.
        variant: The variant it runs.
        credits: Requests that may initially be in flight on this stream.
        metadata: A serialized inference.ModelMetadataResponse of the loaded file, without the
            model's name.
        decoupled: The model answers in parts: a work may have several results, or one that is
            empty.
        execution_provider: ONNX Runtime's execution provider that the session uses, as the session
            says, for example "CUDAExecutionProvider". Empty: another runtime computes.
        max_batch: Requests that the file takes at a time. 0: any number.
        in_batches: Several works run together: while one batch runs, the next may wait beyond the
            credits.
        kv_tokens_per_credit: Tokens of prompts and answers for which the model's cache of keys and
            values has room, per credit: a caller with work up to its credits gives the worker no
            more than that. 0: not stated.
        alone_reason: Why max_batch is one, for a person. Empty: it is not.
        server: Address of the model's server, where that is not the worker's own: workers that name
            the same one are full together. Empty: its own, or none.
        adapters: Adapters of the model that are loaded: a request may name one in the model's
            place.
    """

    segment_id: str = ""
    model: str = ""
    variant: str = ""
    credits: int = 0
    metadata: bytes = b""
    decoupled: bool = False
    execution_provider: str = ""
    max_batch: int = 0
    in_batches: bool = False
    kv_tokens_per_credit: int = 0
    alone_reason: str = ""
    server: str = ""
    adapters: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, order=True)
class Receipt:
    """Energy and carbon of one answer.

    Attributes:
        energy_j: Active energy of this request: its share of its batch's. Unit: J.
        idle_energy_j: Idle energy of the slice from the end of the batch before to its own, shared
            by this batch's requests. Unit: J.
        energy_method: How energy_j was obtained: "counter", "integrated" or "model".
        queue_s: Time the work waited in the worker. Unit: s.
        compute_s: Time its batch was executing. Unit: s.
        batch_size: Items in its batch.
        items: Items of this request. 0: not reported, counts as 1.
        input_tokens: Tokens of the prompt, where the model generates text. Unit: tokens.
        output_tokens: Tokens generated, including the one that ends the text. Unit: tokens.
        first_token_s: From the request's arrival at the caller of this stream to its first
            generated token. Unit: s.
        token_s: Mean time between generated tokens, after the first. 0: there were fewer than two.
            Unit: s.
        cached_tokens: Of the prompt's tokens, those that the model's server had cached. Unit:
            tokens.
    """

    energy_j: float = 0.0
    idle_energy_j: float = 0.0
    energy_method: str = ""
    queue_s: float = 0.0
    compute_s: float = 0.0
    batch_size: int = 0
    items: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    first_token_s: float = 0.0
    token_s: float = 0.0
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Result:
    """The answer to a request.

    Attributes:
        id: The work's id.
        status: Status word of google.rpc.Code, for example "INVALID_ARGUMENT". Empty: OK.
        message: When not OK: what went wrong, safe to show to the client.
        response: When OK: a serialized inference.ModelInferResponse. Empty only in the last result
            of a work of a decoupled model whose earlier results had all content.
        receipt: Its cost, if energy was spent on it: when OK, and when it failed after it ran. With
            the last result of a work only.
        more: Further results of the same work follow: a model that answers in parts.
        retry_after_s: When not OK: time after which the caller may try again, as the model's server
            states it. 0: not stated. Unit: s.
        reason: When not OK: a stable word for programs, as in google.rpc.ErrorInfo, where the
            model's server states one, for example "CONTEXT_LENGTH_EXCEEDED".
        field: When not OK: the field of the request that is wrong, where it is known.
    """

    id: int = 0
    status: str = ""
    message: str = ""
    response: bytes = b""
    receipt: Receipt | None = None
    more: bool = False
    retry_after_s: float = 0.0
    reason: str = ""
    field: str = ""
