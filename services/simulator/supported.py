"""Parts of a deployment that cannot be simulated: they are refused by name, never ignored.

Settings that matter only for failures, on the wire, or for files are not checked: nothing fails in
a simulation, and there are no wires and no files.
"""

from collections.abc import Iterator, Mapping

from services.kit.config import (
    Deployment,
    ExternalRuntime,
    Model,
    Node,
    OnnxRuntime,
)
from services.kit.hardware import gpu_types
from services.simulator.scenario import RecordedLoad, Scenario, TraceLoad

Finding = tuple[tuple[int | str, ...], str]
"""Path of a setting, and the reason to refuse it."""

_DISCIPLINES = {
    "ssjf": "needs the lengths of answers, and a scenario's requests have none; use fcfs or edf",
    "priority": "needs priorities, and a scenario's requests have none; use fcfs or edf",
}
_CHOICES = {
    "prefix": "needs the texts of prompts, and a scenario's requests have only lengths;"
    " use shares or consolidated",
    "predicted_tokens": "needs predictions of lengths, and a simulation has no predictor;"
    " use shares or consolidated",
}
"""Instance choices that cannot be simulated for language models."""


def unsupported(scenario: Scenario, deployment: Deployment) -> Iterator[Finding]:
    """Yield the parts of a scenario and its deployment that cannot be simulated."""
    for where, problem in _deployment(scenario, deployment):
        yield ("deployment", *where), problem
    for index, policy in enumerate(scenario.policies):
        if policy.discipline is not None:
            yield from _named(("policies", index, "discipline"), policy.discipline, _DISCIPLINES)
        if any(map(generates_text, deployment.models.values())):
            where = ("policies", index, "instance_choice")
            yield from _named(where, policy.instance_choice or "", _CHOICES)
    if scenario.waiting and scenario.detail == "sampled":
        text = "what waits is there all the time, and a sampled simulation is not; use detail: full"
        yield ("waiting",), text
    for name, waiting in scenario.waiting.items():
        if isinstance(waiting.load, TraceLoad | RecordedLoad):
            yield ("waiting", name, "load"), "must be constant or daily"
    for name in scenario.texts:
        if name in deployment.models and not generates_text(deployment.models[name]):
            yield ("texts", name), f"{name} is no language model; omit it"


def _deployment(scenario: Scenario, deployment: Deployment) -> Iterator[Finding]:
    for name, node in deployment.nodes.items():
        for where, problem in _node(node):
            yield ("nodes", name, *where), problem
        load_s = max(v.load_s for m in deployment.models.values() for v in m.variants.values())
        if scenario.timing.start_worker_s + load_s > node.workers.load_timeout_s:
            text = f"workers take up to {scenario.timing.start_worker_s + load_s:g} s to start"
            yield ("nodes", name, "workers", "load_timeout_s"), f"{text}: none would ever serve"
    for name, model in deployment.models.items():
        for where, problem in _model(model):
            yield ("models", name, *where), problem
    if deployment.join is not None:
        yield ("join",), "a simulation's nodes are those of nodes; omit it"
    planner = deployment.planner
    if planner.online.enabled and scenario.detail == "sampled":
        yield (
            ("planner", "online", "enabled"),
            "a search measures all the time, and a sampled simulation does not; use detail: full",
        )
    if planner.accounting.embodied is not None:
        yield ("planner", "accounting", "embodied"), "only operational carbon is simulated; omit it"
    if deployment.router.processes > 1:
        yield ("router", "processes"), "one router process is simulated; use 1"
    yield from _outside(deployment)


def _outside(deployment: Deployment) -> Iterator[Finding]:
    """Yield the sources of power limits and of requests that virtual time does not have."""
    if deployment.planner.carbon_budgets:
        text = "the calendar's periods are not simulated; use planner.objective.accuracy_mean"
        yield ("planner", "carbon_budgets"), text
    if deployment.grid.openadr:
        text = "the events of its servers are not known in virtual time; omit it"
        yield ("grid", "openadr"), text
    if deployment.grid.mqtt:
        yield ("grid", "mqtt"), "a broker's events are not known in virtual time; use false"
    for zone, price in deployment.grid.prices.items():
        if price.kind != "static":
            text = "only a price that never changes is known in virtual time; use kind: static"
            yield ("grid", "prices", zone), text
    if deployment.regions is not None:
        text = "one region is simulated, and peers would take requests and send some; omit it"
        yield ("regions",), text


def _node(node: Node) -> Iterator[Finding]:
    if not node.simulated:
        yield ("simulated",), "a simulation must know the GPU types; list them here"
    for gpu in node.simulated or ():
        if gpu not in gpu_types.names():
            known = ", ".join(gpu_types.names())
            yield ("simulated",), f"no GPU type {gpu!r}; known are {known}"
    if node.gpus is not None:
        yield ("gpus",), "all GPUs of a node are simulated; list them in simulated"
    if node.clock_loop != "off":
        yield ("clock_loop",), "only clocks that plans set are simulated; use off"


def generates_text(model: Model) -> bool:
    """Return whether a model is simulated token by token."""
    variants = model.variants.values()
    return not any(isinstance(v.runtime, OnnxRuntime | ExternalRuntime) for v in variants)


def _model(model: Model) -> Iterator[Finding]:
    yield from _named(("discipline",), model.discipline, _DISCIPLINES)
    if model.servers:
        text = "only workers of plans are simulated, and servers of others have none; omit it"
        yield ("servers",), text
    if generates_text(model):
        yield from _named(("instance_choice",), model.instance_choice, _CHOICES)
    kinds = {each.runtime.kind for each in model.variants.values()}
    if "onnx" in kinds and kinds & {"openai", "generative"}:
        yield ("variants",), "of one model, all or none can be simulated token by token"
    for name, variant in model.variants.items():
        if variant.stages:
            text = "pipelines cannot be simulated; give the variant one file"
            yield ("variants", name, "stages"), text
        if isinstance(variant.runtime, ExternalRuntime):
            text = "external runtimes cannot be simulated; use onnx, or openai for texts"
            yield ("variants", name, "runtime"), text
        elif not isinstance(variant.runtime, OnnxRuntime) and variant.profile.kind != "language":
            text = f"{variant.runtime.kind} runtimes are simulated with kind: language only"
            yield ("variants", name, "profile"), text


def _named(
    where: tuple[int | str, ...], value: str, problems: Mapping[str, str]
) -> Iterator[Finding]:
    if value in problems:
        yield where, f"{value} {problems[value]}"
