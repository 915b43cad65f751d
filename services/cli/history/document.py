"""The past as `/api/history` and `cinquefoil history --json` have it.

Series have a value for each of `times_s`, the starts of the points; null: nothing is known.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any, Final, TypeVar

from cinquefoil.carbon.v1.carbon_pb2 import Intensity
from cinquefoil.gpuagent.v1.inventory_pb2 import Gpu
from cinquefoil.planner.v1.history_pb2 import (
    FleetHistory,
    GpuHistory,
    HistoryPoint,
    ModelHistory,
    SiteHistory,
    ZoneHistory,
)
from cinquefoil.planner.v1.plan_pb2 import PlannedSegment
from services.cli.account import rows
from services.cli.console.names import gpu_name, slice_name
from services.cli.history.fetch import Past, began
from services.cli.history.sentence import sentence
from services.kit.config import Deployment

T = TypeVar("T")
Series = list[float | None]

_PROFILE: Final = re.compile(r"(\d+)g\.")


def document(past: Past, deployment: Deployment) -> dict[str, Any]:
    """Return the past of a deployment.

    Args:
        past: What the services know of it.
        deployment: The deployment file: objectives, accuracies and the speed of the grid's replay.
    """
    step_s = past.step_s
    begin_s = int(past.since.timestamp()) // step_s * step_s
    times_s = list(range(begin_s, int(past.until.timestamp()) + 1, step_s))
    known = {point.since.seconds: point for point in past.points}
    points = [known.get(at_s) for at_s in times_s]
    fleet = [point.fleet if point else None for point in points]
    return {
        "since_s": past.since.timestamp(),
        "until_s": past.until.timestamp(),
        "step_s": step_s,
        "times_s": times_s,
        "zones": list(_zones(points, past, deployment.carbon.replay.speedup)),
        "power": {
            "measured_w": _series(fleet, lambda each: (each.energy_j, each.metered_s)),
            "base_w": _series(fleet, lambda each: (each.base_energy_j, each.metered_s)),
        },
        "sites": list(_sites(points)),
        "emissions": {
            "measured_gco2e_per_h": _series(fleet, _hourly("carbon_gco2e")),
            "base_gco2e_per_h": _series(fleet, _hourly("base_carbon_gco2e")),
        },
        "models": list(_models(points, deployment)),
        "gpus": list(_gpus(points, past)),
        "plans": list(_plans(past, deployment)),
        "saved": _saved(past),
    }


def _series(parts: Iterable[T | None], ratio: Callable[[T], tuple[float, float]]) -> Series:
    """Return quotients; None where there is no part, or nothing to divide by."""
    pairs = ((0.0, 0.0) if part is None else ratio(part) for part in parts)
    return [total / over if over else None for total, over in pairs]


def _hourly(name: str) -> Callable[[FleetHistory], tuple[float, float]]:
    return lambda fleet: (getattr(fleet, name) * 3600, fleet.metered_s)


def _names(points: Sequence[HistoryPoint | None], field: str) -> dict[str, None]:
    """Return the names in a map of points, in order."""
    return dict.fromkeys(sorted({name for each in points if each for name in getattr(each, field)}))


def _parts(points: Sequence[HistoryPoint | None], field: str, name: str) -> list[Any]:
    """Return the entries of a name in a map of points."""
    found = []
    for point in points:
        entries: Mapping[str, Any] = getattr(point, field) if point else {}
        found.append(entries.get(name))
    return found


def _zones(
    points: Sequence[HistoryPoint | None], past: Past, speedup: float
) -> Iterator[dict[str, Any]]:
    def mean(zone: ZoneHistory) -> tuple[float, float]:
        return zone.intensity_gco2e_s_per_kwh, zone.known_s

    present = {each.zone: each for each in past.intensities}
    for zone in sorted({*_names(points, "zones"), *present}):
        forecast = _forecast(present.get(zone), past.until.timestamp(), speedup)
        yield {
            "zone": zone,
            "intensity_gco2e_per_kwh": _series(_parts(points, "zones", zone), mean),
            "forecast": forecast,
        }


def _forecast(intensity: Intensity | None, now_s: float, speedup: float) -> dict[str, list[float]]:
    """Return the forecast in force; its times are clocks', also where the grid is replayed."""
    periods = intensity.forecast.periods if intensity else ()
    grid_s = 0.0
    if intensity is not None:
        grid_s = intensity.since.ToNanoseconds() / 1e9 + intensity.staleness.ToNanoseconds() / 1e9
    begins_s = [now_s + (each.since.ToNanoseconds() / 1e9 - grid_s) / speedup for each in periods]
    return {
        "times_s": [max(at_s, now_s) for at_s in begins_s],
        "expected": [each.intensity_gco2e_per_kwh for each in periods],
        "low": [each.low_gco2e_per_kwh for each in periods],
        "high": [each.high_gco2e_per_kwh for each in periods],
    }


def _models(
    points: Sequence[HistoryPoint | None], deployment: Deployment
) -> Iterator[dict[str, Any]]:
    routed_s = [point.fleet.routed_s if point else 0.0 for point in points]
    for name in _names(points, "models") | dict.fromkeys(deployment.models):
        parts: list[ModelHistory | None] = _parts(points, "models", name)
        last = next((each for each in reversed(parts) if each and each.slo_latency_s), None)
        slo = deployment.models[name].slo if name in deployment.models else None
        yield {
            "model": name,
            "percentile": last.slo_percentile if last else slo.percentile if slo else None,
            "objective_s": last.slo_latency_s if last else slo.latency_s if slo else None,
            "latency_s": _series(parts, lambda each: (each.latency_s, each.timed)),
            "requests_rps": [
                (each.arrived if each else 0) / lasted_s if lasted_s else None
                for each, lasted_s in zip(parts, routed_s, strict=True)
            ],
            "within": _series(parts, _within),
            "accuracy": _series(parts, lambda each: (each.accuracy, each.answered)),
        }


def _sites(points: Sequence[HistoryPoint | None]) -> Iterator[dict[str, Any]]:
    """Yield the power of each site at the wall, and its limit."""

    def measured_w(site: SiteHistory) -> tuple[float, float]:
        return site.energy_j, site.metered_s

    def limit_w(site: SiteHistory) -> tuple[float, float]:
        return site.limit_j, site.limited_s

    for name in _names(points, "sites"):
        parts = _parts(points, "sites", name)
        yield {
            "site": name,
            "measured_w": _series(parts, measured_w),
            "limit_w": _series(parts, limit_w),
        }


def _within(model: ModelHistory) -> tuple[float, float]:
    requests = model.answered + model.refused
    return requests - model.late - model.refused, requests


def _gpus(points: Sequence[HistoryPoint | None], past: Past) -> Iterator[dict[str, Any]]:
    def power_w(gpu: GpuHistory) -> tuple[float, float]:
        return gpu.energy_j, gpu.metered_s

    gpus = {gpu.uuid: (each.node.name, gpu) for each in past.fleet.nodes for gpu in each.node.gpus}
    names = {uuid: f"{node}/{gpu.index}" for uuid, (node, gpu) in gpus.items()}
    for uuid in gpus | _names(points, "gpus"):
        yield {
            "uuid": uuid,
            "name": gpu_name(names, uuid),
            "compute_slices": _cells(gpus[uuid][1]) if uuid in gpus else 1,
            "power_w": _series(_parts(points, "gpus", uuid), power_w),
        }


def _cells(gpu: Gpu) -> int:
    return max((kind.compute_slices for kind in gpu.type.profiles), default=1)


def _plans(past: Past, deployment: Deployment) -> Iterator[dict[str, Any]]:
    """Yield the plans that ran in the window, and what ran at its start."""
    gpus = {gpu.uuid: gpu for each in past.fleet.nodes for gpu in each.node.gpus}
    following = (began(plan).timestamp() for plan in past.plans[1:])
    for n, (plan, until_s) in enumerate(zip_longest(past.plans, following)):
        at = began(plan)
        if until_s is not None and until_s <= past.since.timestamp():
            continue
        yield {
            "version": plan.version,
            "since_s": at.timestamp(),
            "until_s": until_s,
            "cause": plan.reason,
            "sentence": sentence(plan, past.plans[n - 1] if n else None, at),
            "slices": [_slice(each, gpus, deployment) for each in plan.segments],
        }


def _slice(
    segment: PlannedSegment, gpus: Mapping[str, Gpu], deployment: Deployment
) -> dict[str, Any]:
    spec = segment.spec
    gpu, named = gpus.get(spec.gpu_uuid), _PROFILE.match(spec.placement.profile)
    widths = {kind.name: kind.compute_slices for kind in (gpu.type.profiles if gpu else ())}
    whole = int(named[1]) if named else max(widths.values(), default=1)
    model = deployment.models.get(spec.model)
    variant = model.variants.get(spec.variant) if model else None
    return {
        "gpu": spec.gpu_uuid,
        "start": spec.placement.start,
        "compute_slices": widths.get(spec.placement.profile, whole),
        "placement": slice_name(spec.placement),
        "model": spec.model,
        "variant": spec.variant,
        "accuracy": variant.accuracy if variant else None,
    }


def _saved(past: Past) -> dict[str, float | None]:
    """Return what was saved since midnight, UTC, with the bounds of the 95 % interval."""
    *_, total = rows(past.today, "model")
    return {
        "today_gco2e": total.saved_gco2e,
        "low_gco2e": total.saved_gco2e - total.saved_error_gco2e,
        "high_gco2e": total.saved_gco2e + total.saved_error_gco2e,
        "share": total.saved_ratio,
    }
