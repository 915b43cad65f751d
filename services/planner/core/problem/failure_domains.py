"""Failure domains, GPUs or nodes that fail as a whole, and the load that models then serve."""

from collections.abc import Iterable
from dataclasses import replace

from services.kit.config import Objective
from services.kit.grouping import grouped
from services.planner.core.model import Gpu, Model, SegmentKind
from services.planner.core.problem.catalog import in_time
from services.planner.core.problem.latency_rule import admissible_rps


def demanding(model: Model) -> bool:
    """Return whether a model must survive a loss, or have several segments."""
    return model.demand_rps > 0 and (model.survive > 0 or model.replicas_min > 1)


def domain_of(model: Model, gpu_uuid: str, node: str) -> str:
    """Return the domain that fails together with a segment."""
    return node if model.spread == "node" else gpu_uuid


def domains_of(model: Model, gpus: Iterable[Gpu]) -> dict[str, list[Gpu]]:
    """Return a model's domains with their GPUs."""
    return grouped((domain_of(model, gpu.uuid, gpu.node), gpu) for gpu in gpus)


def domains_wanted(model: Model, there_are: int) -> int:
    """Return on how many domains a model's segments must be."""
    return min(model.replicas_min, there_are) if model.spread else 1


def least_domains(model: Model, there_are: int) -> int:
    """Return the fewest domains that can keep a model's promises."""
    return max(domains_wanted(model, there_are), 2 if model.survive and there_are > 1 else 1)


def surviving_rps(objective: Objective, model: Model, kind: SegmentKind) -> float:
    """Return the most load that one segment may be given after a loss, req/s.

    The percentile counts as before, for the load that must survive: fewer segments share it.
    """
    after = replace(model, demand_rps=model.survive * model.demand_rps)
    return admissible_rps(objective, after, kind) if in_time(objective, model, kind) else 0.0


def surviving_share(objective: Objective, model: Model, kind: SegmentKind) -> float:
    """Return the share of what must survive that one segment may be given, 0..1."""
    needed_rps = model.survive * model.demand_rps
    return min(1.0, surviving_rps(objective, model, kind) / needed_rps) if needed_rps else 0.0
