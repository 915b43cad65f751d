"""Conditions that keep nodes, zones and variants from working now."""

from collections.abc import Iterable, Iterator

from cinquefoil.condition.v1.records import Condition, ConditionKind
from cinquefoil.gpuagent.v1.records import SegmentState
from services.kit import config
from services.kit.conditions import control_off
from services.planner.core.cycle.cluster_state import ClusterState

_ASSUMED = ("held", "assumed")
"""Provenances of an intensity that no source gave for now."""


def cluster_conditions(state: ClusterState) -> tuple[Condition, ...]:
    """Return every condition of the cluster: those of nodes first, then zones and variants."""
    fleet = state.fleet
    if state.of_nodes[0] != fleet.revision:  # scanning a large fleet takes long
        found = (
            each for name, node in fleet.settings.items() for each in _of_node(name, node, state)
        )
        zones = tuple(dict.fromkeys(node.zone for node in fleet.settings.values()))
        state.of_nodes = fleet.revision, tuple(found), zones
    _, of_nodes, zones = state.of_nodes
    return (
        *of_nodes,
        *_of_silent(state),
        *_of_zones(zones, state),
        *_of_variants(state),
        *_of_texts(state),
        *_of_parked(state),
    )


def _of_node(name: str, node: config.Node, state: ClusterState) -> Iterator[Condition]:
    subject = f"node/{name}"
    if not node.controlled:
        yield control_off(name)
    report = state.fleet.node(name)
    if report is None or not state.fleet.connected(name):
        gone = "has not joined yet" if report is None else "has left"
        yield Condition(ConditionKind.NODE_AWAY, subject, f"the agent of {name} {gone}")
        return
    if not report.gpus:
        yield Condition(
            ConditionKind.GPU_MISSING,
            subject,
            f"the agent of {name} offers no GPU",
            f"nodes.{name}.gpus",
        )
    yield from report.conditions
    for segment in report.segments:
        if segment.reason and segment.state is not SegmentState.QUARANTINED:
            spec = segment.spec
            yield Condition(
                ConditionKind.WORKER_FAILING,
                f"variant/{spec.model}/{spec.variant}",
                f"on {name}, {spec.placement}: {segment.reason}",
            )


def _of_silent(state: ClusterState) -> Iterator[Condition]:
    for name in state.silent():
        why = f"the agent of {name} is silent: it hangs, or nothing comes from its machine any more"
        yield Condition(ConditionKind.NODE_AWAY, f"node/{name}", why)


def _of_zones(zones: Iterable[str], state: ClusterState) -> Iterator[Condition]:
    for zone in zones:
        subject, setting = f"zone/{zone}", f"carbon.zones.{zone}"
        if zone not in state.intensity_gco2e_per_kwh:
            why = f"the carbon service has not reported the intensity of {zone} yet"
            assumed = state.intensity_for_plans().get(zone)
            if assumed is None:
                yield Condition(ConditionKind.ZONE_UNKNOWN, subject, why, setting)
            else:
                why = f"{why}: plans assume {assumed:g} gCO2e/kWh"
                yield Condition(ConditionKind.INTENSITY_STALE, subject, why, "carbon.address")
        elif state.carbon_away:
            since = state.last_intensities()[zone].since
            why = (
                f"the carbon service is away: plans use the last intensity of {zone}, of "
                f"{since:%Y-%m-%d %H:%M} UTC"
            )
            yield Condition(ConditionKind.INTENSITY_STALE, subject, why, "carbon.address")
        elif state.provenance.get(zone) in _ASSUMED:
            why = f"the intensity of {zone} is {state.provenance[zone]}: its sources do not answer"
            yield Condition(ConditionKind.INTENSITY_STALE, subject, why, setting)


def _of_variants(state: ClusterState) -> Iterator[Condition]:
    for (model, variant), why in sorted(state.blocklist.reasons(state.clock.monotonic()).items()):
        yield Condition(
            ConditionKind.QUARANTINED,
            f"variant/{model}/{variant}",
            f"plans leave {variant} of {model} out, since an agent gave up on it"
            f"{f': {why}' if why else ''}",
        )


def _of_texts(state: ClusterState) -> Iterator[Condition]:
    for model, promised in sorted(state.lengths.promised.items()):
        eased = f"plans give them more time, by as much as they exceed {promised}"
        endless = f"not even with more time: plans are made for {promised}"
        yield Condition(
            ConditionKind.TEXTS_TOO_LONG,
            f"model/{model}",
            f"{model}: requests usually have {state.lengths.usual[model]}, and no batch of those "
            f"is in time: {endless if model in state.lengths.endless else eased}",
            f"models.{model}.slo.latency_s",
        )


def _of_parked(state: ClusterState) -> Iterator[Condition]:
    for model, demand_rps in sorted(state.demand_rps().items()):
        if not demand_rps:
            why = f"{model}: no requests, parked: the next one waits for a segment to start"
            setting = f"models.{model}.demand_min_rps"
            yield Condition(ConditionKind.PARKED, f"model/{model}", why, setting)
