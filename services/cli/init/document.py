"""The deployment file that `init` writes: every figure with a comment that states its origin."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ruamel.yaml.comments import CommentedMap, CommentedSeq

from services.cli.init.devices import Devices
from services.cli.init.network import TIMED_RUNS, Accuracy, Network
from services.cli.yaml_file import beside, scalar, written
from services.kit.config.loader import DEFAULT_FILE
from services.kit.segment import plain

MODEL_LATENCY: Final = 10.0
"""Latency objective over the slowest variant's latency on one core."""

MIN_LATENCY_S: Final = 0.1
DEMAND_RPS: Final = 10
CORE_BATCHES: Final = (1, 2, 4, 8)
"""Batch sizes to consider on cores."""

_PROCESS_MIB: Final = 150.0
"""Memory of a worker process without weights, MiB."""

_HEAD: Final = """\
Written by `cinquefoil init`; `cinquefoil up` starts it, `cinquefoil doctor` checks this machine,
`cinquefoil profile --all --save` measures what is estimated here, and `cinquefoil config schema`
prints every key.
"""


@dataclass(frozen=True, slots=True)
class NewVariant:
    """A variant to be written.

    Attributes:
        network: Its network; None: it runs elsewhere, and `gmacs_per_item` was given.
        accuracy: As measured; None: not measured.
        measured_by: How the accuracy was measured.
        runtime: Section of the runtime; empty: ONNX Runtime.
        table: Times that it takes on this machine's cores; None: not measured.
        gmacs_per_item: Multiply-accumulates per item, 1e9.
        max_batch: Largest batch; None: any.
    """

    network: Network | None
    accuracy: Accuracy | None
    gmacs_per_item: float
    max_batch: int | None = None
    runtime: Mapping[str, Any] | None = None
    measured_by: str = ""
    table: Path | None = None

    @classmethod
    def of(cls, network: Network, accuracy: Accuracy | None) -> NewVariant:
        """Return the variant of a network that workers load themselves."""
        return cls(network, accuracy, network.gmacs_per_item, 1 if network.alone else None)


@dataclass(frozen=True, slots=True)
class NewModel:
    """A model to be written. Attributes: variants (by name), latency_s (None: by measurement)."""

    variants: Mapping[str, NewVariant]
    latency_s: float | None = None

    @property
    def objective_s(self) -> float:
        """The latency objective, s."""
        if self.latency_s is not None:
            return self.latency_s
        timed = [each.network.latency_s for each in self.variants.values() if each.network]
        return max(MIN_LATENCY_S, _rounded_up(MODEL_LATENCY * max(timed, default=0.0)))


@dataclass(frozen=True, slots=True)
class Place:
    """Machine and settings for the models.

    Attributes:
        devices: What this machine has.
        control: Whether the agent may change real GPUs.
        batch_sizes: Batch sizes to consider; empty: the planner's default.
        processes: Processes per segment to consider; None: the planner's default.
    """

    devices: Devices
    control: bool
    batch_sizes: tuple[int, ...] = ()
    processes: int | None = None


def deployment(models: Mapping[str, NewModel], place: Place, folder: Path) -> str:
    """Return a deployment file for models on this machine, as YAML with comments.

    Args:
        models: The models by name.
        place: Where they are to run.
        folder: Where the file will be: paths below it are written relative to it.
    """
    document = CommentedMap(
        version="v1",
        carbon=_carbon(),
        nodes=CommentedMap({"node-0": _node(place)}),
        models=CommentedMap(
            {scalar(name): model_section(each, folder) for name, each in models.items()}
        ),
        planner=_planner(place),
    )
    document.yaml_set_start_comment(_HEAD)
    for key in ("carbon", "nodes", "models", "planner"):
        document.yaml_set_comment_before_after_key(key, before="\n")
    return re.sub("^#$", "", written(document), flags=re.MULTILINE)


def model_section(model: NewModel, folder: Path) -> CommentedMap:
    """Return a model's section."""
    slo = CommentedMap(percentile=95, latency_s=model.objective_s)
    if model.latency_s is None and any(each.network for each in model.variants.values()):
        slo.yaml_add_eol_comment(
            f"{MODEL_LATENCY:g} x the slowest variant's on one core here, at least "
            f"{MIN_LATENCY_S:g}; choose your own",
            "latency_s",
        )
    section = CommentedMap(slo=slo, demand_rps=DEMAND_RPS)
    section.yaml_add_eol_comment("until the router has seen your load; then forecast", "demand_rps")
    first = next((each.network for each in model.variants.values() if each.network), None)
    section["variants"] = CommentedMap(
        {scalar(name): _variant(each, folder) for name, each in model.variants.items()}
    )
    if first is not None:
        tensors = (("takes", first.inputs), ("gives", first.outputs))
        said = "\n".join(plain(f"{does} {', '.join(map(str, each))}") for does, each in tensors)
        section.yaml_set_comment_before_after_key("variants", before=said, indent=4)
    return section


def _variant(variant: NewVariant, folder: Path) -> CommentedMap:
    network, section = variant.network, CommentedMap()
    if network is not None:
        section["file"] = scalar(beside(folder / DEFAULT_FILE, network.file))
    section["accuracy"] = round(variant.accuracy.value, 4) if variant.accuracy else 1.0
    section.yaml_add_eol_comment(
        plain(f"measured on {variant.accuracy.items} items by {variant.measured_by}")
        if variant.accuracy
        else "not measured: nothing to compare it with",
        "accuracy",
    )
    if variant.max_batch is not None:
        section["max_batch"] = variant.max_batch
        if network is not None:
            section.yaml_add_eol_comment(f"FIXED_BATCH: {plain(network.alone)}", "max_batch")
    section["profile"] = _profile(variant, folder)
    if network is not None:
        where = "times of batches are in the table" if variant.table else "from its operators"
        section.yaml_set_comment_before_after_key(
            "profile",
            before=f"{where}; an item takes {_milliseconds(network.latency_s)} on one core here "
            f"({TIMED_RUNS} runs)",
            indent=8,
        )
    if variant.runtime is not None:
        section["runtime"] = _data(variant.runtime)
    return section


def _profile(variant: NewVariant, folder: Path) -> CommentedMap:
    network, gmacs = variant.network, _significant(variant.gmacs_per_item)
    if variant.table is not None:
        path = scalar(beside(folder / DEFAULT_FILE, variant.table))
        gpu = variant.table.stem.rpartition(".")[2]
        profile = CommentedMap(kind="table", path=path, gpu=gpu, gmacs_per_item=gmacs)
    else:
        profile = CommentedMap(kind="analytic", gmacs_per_item=gmacs)
        if network is not None:
            profile["memory_mib"] = math.ceil(_PROCESS_MIB + 2 * network.weights_mib)
            profile["memory_mib_per_item"] = math.ceil(network.item_mib)
    profile.fa.set_flow_style()
    return profile


def _data(value: Any) -> Any:
    """Return a section whose texts are all read as texts."""
    if isinstance(value, Mapping):
        return CommentedMap({scalar(key): _data(each) for key, each in value.items()})
    if isinstance(value, list):
        return CommentedSeq(map(_data, value))
    return scalar(value) if isinstance(value, str) else value


def _carbon() -> CommentedMap:
    source = CommentedMap(kind="synthetic")
    source.fa.set_flow_style()
    zone = CommentedMap(source=source)
    zone.yaml_add_eol_comment(
        "a made-up daily curve; docs/carbon-sources.md has the live sources", "source"
    )
    return CommentedMap(zones=CommentedMap({"GRID": zone}))


def _node(place: Place) -> CommentedMap:
    node = CommentedMap(zone="GRID")
    gpus, cores = place.devices.gpus, place.devices.cores
    if gpus:
        listed = CommentedSeq(map(scalar, gpus))
        for index, product in enumerate(gpus.values()):
            listed.yaml_add_eol_comment(plain(product), index)
        node["gpus"] = listed
        node["control"] = place.control
        said = (
            "the agent may create slices and start workers"
            if place.control
            else (
                "the agent only reads the GPUs, so that nothing is served; true: it may change them"
            )
        )
        node.yaml_add_eol_comment(f"{said} (docs/rights.md)", "control")
    else:
        node["cpu"] = CommentedMap(cores=cores)
        node["cpu"].fa.set_flow_style()
        node.yaml_add_eol_comment("no NVIDIA GPU was found: its cores serve", "cpu")
    return node


def _planner(place: Place) -> CommentedMap:
    planner = CommentedMap(strategy="exact")
    on_cores = not place.devices.gpus
    sizes = place.batch_sizes or (CORE_BATCHES if on_cores else ())
    if sizes:
        planner["batch_sizes"] = CommentedSeq(sizes)
        planner["batch_sizes"].fa.set_flow_style()
    processes = place.processes or (1 if on_cores else None)
    if processes:
        planner["max_processes"] = processes
    mean = CommentedMap(at_least=0.98, over="28d")
    mean.fa.set_flow_style()
    objective = CommentedMap(accuracy_mean=mean, accuracy_floor=0.95)
    objective.yaml_add_eol_comment("of the best variant's, with the least carbon", "accuracy_mean")
    objective.yaml_add_eol_comment("of the best variant's, at each moment", "accuracy_floor")
    if on_cores:
        objective["max_utilisation"] = 0.4
        objective.yaml_add_eol_comment("the other services run on these cores", "max_utilisation")
    planner["objective"] = objective
    return planner


def _significant(value: float) -> float:
    return float(f"{max(value, 1e-6):.3g}")


def _rounded_up(value: float) -> float:
    """Return the next 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(value)) if value > 0 else 1.0
    return next(round(step * power, 6) for step in (1, 2, 5, 10) if step * power >= value)


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.2g} ms" if seconds < 1 else f"{seconds:.2g} s"
