"""What clients may ask for: models, their variants, profiles and runtimes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field, model_validator

from services.kit.config.section import Address, Fraction, Name, NonNegative, Positive, Section

_FEWEST_STAGES: Final = 2


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
    environment: dict[str, str] = Field(default_factory=dict)
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


class GenerativeRuntime(Section):
    """A language model, run by the worker itself with llama.cpp (extra `generative`).

    Attributes:
        context_tokens: Of one request: prompt and answer. Each slot keeps memory for so many.
        slots: Requests that are decoded at a time. None: the segment's batch size, which the
            planner chooses.
        max_tokens: Generated for a request that does not say how many.
        chat: Prompts are a user's words in the model's chat template; otherwise they go as is.
        resource: "package/file" of an installed Python package, in `file`'s stead.
    """

    kind: Literal["generative"]
    context_tokens: Annotated[int, Field(ge=64, le=1_048_576)] = 2048
    slots: Annotated[int, Field(ge=1, le=256)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] = 256
    chat: bool = True
    resource: Annotated[str, Field(pattern=r"^([A-Za-z_]\w*/.+)?$")] = ""


Runtime = Annotated[OnnxRuntime | ExternalRuntime | GenerativeRuntime, Field(discriminator="kind")]


class Stage(Section):
    """One part of a network that runs as a pipeline; a file's name alone stands for one, too.

    Attributes:
        file: ONNX file. What it takes are outputs of the stages before it or inputs of the request,
            by their names; the last stage gives what the whole network gives.
        share: Of the whole network's arithmetic and memory; only ratios among the stages matter.
        profile: How fast it runs, and how much it draws. None: its share of the variant's.
        transfer_s: From its answer until the next stage's worker has it, s.
        clock_sensitivity: How its latency follows the SM clock, 0..1. None: as the variant's.
    """

    file: Path
    share: Positive = 1.0
    profile: Profile | None = None
    transfer_s: NonNegative = 0.002
    clock_sensitivity: Fraction | None = None

    @model_validator(mode="before")
    @classmethod
    def _named(cls, value: Any) -> Any:
        return {"file": value} if isinstance(value, str | Path) else value


class Variant(Section):
    """One trained network for a model's task.

    Attributes:
        file: ONNX file; GGUF where it generates; with an external runtime, whatever "{file}" stands
            for there, if anything.
        stages: Of a pipeline, in `file`'s stead: each runs on slices of its own, and the answer of
            one is the request of the next.
        accuracy: Measured accuracy, in the model's unit, > 0.
        profile: How fast it runs, and how much it draws, on which slice; the whole of it, where it
            is a pipeline.
        load_s: Time a worker takes to load it, s; what InfAdapter's loading cost counts.
        clock_sensitivity: How its latency follows the SM clock, 0 (not at all) .. 1 (in
            proportion): mu-Serve's weight of the variant in the clock loop.
        runtime: Who runs it.
    """

    file: Path = Path()
    stages: tuple[Stage, ...] = ()
    accuracy: Positive
    profile: Profile
    load_s: Annotated[float, Field(ge=0)] = 0.0
    clock_sensitivity: Fraction = 1.0
    runtime: Runtime = OnnxRuntime()

    @model_validator(mode="after")
    def _file_to_load(self) -> Variant:
        elsewhere = isinstance(self.runtime, ExternalRuntime) or (
            isinstance(self.runtime, GenerativeRuntime) and self.runtime.resource
        )
        if not (elsewhere or self.stages) and self.file == Path():
            raise ValueError("file: required")
        return self

    def sensitivity(self, stage: int) -> float:
        """Return how the latency of one stage follows the SM clock; in one piece: of all."""
        own = self.stages[stage].clock_sensitivity if self.stages else None
        return self.clock_sensitivity if own is None else own

    @model_validator(mode="after")
    def _whole_pipeline(self) -> Variant:
        if not self.stages:
            return self
        if len(self.stages) < _FEWEST_STAGES:
            raise ValueError("stages: a pipeline has two or more; give one network as file")
        if self.file != Path() or not isinstance(self.runtime, OnnxRuntime):
            raise ValueError("stages: a pipeline has no file of its own, and its runtime is onnx")
        if isinstance(self.profile, TableProfile) and not all(s.profile for s in self.stages):
            raise ValueError("stages: give each its profile; a measured table cannot be shared out")
        return self


class Slo(Section):
    """A latency objective: the percentile of requests that must be answered in time."""

    percentile: Annotated[float, Field(gt=0, lt=100)] = 95.0
    latency_s: Positive


Discipline = Literal["fcfs", "edf", "priority", "ssjf"]
InstanceChoice = Literal[
    "shares",
    "idle_longest",
    "least_expected_completion",
    "carbondis",
    "carbon_aware",
    "highperf",
    "lowenergy",
]


THRESHOLDS = (0.5, 2.0)
"""Least and most of CARBONDIS' CIT."""

Threshold = Annotated[float, Field(ge=THRESHOLDS[0], le=THRESHOLDS[1])]


class Model(Section):
    """What clients name in `model_name`.

    Attributes:
        slo: Latency objective.
        accuracy_unit: For example "top-1".
        demand_rps: Load to provide for before any is seen, and never less than, req/s.
        discipline: Who is served first: "fcfs" (first come), "edf" (earliest deadline),
            "priority" (lowest `priority` parameter, then first come) or "ssjf" (short answers
            somewhat earlier, as the predictor foretells them; without a predictor as "fcfs").
        overtaking_s: Under "ssjf": nobody is served before who came more than this earlier, s.
            None: ten times the objective's latency.
        instance_choice: Who serves: by "shares" (smooth weighted round robin), "idle_longest"
            (CLOVER), "least_expected_completion", or, where GPUs differ: "carbondis",
            "carbon_aware" (least carbon in time), "highperf" or "lowenergy".
        intensity_threshold: Of "carbondis" (its CIT): carbon intensity over its average above which
            requests that a low-end GPU could answer in time go to a high-end one as well.
        max_queue: Requests that may wait; more are refused.
        max_queue_mib: Their bodies' size, MiB; more are refused.
        default_deadline_s: Time for requests that bring no deadline, s: with the objective's
            latency here, nobody is served late. None: `router.default_timeout_s`.
        hedge_after_s: A request that has no answer by then is given to a second worker too, where
            one has nothing else to do, s. None: never.
        variants: By name.
    """

    slo: Slo
    accuracy_unit: str = "top-1"
    demand_rps: Positive
    discipline: Discipline = "fcfs"
    overtaking_s: Positive | None = None
    instance_choice: InstanceChoice = "shares"
    intensity_threshold: Threshold = 1.0
    max_queue: Annotated[int, Field(ge=1)] = 1000
    max_queue_mib: Positive = 256.0
    default_deadline_s: Positive | None = None
    hedge_after_s: Positive | None = None
    variants: Annotated[dict[Name, Variant], Field(min_length=1)]
