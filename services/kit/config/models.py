"""Models with their variants, profiles and runtimes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from services.kit.config.access import ClientTls
from services.kit.config.section import Address, Fraction, Name, NonNegative, Positive, Section
from services.kit.config.servers import ServerPool
from services.kit.mig import GPUS_TOGETHER

_MIN_STAGES: Final = 2

DECODE_SENSITIVITY: Final = 0.07
"""Clock sensitivity of an answer's tokens; sources: `services.kit.profiles.core.language`."""


class AnalyticProfile(Section):
    """Parameters of the analytic profile model (`services.kit.profiles.core.analytic`).

    Attributes:
        gmacs_per_item: Multiply-accumulates per item, 1e9. Inception-V3: 5.7.
        memory_mib: Memory of one process at batch size 1, MiB.
        memory_mib_per_item: Memory each further item of a batch takes, MiB.
    """

    kind: Literal["analytic"]
    gmacs_per_item: Positive
    memory_mib: Positive = 1024.0
    memory_mib_per_item: Annotated[float, Field(ge=0)] = 32.0


class MeasuredSteps(Section):
    """Steps of a language model, as measured on a slice (`cinquefoil gpuagent profile`).

    A step gives each of its answers a token, and takes in tokens of prompts. Times and active
    energies add up.

    Attributes:
        gpu: GPU type.
        slice: Slice kind.
        gpus: GPUs that held the model together.
        fixed_s, fixed_j: Of every step.
        sequence_s, sequence_j: Of each answer.
        context_token_s, context_token_j: Of each token of prompt and answer so far, of each answer.
        prompt_token_s, prompt_token_j: Of each token of a prompt.
    """

    gpu: Name
    slice: Annotated[str, Field(min_length=1)]
    gpus: Annotated[int, Field(ge=1)] = 1
    fixed_s: Positive
    sequence_s: NonNegative = 0.0
    context_token_s: NonNegative = 0.0
    prompt_token_s: NonNegative = 0.0
    fixed_j: NonNegative = 0.0
    sequence_j: NonNegative = 0.0
    context_token_j: NonNegative = 0.0
    prompt_token_j: NonNegative = 0.0


class LanguageProfile(Section):
    """Parameters of a language model's profile (`services.kit.profiles.core.language`).

    An item is a whole answer; a batch is the answers that are generated at the same time.

    Attributes:
        parameters_b: Parameters, 1e9; of a model of experts, those of all of them.
        active_parameters_b: Parameters that a token takes, 1e9, of a model of experts. None: all.
        bytes_per_parameter: 2 for FP16, 0.5 for four bits.
        prompt_tokens: Of a usual request.
        answer_tokens: Of a usual request.
        long_prompt_tokens: Of the longest prompt whose first token `slo.ttft_s` is for, such as
            longer than 99 in 100. None: `prompt_tokens`.
        memory_mib_per_item: Memory of a slot's context, MiB.
        kv_kib_per_token: Keys and values of a token, KiB: 2 * layers that have them (few of a
            hybrid) * heads of them * size of a head * bytes of an element. Llama-3.1-8B: 128.
        prefill_sensitivity: How the time of the prompt follows the SM clock, 0 .. 1: arithmetic
            binds it.
        decode_sensitivity: How the time of the answer's tokens does, as measured by default.
        measured: What `gpuagent profile` measured, by GPU type and slice; elsewhere the formula
            counts.
    """

    kind: Literal["language"]
    parameters_b: Positive
    active_parameters_b: Positive | None = None
    bytes_per_parameter: Positive = 2.0
    prompt_tokens: Positive = 512.0
    answer_tokens: Positive = 256.0
    long_prompt_tokens: Positive | None = None
    memory_mib_per_item: NonNegative = 256.0
    kv_kib_per_token: NonNegative = 128.0
    prefill_sensitivity: Fraction = 1.0
    decode_sensitivity: Fraction = DECODE_SENSITIVITY
    measured: tuple[MeasuredSteps, ...] = ()

    @property
    def active_b(self) -> float:
        """Parameters that a token takes, 1e9."""
        return self.active_parameters_b or self.parameters_b

    @property
    def gmacs_per_item(self) -> float:
        """Multiply-accumulates of a whole answer, 1e9."""
        return self.active_b * (self.prompt_tokens + self.answer_tokens)

    def _problems(self) -> Iterator[str]:
        if self.active_b > self.parameters_b:
            yield f"active_parameters_b: at most parameters_b, {self.parameters_b:g}"


class TableProfile(Section):
    """A measured table, CSV or Parquet (`services.kit.profiles.table`).

    Attributes:
        path: The file.
        gpu: GPU type of the measurement.
        gmacs_per_item: Multiply-accumulates per item, 1e9, for power, which ParvaGPU's tables lack.
    """

    kind: Literal["table"]
    path: Path
    gpu: Name
    gmacs_per_item: Positive


StageProfile = Annotated[AnalyticProfile | TableProfile, Field(discriminator="kind")]
Profile = Annotated[AnalyticProfile | LanguageProfile | TableProfile, Field(discriminator="kind")]


class OnnxRuntime(Section):
    """Runs in the worker itself, with ONNX Runtime.

    Attributes:
        provider: Execution provider on real GPUs: "cuda" or, where TensorRT is installed,
            "tensorrt". A session that uses another one is refused. Cores and simulated GPUs
            compute on the CPU.
    """

    kind: Literal["onnx"] = "onnx"
    provider: Literal["cuda", "tensorrt"] = "cuda"


class ServerRuntime(Section):
    """Settings common to runtimes whose model runs in a third-party server.

    Either `command` starts one for each worker, in the worker's slice and with its MPS limits; or
    one already runs at `address`. In `command` and `environment`, "{port}" stands for a free port
    at which the server must serve, "{port_1}" .. "{port_9}" for further free ones, "{file}" for
    the variant's file, "{gpu_uuids}" for the UUIDs of its GPUs, with commas in between, and
    "{gpus}" for their number.

    Attributes:
        command: Program and arguments.
        environment: Added to the program's environment.
        environment_file: File of further variables, NAME=value a line, for secrets: each worker
            reads it when it starts, and it is neither copied nor logged.
        address: "host:port" of a running server.
        tls: Encrypts the connection to `address`; required beyond this machine.
        model_name: Name of the model at the server.
    """

    command: tuple[str, ...] = ()
    environment: dict[str, str] = Field(default_factory=dict)
    environment_file: Path | None = None
    address: Address = ""
    tls: ClientTls | None = None
    model_name: str = ""

    def _problems(self) -> Iterator[str]:
        if bool(self.command) == bool(self.address):
            yield "give either command or address"
        if self.command and not _mentions_port((*self.command, *self.environment.values())):
            yield '"{port}" must be in command or environment: the server serves there'
        misplaced = "tls" if self.command else "environment_file"
        if getattr(self, misplaced) is not None:
            other = "address" if self.command else "command"
            yield f"{misplaced}: only with {other}"


class ExternalRuntime(ServerRuntime):
    """Runs in a server of the Open Inference Protocol, for example Triton or MLServer, by gRPC.

    Attributes:
        model_name: Empty: the variant's.
        model_version: Version of the model at the server. Empty: the server's choice.
    """

    kind: Literal["external"]
    model_version: str = ""


class TextRuntime(Section):
    """Settings common to the runtimes of language models.

    Attributes:
        context_tokens: Maximum tokens of prompt and answer.
        slots: Requests that are decoded at the same time. None: the segment's batch size, which
            the planner chooses.
        max_tokens: Tokens generated for a request that states no limit. None: 256 for prompts as
            tensors; requests of the OpenAI API go until the model ends.
        chat: Whether prompts are put into the model's chat template as a user's message.
    """

    context_tokens: int | None
    slots: int | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    chat: bool = True


class Sleep(Section):
    """Sleep of a server without requests: vLLM with `--enable-sleep-mode`, VLLM_SERVER_DEV_MODE=1.

    Attributes:
        after_s: Time without a request, s.
        level: 1: weights wait in the host's memory; 2: they are dropped, and read again.
    """

    after_s: Positive = 300.0
    level: Literal[1, 2] = 1


class OpenAiRuntime(ServerRuntime, TextRuntime):
    """A language model in a server of the OpenAI API: vLLM, SGLang, llama.cpp's, or another.

    Attributes:
        model_name: Empty: the first that the server lists.
        api_key_file: File of the key to show at `address`: each worker reads it when it starts. A
            server that `command` starts takes "{api_key}", a random one for each worker.
        context_tokens: Maximum tokens of prompt and answer. None: as the server states
            (`max_model_len`).
        slots: Requests that are at the server at the same time. None: the segment's batch size,
            which the planner chooses.
        adapters: LoRA adapters that a worker loads into its server (`/v1/load_lora_adapter`, which
            vLLM has where VLLM_ALLOW_RUNTIME_LORA_UPDATING is set): name and path. Those that the
            server lists itself need not be given.
        sleep: When the server gives its memory back. None: never.
        priorities: Whether the server schedules by `priority` (vLLM's `--scheduling-policy
            priority`): requests that can wait then come after all others there, too. None: as the
            words of `command` say.
    """

    kind: Literal["openai"]
    api_key_file: Path | None = None
    context_tokens: Annotated[int, Field(ge=64, le=10_485_760)] | None = None
    slots: Annotated[int, Field(ge=1, le=4096)] | None = None
    adapters: dict[Name, str] = Field(default_factory=dict)
    sleep: Sleep | None = None
    priorities: bool | None = None

    @property
    def has_priorities(self) -> bool:
        """True if the server schedules by priority."""
        if self.priorities is not None:
            return self.priorities
        words = " ".join(self.command).replace("=", " ")
        return "--scheduling-policy priority" in words

    def _problems(self) -> Iterator[str]:
        yield from super()._problems()
        if self.sleep is not None and not self.command:
            yield "sleep: only with command: a server at an address may have other clients"
        if self.command and self.api_key_file is not None:
            yield 'api_key_file: only with address; command takes "{api_key}"'


def _mentions_port(words: tuple[str, ...]) -> bool:
    return any("{port}" in word for word in words)


class GenerativeRuntime(TextRuntime):
    """A language model in the worker itself, with llama.cpp (extra `generative`).

    Attributes:
        context_tokens: Maximum tokens of prompt and answer; each slot reserves memory for them.
        slots: Requests that are decoded at the same time. None: the segment's batch size, which
            the planner chooses.
        resource: "package/file" of an installed Python package, instead of `file`. Nothing of the
            package is imported.
        sha256: SHA-256 of `resource`, hexadecimal: another one is refused. Required with it; of a
            `file` it is `variants.<v>.sha256`.
        chat_template: File of a Jinja template, instead of the model's own: tools and reasoning
            need one that has them.
        reasoning: Whether a template that has reasoning begins each answer with it, unless a
            request says otherwise (`chat_template_kwargs: {enable_thinking: ...}`).
        adapters: LoRA adapters, GGUF files by name; a request names one as its `model`.
    """

    kind: Literal["generative"]
    context_tokens: Annotated[int, Field(ge=64, le=1_048_576)] = 2048
    slots: Annotated[int, Field(ge=1, le=256)] | None = None
    resource: Annotated[str, Field(pattern=r"^([A-Za-z_]\w*/.+)?$")] = ""
    sha256: Sha256 = ""
    chat_template: Path | None = None
    reasoning: bool = True
    adapters: dict[Name, Path] = Field(default_factory=dict)

    def _problems(self) -> Iterator[str]:
        if self.resource and not self.sha256:
            yield "sha256: required with resource; `sha256sum` of the file prints it"


Runtime = Annotated[
    OnnxRuntime | ExternalRuntime | GenerativeRuntime | OpenAiRuntime, Field(discriminator="kind")
]


def _uri(value: str) -> str:
    """Validate a URI of a deployment file; messages omit it, as it may contain a key."""
    if not value:
        return value
    parts = urlsplit(value)
    if parts.scheme not in SCHEMES:
        raise ValueError(
            f"must begin with one of {', '.join(f'{each}:' for each in SCHEMES)}; files of other "
            "places are mounted, and named as `file`"
        )
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise ValueError(
            "must have no user, password, query or fragment: credentials come from the environment "
            "of `cinquefoil models fetch` (docs/own-models.md)"
        )
    local = parts.scheme == "file"
    if local != (not parts.netloc) or parts.path in ("", "/") or ".." in parts.path.split("/"):
        raise ValueError(
            "must name a file, as in https://models.example/net.onnx or file:///srv/net.onnx"
        )
    return value


SCHEMES: Final = ("file", "http", "https", "s3", "gs", "hf")
"""Of URIs that `cinquefoil models fetch` understands."""

Uri = Annotated[str, AfterValidator(_uri)]
Sha256 = Annotated[str, Field(pattern=r"^([0-9A-Fa-f]{64})?$")]


class ModelFile(Section):
    """A file that workers load: one that lies on each node, or one that is fetched.

    Attributes:
        file: The file.
        uri: Where `cinquefoil models fetch` takes it from, instead of `file`: file:, http:, https:
            or, with the extra `uri`, s3:, gs: or hf:.
        sha256: SHA-256 of the file, hexadecimal: workers load no other. Required with `uri`.
    """

    file: Path = Path()
    uri: Uri = ""
    sha256: Sha256 = ""

    @property
    def given(self) -> bool:
        """True if a file is named."""
        return bool(self.uri) or self.file != Path()

    def _problems(self) -> Iterator[str]:
        if self.uri and self.file != Path():
            yield "uri: give either uri or file"
        if self.uri and not self.sha256:
            yield "sha256: required with uri; `sha256sum` of the file prints it"


class ModelCache(Section):
    """Where files that have a `uri` lie on each machine, named by their SHA-256.

    Attributes:
        folder: The folder. `cinquefoil models fetch` writes it; agents and workers only read it.
        max_mib: Largest size of the folder, MiB. Files that the deployment does not name give way,
            those first that were fetched or named the longest ago.
    """

    folder: Path = Path("out/model-cache")
    max_mib: Positive = 102_400.0

    def path(self, network: ModelFile) -> Path:
        """Return where a file with a `uri` lies."""
        suffix = PurePosixPath(urlsplit(network.uri).path).suffix
        return self.folder / f"{network.sha256.lower()}{suffix}"


class Stage(ModelFile):
    """One stage of a pipeline; a file name alone is a stage, too.

    Attributes:
        file: ONNX file. Its inputs are outputs of earlier stages or inputs of the request, by name;
            the outputs of the last stage are those of the whole network.
        share: Share of the network's arithmetic and memory; only ratios among stages matter.
        profile: Latency and power. None: its share of the variant's.
        transfer_s: Time from its answer until the next stage's worker has it, s.
        clock_sensitivity: How its latency follows the SM clock, 0..1. None: as the variant's.
    """

    share: Positive = 1.0
    profile: StageProfile | None = None
    transfer_s: NonNegative = 0.002
    clock_sensitivity: Fraction | None = None

    @model_validator(mode="before")
    @classmethod
    def _named(cls, value: Any) -> Any:
        return {"file": value} if isinstance(value, str | Path) else value

    def _problems(self) -> Iterator[str]:
        yield from super()._problems()
        if not self.given:
            yield "file: required, or uri"


class Parallel(Section):
    """Division of a language model among the GPUs of a segment, as its server divides it.

    Attributes:
        tensor: GPUs that each layer is divided among.
        pipeline: Groups of layers, each on GPUs of its own.
        data: Copies that take requests in turn behind the one server.
        expert: GPUs, of the tensor x data ones, that experts are spread over instead.
    """

    tensor: Annotated[int, Field(ge=1)] = 1
    pipeline: Annotated[int, Field(ge=1)] = 1
    data: Annotated[int, Field(ge=1)] = 1
    expert: Annotated[int, Field(ge=1)] = 1

    @property
    def gpus(self) -> int:
        """GPUs that it takes; experts are on those of tensor and data."""
        return self.tensor * self.pipeline * self.data

    def _problems(self) -> Iterator[str]:
        if self.tensor * self.data % self.expert:
            yield (
                f"expert: experts are spread over GPUs of tensor x data, {self.tensor * self.data},"
                f" which {self.expert} does not divide"
            )


def _together(value: int) -> int:
    if value > GPUS_TOGETHER[-1]:
        raise ValueError(
            f"must be {GPUS_TOGETHER[-1]} at most: a segment's GPUs are of one node, and models "
            "over several nodes are not served"
        )
    if value not in GPUS_TOGETHER:
        raise ValueError(f"must be one of {', '.join(map(str, GPUS_TOGETHER))}")
    return value


class Variant(ModelFile):
    """One trained network for a model's task.

    Attributes:
        file: ONNX file; GGUF for a generative model; of a runtime with a server, the value
            of "{file}", if any.
        stages: Stages of a pipeline, instead of `file`: each runs on its own slices, and the
            output of one is the request of the next.
        accuracy: Measured accuracy, in the model's unit, > 0.
        profile: Latency and power by slice, of all stages together.
        load_s: Time that a worker takes to load it, s, until rollouts have measured it: for
            InfAdapter's loading cost and the energy of a start.
        max_batch: Largest batch that the file takes; 1: its first dimension is fixed. None: any.
        clock_sensitivity: How its latency follows the SM clock, 0 (not at all) .. 1 (in
            proportion): mu-Serve's weight of the variant in the clock loop. None: 1; of a profile
            `language`, its two phases' by their time.
        runtime: Runtime that executes it.
        gpus: Whole GPUs of one node that each of its segments holds; at `runtime.address`, those
            that the server holds.
        parallel: How it is divided among them. None: each layer is, by tensor parallelism.
    """

    stages: tuple[Stage, ...] = ()
    accuracy: Positive
    profile: Profile
    load_s: Annotated[float, Field(ge=0)] = 0.0
    max_batch: Annotated[int, Field(ge=1)] | None = None
    clock_sensitivity: Fraction | None = None
    runtime: Runtime = OnnxRuntime()
    gpus: Annotated[int, AfterValidator(_together)] = 1
    parallel: Parallel | None = None

    @property
    def division(self) -> Parallel:
        """Its division among its GPUs."""
        return self.parallel or Parallel(tensor=self.gpus)

    def _problems(self) -> Iterator[str]:
        yield from super()._problems()
        yield from self._problems_of_gpus()
        elsewhere = isinstance(self.runtime, ServerRuntime) or (
            isinstance(self.runtime, GenerativeRuntime) and self.runtime.resource
        )
        if not (elsewhere or self.stages or self.given):
            yield "file: required, or uri"
        if isinstance(self.runtime, GenerativeRuntime):
            if self.runtime.resource and (self.given or self.sha256):
                yield "runtime.resource: instead of file, uri and sha256"
            if self.runtime.sha256 and not self.runtime.resource:
                yield "runtime.sha256: of resource; sha256 beside `file` is the file's"
        if self.stages:
            yield from self._problems_of_stages()

    def loaded(self) -> Iterator[tuple[tuple[str, ...], ModelFile]]:
        """Yield the files that workers load, and the keys below the variant that name them."""
        if self.stages:
            for index, stage in enumerate(self.stages):
                yield ("stages", str(index)), stage
        elif self.uri:
            yield ("uri",), self
        elif not isinstance(self.runtime, ServerRuntime) and self.given:
            yield ("file",), self

    def _problems_of_gpus(self) -> Iterator[str]:
        if self.division.gpus != self.gpus:
            yield (
                f"parallel: tensor x pipeline x data is {self.division.gpus}, and gpus is "
                f"{self.gpus}"
            )
        if self.gpus == 1:
            return
        if not isinstance(self.runtime, ServerRuntime):
            yield (
                f"gpus: a model on several is run by a server (runtime openai or external), not by "
                f"{self.runtime.kind}"
            )
        if self.profile.kind != "language":
            yield f"gpus: the profile of a model on several is language, not {self.profile.kind}"

    def _problems_of_stages(self) -> Iterator[str]:
        if len(self.stages) < _MIN_STAGES:
            yield "stages: a pipeline has two or more; give one network as file"
        if self.given or self.sha256 or not isinstance(self.runtime, OnnxRuntime):
            yield "stages: a pipeline has no file of its own, and its runtime is onnx"
        if self.profile.kind == "language":
            yield "profile: of a pipeline must be analytic or table, got language"
        if isinstance(self.profile, TableProfile) and not all(s.profile for s in self.stages):
            yield "stages: give each its profile; a measured table cannot be divided"


class Slo(Section):
    """A latency objective: the percentile of requests that must be answered in time.

    Attributes:
        percentile: Of the requests, > 0 and < 100.
        latency_s: Time from arrival to answer; of a text, to its end.
        ttft_s: Of models that generate text: time from arrival to the first token. None: any.
        tpot_s: Of models that generate text: mean time between an answer's tokens. None: any.
    """

    percentile: Annotated[float, Field(gt=0, lt=100)] = 95.0
    latency_s: Positive
    ttft_s: Positive | None = None
    tpot_s: Positive | None = None


Discipline = Literal["fcfs", "edf", "priority", "ssjf"]
InstanceChoice = Literal[
    "shares",
    "idle_longest",
    "least_expected_completion",
    "prefix",
    "predicted_tokens",
    "consolidated",
    "carbondis",
    "carbon_aware",
]


THRESHOLDS = (0.5, 2.0)
"""Bounds of CARBONDIS' CIT."""

Spread = Literal["gpu", "node"]
Threshold = Annotated[float, Field(ge=THRESHOLDS[0], le=THRESHOLDS[1])]


RegionPattern = Annotated[str, Field(pattern=r"^[A-Za-z0-9*][A-Za-z0-9._*-]{0,62}$")]


class RequestLimits(Section):
    """Bounds of a model's requests at the router.

    Attributes:
        overtaking_s: For "ssjf": no request overtakes one that arrived more than this earlier, s.
            None: ten times the objective's latency.
        max_queue: Maximum waiting requests; further ones are refused.
        max_queue_mib: Maximum size of their bodies, MiB; further ones are refused.
        default_deadline_s: Deadline of requests without one, s: with the objective's latency, no
            request is served late. None: `router.default_timeout_s`.
        hedge_after_s: Time after which an unanswered request is also sent to a second, idle
            worker, s. None: never.
    """

    overtaking_s: Positive | None = None
    max_queue: Annotated[int, Field(ge=1)] = 1000
    max_queue_mib: Positive = 256.0
    default_deadline_s: Positive | None = None
    hedge_after_s: Positive | None = None


class Dispersion(Section):
    """Burstiness of a load, until routers have reported it.

    Variance over mean of the requests that arrive in a window: 1 in a Poisson process, the square
    of the gaps' coefficient of variation where gaps are independent.

    Attributes:
        at_1s: In windows of one second.
        at_10s: In windows of ten seconds.
    """

    at_1s: Annotated[float, Field(ge=1, le=1e4)] = 1.0
    at_10s: Annotated[float, Field(ge=1, le=1e4)] = 1.0


class Model(RequestLimits):
    """A model, which clients name in `model_name`.

    Attributes:
        slo: Latency objective.
        accuracy_unit: For example "top-1".
        demand_rps: Planned load until requests are seen, req/s.
        demand_min_rps: Least planned load afterwards, req/s. 0: none: a model that had no request
            for `planner.triggers.scale_down_s` is parked, and its first request waits for a
            segment to start. None: `demand_rps`.
        dispersion: Initial burstiness of the load.
        discipline: Order of requests: "fcfs" (first come), "edf" (earliest deadline),
            "priority" (lowest `priority` parameter, then first come) or "ssjf" (short answers
            somewhat earlier, by predicted length; without a predictor as "fcfs").
        instance_choice: Choice of the instance: by "shares" (smooth weighted round robin),
            "idle_longest" (CLOVER), "least_expected_completion", for language models "prefix"
            (where a prompt's beginning is probably cached and little waits), "predicted_tokens"
            (where the fewest tokens of answers are left to generate) or "consolidated" (as few
            instances as `slo.tpot_s` and `slo.ttft_s` allow), or, for GPUs that differ:
            "carbondis" or "carbon_aware" (least carbon in time).
        intensity_threshold: For "carbondis" (its CIT): intensity over its average above which
            requests that a low-end GPU could answer in time may go to a high-end one.
        overload_weight: How much an unserved request counts when the fleet cannot serve all,
            against those of models with 1 (`planner.objective.overload`).
        replicas_min: Least number of segments that serve the model; with `spread`, on as many
            different GPUs or nodes.
        spread: What the segments are spread over: "gpu" or "node". None: they need not be.
        survive: Share of the demand that must still be served after the loss of any one GPU (with
            `spread: node`, of any one node). Plans add spare segments where there is room.
        variants: Variants by name.
        servers: Pools of servers that run the model already, by name: requests reach them through a
            gateway, whose endpoint picker the router is (`router.picker_listen`), and KEDA learns
            from the planner how many there should be. Empty: workers of plans serve the model.
        regions: Patterns of peer regions that may serve it, such as "eu-*": its data goes nowhere
            else. Empty: it stays in this region.
        max_extra_latency_s: Longest network round trip to such a region, s.
        region_weights: Factors on the carbon of a request in peer regions, where they are compared:
            above 1 a region takes less, below 1 more. Missing: 1.
    """

    slo: Slo
    accuracy_unit: str = "top-1"
    demand_rps: Annotated[float, Field(gt=0, le=1e9)]
    demand_min_rps: Annotated[float, Field(ge=0, le=1e9)] | None = None
    dispersion: Dispersion = Dispersion()
    discipline: Discipline = "fcfs"
    instance_choice: InstanceChoice = "shares"
    intensity_threshold: Threshold = 1.0
    overload_weight: Positive = 1.0
    replicas_min: Annotated[int, Field(ge=1, le=1000)] = 1
    spread: Spread | None = None
    survive: Fraction = 0.0
    variants: Annotated[dict[Name, Variant], Field(min_length=1)]
    servers: Annotated[dict[Name, ServerPool], Field(max_length=64)] = Field(default_factory=dict)
    regions: Annotated[tuple[RegionPattern, ...], Field(max_length=32)] = ()
    max_extra_latency_s: Positive = 0.1
    region_weights: Annotated[
        dict[Name, Annotated[float, Field(ge=0.01, le=100)]], Field(max_length=32)
    ] = Field(default_factory=dict)

    def _problems(self) -> Iterator[str]:
        yield from self._problems_of_servers()
        for name in ("ttft_s", "tpot_s"):
            if getattr(self.slo, name) is None:
                continue
            for variant, settings in self.variants.items():
                if settings.runtime.kind == "onnx":
                    yield (
                        f"slo.{name}: only of models that generate text, and the runtime of "
                        f"variant {variant} is onnx"
                    )
        if self.instance_choice == "consolidated" and self.slo.tpot_s is None:
            yield (
                "instance_choice: consolidated fills instances up to slo.tpot_s: set that, or "
                "choose another"
            )

    def _problems_of_servers(self) -> Iterator[str]:
        for name, pool in self.servers.items():
            where, variant = f"servers.{name}", self.variants.get(pool.variant)
            if variant is None:
                known = ", ".join(sorted(self.variants))
                yield f"{where}.variant: no variant {pool.variant!r}; there are {known}"
            elif variant.runtime.kind != "openai":
                yield f"{where}.variant: its runtime must be openai, got {variant.runtime.kind}"
            elif not (pool.addresses or pool.in_kubernetes or variant.runtime.address):
                yield (
                    f"{where}: give addresses, inference_pool, selector or service, or the variant "
                    "runtime.address"
                )
        if self.servers and (self.hedge_after_s is not None or self.survive):
            setting = "survive" if self.survive else "hedge_after_s"
            yield f"{setting}: a request that a gateway has sent to a server goes to no second one"
