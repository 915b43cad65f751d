"""Routing tables from serving segments."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Final

from cinquefoil.condition.v1.records import Condition
from cinquefoil.planner.v1.records import (
    Forward,
    Instance,
    ModelRoutes,
    Plan,
    PlannedSegment,
    RoutingTable,
    WaitingRelease,
)
from services.kit.config import Deployment, Discipline, InstanceChoice, Model
from services.kit.grouping import grouped, summed
from services.planner.core.known_nodes import GpuPower, NodeRoutes
from services.planner.core.model import Queue, queue_of
from services.planner.core.plan import queue_of_planned


@dataclass(frozen=True, slots=True)
class ServingPolicy:
    """Policy for serving a model's requests.

    Attributes:
        discipline: Order of waiting requests.
        instance_choice: Choice among instances.
        intensity_threshold: CARBONDIS' CIT.
    """

    discipline: Discipline
    instance_choice: InstanceChoice
    intensity_threshold: float = 1.0

    @staticmethod
    def of(model: Model) -> ServingPolicy:
        """Return a model's policy in the deployment."""
        return ServingPolicy(model.discipline, model.instance_choice, model.intensity_threshold)


_ROUNDING: Final = 1e-9

_FROM_FILE: Mapping[str, ServingPolicy] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Announcement:
    """State sent to subscribers.

    Attributes:
        plan: The newest plan; None: none yet.
        routing: The routing table.
        conditions: Conditions of nodes, models, plans and zones.
        releases: Waiting work that may run, by model; None: not decided yet.
        forwards: Requests that may go to peer regions; None: not decided yet.
    """

    plan: Plan | None
    routing: RoutingTable
    conditions: tuple[Condition, ...] = ()
    releases: tuple[WaitingRelease, ...] | None = None
    forwards: tuple[Forward, ...] | None = None


class Places:
    """Positions of each segment's workers in a table, to replace moved endpoints.

    Args:
        table: Routing table.
        segments: Segments that it was made of.
    """

    def __init__(self, table: RoutingTable, segments: Iterable[PlannedSegment]) -> None:
        self._table = table
        self._places = grouped(
            (instance.segment_id, (number, place))
            for number, routes in enumerate(table.models)
            for place, instance in enumerate(routes.instances)
        )
        self._on = grouped((segment.node, segment) for segment in segments)

    def are_of(self, table: RoutingTable) -> bool:
        """Return whether the positions are those of a table."""
        return self._table is table

    def moved(self, nodes: Mapping[str, NodeRoutes | None]) -> RoutingTable | None:
        """Return the next table after workers of nodes have moved to other endpoints.

        Afterwards the positions are those of that table.

        Args:
            nodes: Current reports of these nodes, by name.

        Returns:
            The table; the same one if nothing has changed; None: more than endpoints changed.
        """
        changed: dict[tuple[int, int], Instance] = {}
        for node, routed in nodes.items():
            known = {segment.spec.segment_id: segment for segment in self._on.get(node, ())}
            endpoints = {} if routed is None else routed.endpoints
            if any(each in self._places for each in endpoints.keys() - known.keys()):
                return None
            for segment_id, segment in known.items():
                places, workers = self._places.get(segment_id, []), endpoints.get(segment_id, ())
                if len(places) != len(workers):
                    return None
                for (number, place), endpoint in zip(places, workers, strict=True):
                    before = self._table.models[number].instances[place]
                    if routed is None or not _same_hardware(before, routed, segment):
                        return None
                    if before.endpoint != endpoint:
                        changed[number, place] = replace(before, endpoint=endpoint)
        if changed:
            instances = [list(routes.instances) for routes in self._table.models]
            for (number, place), instance in changed.items():
                instances[number][place] = instance
            models = tuple(
                replace(routes, instances=tuple(found))
                for routes, found in zip(self._table.models, instances, strict=True)
            )
            table = replace(self._table, revision=self._table.revision + 1, models=models)
            self._table = table
        return self._table


def _same_hardware(before: Instance, routed: NodeRoutes, segment: PlannedSegment) -> bool:
    power = routed.powers.get(segment.spec.gpu_uuid, GpuPower())
    return (before.pue, before.gpu_idle_power_w, before.power_limit_w) == (routed.pue, *power)


def by_capacity(segments: Iterable[PlannedSegment]) -> tuple[PlannedSegment, ...]:
    """Return segments with shares in proportion to their throughput, per queue.

    For the time between two plans, when neither plan's shares fit the serving segments: equal
    utilisation preserves the most capacity.
    """
    segments = tuple(segments)
    total_rps = summed((queue_of_planned(segment), segment.throughput_rps) for segment in segments)
    return tuple(
        replace(segment, share=segment.throughput_rps / total_rps[queue_of_planned(segment)])
        if total_rps[queue_of_planned(segment)] > 0
        else replace(segment, share=1.0)  # nothing is known: `routes` equalises them
        for segment in segments
    )


def routes(
    deployment: Deployment,
    segments: Iterable[PlannedSegment],
    reported: Callable[[str], NodeRoutes | None],
    policies: Mapping[str, ServingPolicy] = _FROM_FILE,
) -> tuple[ModelRoutes, ...]:
    """Return the routes of every model of the deployment.

    Args:
        deployment: Models and zones.
        segments: Serving segments, with shares.
        reported: Returns an agent's report by name of its node. A segment without workers is left
            out and the shares of the others of its queue grow in proportion. A segment's share is
            split equally over its workers.
        policies: Policies of models that differ from the deployment's.
    """
    found = {name: ServingPolicy.of(model) for name, model in deployment.models.items()} | {
        **policies
    }
    nodes: dict[str, NodeRoutes | None] = {}
    serving: dict[str, list[tuple[PlannedSegment, NodeRoutes]]] = {}
    for segment in segments:
        if segment.node not in nodes:
            nodes[segment.node] = reported(segment.node)
        known, node = deployment.models.get(segment.spec.model), nodes[segment.node]
        if node is None or known is None or segment.spec.variant not in known.variants:
            continue
        if node.endpoints.get(segment.spec.segment_id):
            serving.setdefault(segment.spec.model, []).append((segment, node))
    return tuple(
        ModelRoutes(
            model=name,
            accuracy_unit=model.accuracy_unit,
            slo_latency_s=model.slo.latency_s,
            slo_percentile=model.slo.percentile,
            slo_first_token_s=model.slo.ttft_s or 0.0,
            slo_token_s=model.slo.tpot_s or 0.0,
            instance_choice=found[name].instance_choice,
            discipline=found[name].discipline,
            intensity_threshold=found[name].intensity_threshold,
            instances=tuple(_instances(deployment, model, serving.get(name, ()))),
        )
        for name, model in deployment.models.items()
    )


def _instances(
    deployment: Deployment, model: Model, serving: Iterable[tuple[PlannedSegment, NodeRoutes]]
) -> Iterable[Instance]:
    """Yield the instances of a model; the shares of each queue sum to 1.

    Where all shares of a queue are 0, they become equal.
    """
    totals = summed((queue_of_planned(segment), segment.share) for segment, _ in serving)
    counts = summed(
        (queue_of_planned(each), len(node.endpoints[each.spec.segment_id]))
        for each, node in serving
    )
    # Shares that sum to 1 up to rounding stay unchanged: the same segments, planned or restored,
    # give the same table.
    totals = {
        queue: 1.0 if math.isclose(total, 1.0, abs_tol=_ROUNDING) else total
        for queue, total in totals.items()
    }
    for segment, node in serving:
        spec, queue = segment.spec, queue_of_planned(segment)
        variant, endpoints = model.variants[spec.variant], node.endpoints[spec.segment_id]
        power = node.powers.get(spec.gpu_uuid, GpuPower())
        share = (
            segment.share / totals[queue] / len(endpoints)
            if totals[queue] > 0
            else 1 / counts[queue]
        )
        for endpoint in endpoints:
            yield _instance(
                endpoint,
                spec.segment_id,
                spec.variant,
                variant.accuracy,
                share,
                spec.batch_size,
                deployment.nodes[segment.node].zone,
                node.pue,
                power.idle_w,
                spec.stage,
                max(1, len(variant.stages)),
                power.limit_w,
            )


# One object per value: tables with few differences are compared and encoded quickly.
_instance = lru_cache(maxsize=2**16)(Instance)


def queue_of_instance(instance: Instance) -> Queue:
    """Return the queue that an instance takes requests from."""
    return queue_of("", instance.variant, instance.stage)
