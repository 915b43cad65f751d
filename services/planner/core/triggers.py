"""Triggers of re-planning, with the sentence that gives the reason.

Pure: compares the state at the last decision with the current one.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from operator import itemgetter

from cinquefoil.gpuagent.v1.records import SegmentSpec
from services.kit.config import Triggers
from services.kit.plurals import counted
from services.kit.units import S_PER_H
from services.planner.core.decide import Circumstances, Snapshot
from services.planner.core.energy_prices.course import counted_eur_per_kwh
from services.planner.core.fixed_inputs import differences
from services.planner.core.plan import ordered_by


class Kind(StrEnum):
    """Cause of a plan, most urgent first."""

    FIRST = "first"
    RETRY = "retry"
    OBJECTIVE = "objective"
    FLEET = "fleet"
    POWER = "power"
    SLA = "sla"
    ACCURACY = "accuracy"
    DEMAND = "demand"
    CARBON = "carbon"


@dataclass(frozen=True, slots=True)
class Trigger:
    """A cause of re-planning.

    Attributes:
        kind: Kind of cause.
        reason: A sentence for people.
        needed: The objective may be missed without another plan; else it only gains.
        urgent: No waiting time applies: capacity in use was lost, a parked model has a request, or
            an agent waits for the plan.
    """

    kind: Kind
    reason: str
    needed: bool = True
    urgent: bool = False


@dataclass(frozen=True, slots=True)
class Observation(Circumstances):
    """The part of a snapshot that can cause a plan, or a plan's inputs and target.

    Attributes:
        intensity_gco2e_per_kwh: Intensity by zone.
        demand_rps: Load to provide for, by model, req/s.
        gpus: GPU type by (node, GPU UUID), including `cordoned` nodes.
        segments: Running segments; of a plan: its target.
        carbon_weight: CLOVER's lambda in use.
        leaving: GPUs whose segments are to be moved, as (node, GPU UUID).
        counted_eur_per_kwh: With `objective.kind: cost`, what a kWh costs with its carbon, by zone.
    """

    intensity_gco2e_per_kwh: Mapping[str, float]
    demand_rps: Mapping[str, float]
    gpus: Mapping[tuple[str, str], str]
    segments: frozenset[SegmentSpec]
    carbon_weight: float
    leaving: frozenset[tuple[str, str]] = frozenset()
    counted_eur_per_kwh: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, now: Snapshot) -> Observation:
        """Return the part of a snapshot that can cause a plan."""
        return cls(
            intensity_gco2e_per_kwh={
                gpu.pool.zone: gpu.pool.intensity_gco2e_per_kwh for gpu in now.all_gpus
            },
            demand_rps=now.demand_rps,
            gpus={
                (gpu.node, gpu.uuid): gpu.pool.type.name
                for gpu in (*now.gpus, *(each for each in now.leaving if each.node in now.cordoned))
            },
            segments=frozenset(
                run.spec for run in now.running if run.spec.segment_id not in now.unreached
            ),
            carbon_weight=now.objective.carbon_weight,
            leaving=frozenset((gpu.node, gpu.uuid) for gpu in now.leaving),
            counted_eur_per_kwh=_counted(now),
            **{each.name: getattr(now, each.name) for each in fields(Circumstances)},
        )

    def wanting(self, segments: frozenset[SegmentSpec]) -> Observation:
        """Return the observation for later comparisons, once a plan wants these segments."""
        return replace(self, segments=segments, late=(), inaccurate=())


def cause(before: Observation | None, now: Observation, settings: Triggers) -> Trigger | None:
    """Return the trigger to re-plan; None: nothing has changed enough.

    Args:
        before: Observation at the last decision, with its target; None: no plan yet.
        now: Current observation.
        settings: Thresholds.

    Returns:
        The most urgent kind, with the sentences of all, so that simultaneous changes are reported
        together.
    """
    if before is None:
        return Trigger(Kind.FIRST, f"first plan: {_fleet_size(now)}")
    found = [
        *_objective(before, now),
        *_fleet(before, now),
        *_power(before, now),
        *_broken(now),
        *_relative(Kind.DEMAND, before.demand_rps, now.demand_rps, "req/s", settings.demand_change),
        *_text_lengths(before, now),
        *_dispersion(before, now),
        *_carbon(before, now, settings.intensity_change),
        *_accuracy_price(before, now, settings.intensity_change),
        *_prices(before, now, settings.intensity_change),
    ]
    if not found:
        return None
    return Trigger(
        found[0].kind,
        "; ".join(trigger.reason for trigger in found),
        needed=any(trigger.needed for trigger in found),
        urgent=any(trigger.urgent for trigger in found),
    )


def disturbance(before: Observation | None, now: Observation, settings: Triggers) -> Trigger | None:
    """Return the reason to give up a pinned plan's hold; arguments as for `cause`.

    Only running segments, their GPUs and power budgets count: with any other change the plan stays.
    """
    if before is None:
        return cause(before, now, settings)
    return cause(
        before,
        replace(before, gpus=now.gpus, segments=now.segments, power_limit_w=now.power_limit_w),
        settings,
    )


def loss(
    before: Observation | None, now: Observation, settings: Triggers, *, short: bool
) -> Trigger | None:
    """Return the trigger while reconfigurations are held back; arguments as for `cause`.

    Only lost capacity counts: GPUs, segments, and variants that agents gave up on; and requests of
    models that were parked.

    Args:
        before: Observation at the last decision.
        now: Current observation.
        settings: Thresholds.
        short: Whether the plan misses its promises: then added GPUs count as well.
    """
    if before is None:
        return cause(before, now, settings)
    lost = replace(
        before,
        gpus=now.gpus if short else {gpu: now.gpus[gpu] for gpu in before.gpus if gpu in now.gpus},
        segments=before.segments & now.segments,
        blocked=before.blocked | now.blocked,
        power_limit_w={
            site: min(limit_w, before.power_limit_w.get(site, math.inf))
            for site, limit_w in now.power_limit_w.items()
        }
        | {
            site: limit_w
            for site, limit_w in before.power_limit_w.items()
            if site not in now.power_limit_w
        },
        demand_rps={
            model: now.demand_rps.get(model, 0.0) if rps == 0 else rps
            for model, rps in before.demand_rps.items()
        },
    )
    return cause(before, lost, settings)


def wait_s(
    trigger: Trigger, since_last_s: float, settings: Triggers, ages_s: Sequence[float] = ()
) -> float:
    """Return the time that a trigger must still wait, s; 0: plan now.

    Args:
        trigger: The trigger.
        since_last_s: Time since the last decision, s; infinite: there was none.
        settings: `min_interval_s` applies except to first plans, new objectives, retries (which
            have a backoff of their own) and urgent triggers; `plans_per_hour` to those not needed.
        ages_s: Ages of the plans that changed what runs, s, the latest last.
    """
    if trigger.urgent or trigger.kind in (Kind.FIRST, Kind.OBJECTIVE, Kind.RETRY):
        return 0.0
    wait = max(0.0, settings.min_interval_s - since_last_s)
    limit = settings.plans_per_hour
    if trigger.needed or not limit or len(ages_s) < limit:
        return wait
    return max(wait, S_PER_H - ages_s[-limit])


def _objective(before: Observation, now: Observation) -> Iterator[Trigger]:
    orders = []
    if before.strategy != now.strategy:
        orders.append(f"objective: strategy {before.strategy} -> {now.strategy}")
    if before.carbon_weight != now.carbon_weight:
        orders.append(f"objective: carbon_weight {before.carbon_weight:g} -> {now.carbon_weight:g}")
    for order in orders:
        yield Trigger(Kind.OBJECTIVE, order + ordered_by(now.objective_by))
    changed = differences(before.fixed, now.fixed)
    if changed:
        yield Trigger(Kind.OBJECTIVE, f"settings: {changed}")


def _fleet(before: Observation, now: Observation) -> Iterator[Trigger]:
    differing = before.gpus.items() ^ now.gpus.items() if before.gpus != now.gpus else ()
    changed = sorted({node for (node, _), _ in differing})
    had, has = _gpus_of(changed, before), _gpus_of(changed, now)
    serving = {spec.gpu_uuid for spec in before.segments} if changed else set[str]()
    for node in changed:
        old, new = Counter(had[node].values()), Counter(has[node].values())
        if old != new:
            leaves = any(gpu in before.gpus for gpu in now.leaving if gpu[0] == node)
            lost = not serving.isdisjoint(had[node].keys() - has[node].keys())
            what = f"fleet: {node} {_gpus(old)} -> {_gpus(new)}"
            yield Trigger(Kind.FLEET, what, urgent=leaves or lost)
        elif had[node].keys() != has[node].keys():
            yield Trigger(Kind.FLEET, f"fleet: {node} has other GPUs")
    for node in sorted((before.cordoned - now.cordoned) & {name for name, _ in now.gpus}):
        yield Trigger(Kind.FLEET, f"fleet: {node} may be used again", needed=False)
    yield from _segments(before, now)
    for model, variant in sorted(now.blocked - before.blocked):
        yield Trigger(Kind.FLEET, f"fleet: an agent gave up on {variant} of {model}")
    for model, variant in sorted(before.absent - now.absent):
        yield Trigger(Kind.FLEET, f"fleet: a node has the file of {variant} of {model} now")
    for model, variant in sorted(before.blocked - now.blocked):
        yield Trigger(Kind.FLEET, f"fleet: {variant} of {model} may be tried again")


def _segments(before: Observation, now: Observation) -> Iterator[Trigger]:
    missing, extra = before.segments - now.segments, now.segments - before.segments
    if missing:
        what = f"fleet: {_names(missing)} should run and does not"
        if not now.segments:
            what = f"fleet: nothing runs, as after a restart; {_names(missing)} should"
        yield Trigger(Kind.FLEET, what, urgent=True)
    if extra:
        yield Trigger(Kind.FLEET, f"fleet: {_names(extra)} runs and should not")


def _power(before: Observation, now: Observation) -> Iterator[Trigger]:
    """Yield sites with another power budget; a lower one waits for nothing."""
    old, new = before.power_limit_w, now.power_limit_w
    for site in sorted(old.keys() | new.keys()):
        was, limit_w = old.get(site, math.inf), new.get(site, math.inf)
        if was != limit_w:
            text = f"power: {site} {_watts(was)} -> {_watts(limit_w)}"
            lower = limit_w < was
            yield Trigger(Kind.POWER, text, needed=lower, urgent=lower)


def _watts(limit_w: float) -> str:
    return f"{1e-3 * limit_w:.4g} kW" if math.isfinite(limit_w) else "no budget"


def _broken(now: Observation) -> Iterator[Trigger]:
    """Yield violated SLOs; the reconciler restarts the counts with each plan."""
    for late in now.late:
        seen = f"{_share(late.seen)} of {late.model} late ({_share(late.promised)} may)"
        yield Trigger(Kind.SLA, f"sla: {late.why or seen}")
    for poor in now.inaccurate:
        yield Trigger(
            Kind.ACCURACY,
            f"accuracy: {poor.model} at {_share(poor.seen)} of its best variant, "
            f"below the floor of {_share(poor.promised)}",
        )


def _share(value: float) -> str:
    return f"{100 * value:.1f} %"


def _relative(
    kind: Kind, before: Mapping[str, float], now: Mapping[str, float], unit: str, limit: float
) -> Iterator[Trigger]:
    for name in sorted(now):
        old, new = before.get(name), now[name]
        if old is None or abs(_change(old, new)) > limit:
            needed = kind is Kind.DEMAND and new > (old or 0.0)
            wakes = needed and old == 0
            if old is None:
                yield Trigger(kind, f"{kind}: {name} {new:.1f} {unit} (new)", needed)
            else:
                change = _change(old, new)
                share = f"{change:+.1%}".replace("%", " %") if math.isfinite(change) else "new"
                text = f"{kind}: {name} {old:.1f} -> {new:.1f} {unit} ({share})"
                if kind is Kind.DEMAND and not new:
                    text = f"{kind}: {name} has no requests, parked"
                yield Trigger(kind, text, needed, urgent=wakes)


def _text_lengths(before: Observation, now: Observation) -> Iterator[Trigger]:
    """Yield models whose texts are longer or shorter than planned for."""
    for model, length in sorted(now.text_lengths.items()):
        old = before.text_lengths.get(model)
        if old != length:
            longer = old is None or length.answer_tokens_worth > old.answer_tokens_worth
            was = f" ({old} before)" if old else ""
            yield Trigger(Kind.DEMAND, f"demand: {model} {length} a request{was}", longer)


def _dispersion(before: Observation, now: Observation) -> Iterator[Trigger]:
    """Yield models whose load is burstier or steadier than planned for."""
    for model, new in sorted(now.dispersion.items(), key=itemgetter(0)):
        old = before.dispersion.get(model)
        if old is not None and old != new:
            burstier = new.at_1s > old.at_1s or new.at_10s > old.at_10s
            text = (
                f"demand: {model} comes in {'larger' if burstier else 'smaller'} bursts, "
                f"dispersion {old.at_1s:.1f} -> {new.at_1s:.1f} at 1 s, "
                f"{old.at_10s:.1f} -> {new.at_10s:.1f} at 10 s"
            )
            yield Trigger(Kind.DEMAND, text, burstier)


def _carbon(before: Observation, now: Observation, limit: float) -> Iterator[Trigger]:
    """Yield zones whose intensity has been different throughout the dwell.

    The value nearest to the old one must be beyond the limit: then all are, on the same side.
    """
    old, new = before.intensity_gco2e_per_kwh, now.intensity_gco2e_per_kwh
    lasting = dict(new)
    for zone, (low, high) in now.steady_gco2e_per_kwh.items():
        if zone in old and zone in new:
            lasting[zone] = min(max(old[zone], low), high)
    changed = {
        zone: new[zone]
        for zone, value in lasting.items()
        if zone not in old or abs(_change(old[zone], value)) > limit
    }
    yield from _relative(Kind.CARBON, old, changed, "gCO2e/kWh", limit)


def _accuracy_price(before: Observation, now: Observation, limit: float) -> Iterator[Trigger]:
    """Yield models whose accuracy has another price, with which their mean is kept."""
    yield from _relative(
        Kind.CARBON,
        {f"a point of {name}": 1e6 * price for name, price in before.accuracy_price.items()},
        {f"a point of {name}": 1e6 * price for name, price in now.accuracy_price.items()},
        "gCO2e/million requests",
        limit,
    )


def _counted(now: Snapshot) -> dict[str, float]:
    objective = now.objective
    if objective.kind != "cost":
        return {}
    return {
        gpu.pool.zone: counted_eur_per_kwh(
            gpu.pool.eur_per_kwh,
            gpu.pool.intensity_gco2e_per_kwh,
            objective.carbon_price_eur_per_t,
        )
        for gpu in now.all_gpus
    }


def _prices(before: Observation, now: Observation, limit: float) -> Iterator[Trigger]:
    """Yield zones whose kWh has another cost; plans of other objectives know none."""
    if before.counted_eur_per_kwh:
        yield from _relative(
            Kind.CARBON,
            {f"a MWh in {zone}": 1e3 * eur for zone, eur in before.counted_eur_per_kwh.items()},
            {f"a MWh in {zone}": 1e3 * eur for zone, eur in now.counted_eur_per_kwh.items()},
            "EUR with its carbon",
            limit,
        )


def _change(old: float, new: float) -> float:
    if old == new:
        return 0.0
    return (new - old) / old if old > 0 else math.inf


def _gpus_of(nodes: Iterable[str], seen: Observation) -> dict[str, dict[str, str]]:
    """Return GPU type by UUID of each node, in one pass over the GPUs of the fleet."""
    found: dict[str, dict[str, str]] = {node: {} for node in nodes}
    for (node, uuid), kind in seen.gpus.items():
        if node in found:
            found[node][uuid] = kind
    return found


def _gpus(counts: Mapping[str, int]) -> str:
    return " + ".join(f"{count} x {kind}" for kind, count in sorted(counts.items())) or "away"


def _names(specs: frozenset[SegmentSpec]) -> str:
    names = sorted(f"{spec.variant} on {spec.placement}" for spec in specs)
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"{names[0]}{more}"


def _fleet_size(seen: Observation) -> str:
    nodes = {node for node, _ in seen.gpus}
    return f"{counted(len(nodes), 'node')}, {counted(len(seen.gpus), 'GPU')}"
