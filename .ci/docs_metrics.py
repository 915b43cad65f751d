"""The page of the metrics: every one that a service exposes, from the code that exposes it."""

import importlib
from collections.abc import Iterator
from itertools import chain
from types import SimpleNamespace
from typing import Any

OURS = ("cinquefoil_", "gen_ai_")
_SUFFIXES = {
    "counter": ("_total",),
    "histogram": ("_bucket", "_count", "_sum"),
    "summary": ("_count", "_sum"),
}
_INTRODUCTION = (
    "Every metric of a service, from its code; [telemetry](../telemetry.md) explains those of "
    "requests, and says how to scrape them. Each process adds those of Python's client "
    "(`process_*`, `python_*`)."
)
_PROCESS = (
    "services.kit.process.metrics",
    "services.kit.rpc.call_metrics",
)
_MQTT = "services.kit.mqtt.connection"
_OF_SERVICE = {
    "carbon": ("services.carbon.runtime.metrics", _MQTT),
    "planner": ("services.planner.adapters.prometheus", _MQTT),
    "router": ("services.router.adapters.planner_client",),
    "gpuagent": ("services.gpuagent.energy.wall_power", _MQTT),
}


def page() -> str:
    """Return the page, a table for each service."""
    lines = [
        "# Metrics",
        "",
        _INTRODUCTION,
        "",
    ]
    for service, found in families().items():
        title = "Every service" if service == "process" else service
        lines += [f"## {title}", "", "| metric | type | labels | |", "|---|---|---|---|"]
        for each in found:
            labels = ", ".join(f"`{label}`" for label in each.labels)
            text = each.help.replace("|", "\\|").replace("<", "&lt;")
            lines.append(f"| `{each.name}` | {each.kind} | {labels} | {text} |")
        lines.append("")
    return "\n".join(lines)


def families() -> dict[str, list[SimpleNamespace]]:
    """Return name, kind, labels, series and help of each service's metrics; "process": of all."""
    found: dict[str, list[SimpleNamespace]] = {"process": _registered(_PROCESS)}
    collectors = _collectors()
    for service in ("carbon", "planner", "gpuagent", "router", "predictor", "batch", "observe"):
        own = _registered(_OF_SERVICE.get(service, ()))
        own += [_described(family) for family in collectors.get(service, ())]
        found[service] = sorted(own, key=lambda each: each.name)
    return found


def series(service: str) -> set[str]:
    """Return the names of the series that a service's scrape has, where it has samples."""
    known = families()
    return {name for each in (*known["process"], *known[service]) for name in each.series}


def _registered(modules: tuple[str, ...]) -> list[SimpleNamespace]:
    """Return the metrics that modules define at their top, of whatever process imports them."""
    found = []
    for name in modules:
        module = importlib.import_module(name)
        for metric in vars(module).values():
            if callable(getattr(metric, "describe", None)) and not isinstance(metric, type):
                for family in metric.describe():
                    labels = getattr(metric, "_labelnames", ())
                    found.append(_described(family, labels))
            elif type(metric).__name__ == "Calls":
                found += [_described(family) for family in metric.collect()]
    return found


def _collectors() -> dict[str, Iterator[Any]]:
    """Return the families of collectors that read a state; of an empty one none has samples."""
    carbon = importlib.import_module("services.carbon.runtime.metrics")
    agent = importlib.import_module("services.gpuagent.metrics")
    observation = importlib.import_module("services.gpuagent.observation.metrics")
    steering = importlib.import_module("services.gpuagent.steering.metrics")
    advice = importlib.import_module("services.cli.observe.metrics")
    router = importlib.import_module("services.router.adapters.prometheus")
    predictor = importlib.import_module("services.predictor.adapters.prometheus")
    batch = importlib.import_module("services.batch.adapters.prometheus")
    clock = importlib.import_module("services.kit.clock").RealClock()
    nothing: Any = SimpleNamespace(
        list=dict,
        running=(),
        restarts={},
        tracks={},
        latest={},
        forecasts={},
        models=(),
        of={},
        meters={},
    )
    segments: Any = SimpleNamespace(list=list, running=(), sharing=nothing)
    node: Any = SimpleNamespace(name="", segments=segments, device=SimpleNamespace(readings=tuple))
    return {
        "carbon": carbon.IntensityCollector(nothing, clock).collect(),
        "gpuagent": chain(
            agent.AgentCollector(node, nothing, nothing, {}).collect(),
            observation.ObservationCollector(None).collect(),
            steering.SteeringCollector(None).collect(),
        ),
        "router": router.RouterCollector({}, clock, dict).collect(),
        "predictor": predictor.PredictorCollector(nothing, nothing).collect(),
        "batch": batch.BatchCollector(list, dict).collect(),
        "observe": iter(advice.AdviceCollector().collect()),
    }


def _described(family: Any, labels: Any = None) -> SimpleNamespace:
    named = getattr(family, "_labelnames", ()) if labels is None else labels
    kind = "gauge" if family.type == "info" else family.type
    name = f"{family.name}_info" if family.type == "info" else family.name
    suffixes = _SUFFIXES.get(family.type, ("",))
    shown = f"{name}_total" if family.type == "counter" else name
    labelled = ("version",) if family.type == "info" else tuple(named)
    return SimpleNamespace(
        name=shown,
        kind=kind,
        labels=labelled,
        help=family.documentation,
        series={name + suffix for suffix in suffixes},
    )
