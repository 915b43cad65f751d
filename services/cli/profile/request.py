"""Measurements to take: the command line, completed from the deployment and the GPU."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from cinquefoil.gpuagent.v1.inventory_pb2 import Gpu
from services.gpuagent.profiling.core.samples import Effort
from services.gpuagent.profiling.core.sweep import Grid, Limits
from services.kit.config import (
    Deployment,
    GenerativeRuntime,
    LanguageProfile,
    Model,
    OpenAiRuntime,
    Planner,
)
from services.kit.errors import InvalidArgument, NotFound

PROMPTS: Final = (64, 512)
"""Tokens of a language model's prompts, unless others are given."""


@dataclass(frozen=True, slots=True)
class Request:
    """The options of `gpuagent profile`, which explains them; empty: as the planner is configured.

    Attributes:
        models: Models or "model/variant"; empty: every model with a file.
        clock_ratios: SM clocks over the GPU's highest.
        prompts: Tokens of a language model's prompts.
        too_slow: Latency over the model's SLO from which on slower points are left out.
        save: Put the tables into the deployment file.
        effort: Duration of each point's measurement.
    """

    models: tuple[str, ...]
    gpu: str = ""
    slices: tuple[str, ...] = ()
    batch_sizes: tuple[int, ...] = ()
    processes: tuple[int, ...] = ()
    clock_ratios: tuple[float, ...] = ()
    prompts: tuple[int, ...] = ()
    out: Path = Path("out/profiles")
    resume: bool = False
    force_idle: bool = False
    save: bool = False
    too_slow: float = 2.0
    effort: Effort = field(default_factory=Effort)


@dataclass(frozen=True, slots=True)
class Target:
    """A variant to measure.

    Attributes:
        model, variant: Names.
        limits: What makes points pointless.
        texts: It generates text.
        gpus: GPUs that each of its segments holds.
    """

    model: str
    variant: str
    limits: Limits
    texts: bool = False
    gpus: int = 1

    def path(self, out: Path, gpu_type: str, suffix: str) -> Path:
        """Return one of its files."""
        place = gpu_type if self.gpus == 1 else f"{self.gpus}x{gpu_type}"
        return out / f"{self.model}.{self.variant}.{place}.{suffix}"


def targets(request: Request, deployment: Deployment) -> tuple[Target, ...]:
    """Return the variants that are named, each once.

    Raises:
        NotFound: The deployment has no such model or variant.
        InvalidArgument: A language model without a language profile.
    """
    return tuple(
        dict.fromkeys(
            t
            for name in request.models or deployment.models
            for t in _named(name, request, deployment)
        )
    )


def grid(request: Request, planner: Planner, gpu: Gpu) -> Grid:
    """Return every point that could be measured on a GPU.

    Raises:
        InvalidArgument: A number that cannot be, or a clock of a GPU that cannot hold one.
        NotFound: The GPU has no such slice.
    """
    kinds = [kind.name for kind in gpu.type.profiles]
    unknown = [name for name in request.slices if name not in kinds]
    if unknown:
        raise NotFound(f"--slices: {gpu.type.name} has {', '.join(kinds)}, not {unknown[0]!r}")
    return Grid.of(
        request.slices or kinds,
        request.batch_sizes or planner.batch_sizes,
        request.processes or range(1, planner.max_processes + 1),
        clocks_mhz(request, planner, gpu),
    )


def grid_of_texts(request: Request, points: Grid) -> Grid:
    """Return every point of a language model: one process, at the highest clock.

    Args:
        request: The options.
        points: Those of other models.

    Raises:
        InvalidArgument: A prompt without tokens.
    """
    prompts = tuple(sorted(set(request.prompts or PROMPTS)))
    if prompts[0] < 1:
        raise InvalidArgument(f"--prompts: must be 1 or more, got {prompts[0]}")
    return replace(points, processes=(1,), clocks_mhz=(0,), prompts=prompts)


def clocks_mhz(request: Request, planner: Planner, gpu: Gpu) -> tuple[int, ...]:
    """Return the clocks to hold; 0: the highest, which is not held."""
    if any(not 0 < ratio <= 1 for ratio in request.clock_ratios):
        raise InvalidArgument(f"--clocks: must be in (0, 1], got {list(request.clock_ratios)}")
    lower = [ratio for ratio in request.clock_ratios if ratio < 1]
    if lower and not gpu.clock_lockable:
        raise InvalidArgument(
            "--clocks: this agent may not hold clocks: nodes.<name>.allow_clocks is off"
        )
    if not request.clock_ratios and gpu.clock_lockable:
        lower = [ratio for ratio in planner.clock_ratios if ratio < 1]
    return (0, *(round(ratio * gpu.type.max_clock_mhz) for ratio in lower))


def chosen_gpus(named: str, gpus: Sequence[Gpu], count: int) -> tuple[str, ...]:
    """Return the GPUs that are named, or all where there are no others.

    Args:
        named: UUIDs, with commas between; "": none.
        gpus: Those of the node.
        count: GPUs that hold the model together.

    Raises:
        InvalidArgument: More or fewer are named, or none and the node has others, too; or they
            cannot hold a model together.
    """
    uuids = tuple(filter(None, named.split(","))) or tuple(gpu.uuid for gpu in gpus)
    if len(set(uuids)) != count or len(uuids) != count:
        known = "".join(f"\n  {gpu.uuid}  {gpu.type.name}" for gpu in gpus)
        which = "which GPU" if count == 1 else f"which {count} GPUs, with commas between,"
        raise InvalidArgument(f"--gpu: say {which} to measure on; the node has{known}")
    found = [gpu for gpu in gpus if gpu.uuid in uuids]
    if len(types := sorted({gpu.type.name for gpu in found})) > 1:
        raise InvalidArgument(f"--gpu: one model is held by GPUs of one type, not {types}")
    if count > 1 and (cut := [gpu.uuid for gpu in found if gpu.mig_enabled]):
        raise InvalidArgument(
            f"--gpu: {', '.join(cut)} in MIG mode: no model is held together then"
        )
    return uuids


def _named(name: str, request: Request, deployment: Deployment) -> Iterator[Target]:
    model_name, _, variant = name.partition("/")
    model: Model | None = deployment.models.get(model_name)
    if model is None:
        known = ", ".join(sorted(deployment.models))
        raise NotFound(f"the deployment has no model {model_name!r}; it has {known}")
    if variant and variant not in model.variants:
        known = ", ".join(model.variants)
        raise NotFound(f"{model_name} has no variant {variant!r}; it has {known}")
    for each in (variant,) if variant else model.variants:
        runtime, profile = model.variants[each].runtime, model.variants[each].profile
        texts = isinstance(runtime, GenerativeRuntime | OpenAiRuntime)
        if texts and not isinstance(profile, LanguageProfile):
            if not request.models:
                continue
            raise InvalidArgument(
                f"models.{model_name}.variants.{each}.profile must be of kind language: a text is "
                "measured token by token"
            )
        slowest_s = math.inf if texts else request.too_slow * model.slo.latency_s
        gpus = model.variants[each].gpus
        yield Target(model_name, each, Limits(too_slow_s=slowest_s), texts, gpus)
