"""Changes from one routing table to the next, so that routers need not get all of it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import fields, replace
from operator import attrgetter

from cinquefoil.planner.v1 import plan_pb2
from cinquefoil.planner.v1.records import Instance, ModelRoutes, RoutingTable
from services.planner.adapters.wire.convert import routes_to
from services.planner.core.model import Queue
from services.planner.core.routing_table import queue_of_instance

_but_share = attrgetter(*(each.name for each in fields(Instance) if each.name != "share"))


def routing_change(before: RoutingTable, after: RoutingTable) -> plan_pb2.RoutingChange:
    """Return the changes from one table to the next.

    An instance that comes or goes changes the shares of all others of its stage by one factor,
    which is left out: to apply the change, divide each share by the sum of its stage's.
    """
    known = {routes.model: routes for routes in before.models}
    changes = (_model_change(known.pop(each.model, None), each) for each in after.models)
    return plan_pb2.RoutingChange(
        base_revision=before.revision,
        revision=after.revision,
        plan_version=after.plan_version,
        models=[change for change in changes if change is not None],
        removed_models=known,
        term=after.term,
    )


def _model_change(
    before: ModelRoutes | None, after: ModelRoutes
) -> plan_pb2.ModelRoutesChange | None:
    if before is None:
        return plan_pb2.ModelRoutesChange(routes=routes_to(after))
    if before == after:
        return None
    if len(before.instances) == len(after.instances):
        # Of one value there is one object, and few change at once in a large table.
        moved = [
            (was, now)
            for was, now in zip(before.instances, after.instances, strict=True)
            if was is not now
        ]
        if 2 * len(moved) <= len(after.instances):
            return _replaced(moved, after)
    old = {(each.endpoint, each.segment_id): each for each in before.instances}
    pairs = [(old.pop((each.endpoint, each.segment_id), None), each) for each in after.instances]
    factors = _factors(pairs)
    changed = []
    for was, each in pairs:
        share = each.share / factors.get(queue_of_instance(each), 1.0)
        same = was is each or (was is not None and _but_share(was) == _but_share(each))
        if was is None or not same or not math.isclose(was.share, share, abs_tol=1e-15):
            changed.append(replace(each, share=share))
    return _change(after, changed, old)


def _replaced(
    pairs: Iterable[tuple[Instance, Instance]], after: ModelRoutes
) -> plan_pb2.ModelRoutesChange:
    """Return a change in which all instances but `pairs` stay, with their shares."""
    old = {(was.endpoint, was.segment_id): was for was, _ in pairs}
    changed = [now for _, now in pairs if old.pop((now.endpoint, now.segment_id), None) != now]
    return _change(after, changed, old)


def _change(
    after: ModelRoutes, changed: Iterable[Instance], removed: Iterable[tuple[str, str]]
) -> plan_pb2.ModelRoutesChange:
    """Return a change to a model's routes.

    Args:
        after: The model as it is now.
        changed: New or changed instances, with shares relative to those of the others in the table
            before.
        removed: Endpoint and segment id of removed instances.
    """
    return plan_pb2.ModelRoutesChange(
        routes=routes_to(replace(after, instances=tuple(changed))),
        removed=[
            plan_pb2.InstanceId(endpoint=endpoint, segment_id=segment_id)
            for endpoint, segment_id in removed
        ],
    )


def _factors(pairs: Iterable[tuple[Instance | None, Instance]]) -> dict[Queue, float]:
    """Return the factor by which the shares of most instances of each stage have changed."""
    ratios: dict[Queue, Counter[float]] = {}
    for was, now in pairs:
        if was is not None and was.share > 0 and now.share > 0:
            ratio = float(f"{now.share / was.share:.12g}")  # but for rounding
            ratios.setdefault(queue_of_instance(now), Counter())[ratio] += 1
    return {queue: counted.most_common(1)[0][0] for queue, counted in ratios.items()}
