"""Plans, routing tables and load reports <-> their protobuf."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC

from cinquefoil.planner.v1 import plan_pb2, planner_pb2
from services.kit.errors import InvalidArgument
from services.planner.convert_node import spec_from, spec_to
from services.planner.plan import Inputs, Outcome, Plan, PlannedSegment, PlanState, Prediction
from services.planner.routers import LoadReport
from services.planner.routing import Instance, ModelRoutes, RoutingTable


def plan_to(plan: Plan) -> plan_pb2.Plan:
    """Return the message of a plan."""
    message = plan_pb2.Plan(
        version=plan.version,
        state=plan_pb2.PlanState.ValueType(plan.state),
        strategy=plan.strategy,
        reason=plan.reason,
        inputs=_inputs_to(plan.inputs),
        segments=[_segment_to(segment) for segment in plan.segments],
        prediction=_prediction_to(plan.prediction),
        outcome=None if plan.outcome is None else _outcome_to(plan.outcome),
        steps=plan.steps,
        slice_changes=plan.slice_changes,
        failure=plan.failure,
    )
    message.created_at.FromDatetime(plan.created_at)
    return message


def plan_from(message: plan_pb2.Plan, outcome: Outcome | None = None) -> Plan:
    """Return a plan.

    Args:
        message: The plan; an outcome in it is ignored.
        outcome: Its outcome, which knows more than the message has.
    """
    return Plan(
        version=message.version,
        created_at=message.created_at.ToDatetime(UTC),
        state=PlanState(message.state),
        strategy=message.strategy,
        reason=message.reason,
        inputs=_inputs_from(message.inputs),
        segments=tuple(_segment_from(segment) for segment in message.segments),
        prediction=_prediction_from(message.prediction),
        steps=message.steps,
        slice_changes=message.slice_changes,
        failure=message.failure,
        outcome=outcome,
    )


def _inputs_to(inputs: Inputs) -> plan_pb2.PlanInputs:
    return plan_pb2.PlanInputs(
        intensity_gco2e_per_kwh=inputs.intensity_gco2e_per_kwh,
        demand_rps=inputs.demand_rps,
        gpus=inputs.gpus,
        carbon_weight=inputs.carbon_weight,
    )


def _inputs_from(message: plan_pb2.PlanInputs) -> Inputs:
    return Inputs(
        intensity_gco2e_per_kwh=dict(message.intensity_gco2e_per_kwh),
        demand_rps=dict(message.demand_rps),
        gpus=dict(message.gpus),
        carbon_weight=message.carbon_weight,
    )


def _segment_to(segment: PlannedSegment) -> plan_pb2.PlannedSegment:
    return plan_pb2.PlannedSegment(
        spec=spec_to(segment.spec),
        node=segment.node,
        share=segment.share,
        throughput_rps=segment.throughput_rps,
        latency_s=segment.latency_s,
    )


def _segment_from(message: plan_pb2.PlannedSegment) -> PlannedSegment:
    return PlannedSegment(
        spec=spec_from(message.spec),
        node=message.node,
        share=message.share,
        throughput_rps=message.throughput_rps,
        latency_s=message.latency_s,
    )


def _prediction_to(prediction: Prediction) -> plan_pb2.Prediction:
    return plan_pb2.Prediction(
        objective=prediction.objective,
        accuracy=prediction.accuracy,
        latency_s=prediction.latency_s,
        power_w=prediction.power_w,
        carbon_gco2e_per_h=prediction.carbon_gco2e_per_h,
        gpus=prediction.gpus,
        gap=prediction.gap,
        unserved_rps=prediction.unserved_rps,
        solve_s=prediction.solve_s,
    )


def _prediction_from(message: plan_pb2.Prediction) -> Prediction:
    return Prediction(
        objective=message.objective,
        accuracy=dict(message.accuracy),
        latency_s=dict(message.latency_s),
        unserved_rps=dict(message.unserved_rps),
        power_w=message.power_w,
        carbon_gco2e_per_h=message.carbon_gco2e_per_h,
        gpus=message.gpus,
        gap=message.gap if message.HasField("gap") else None,
        solve_s=message.solve_s,
    )


def _outcome_to(outcome: Outcome) -> plan_pb2.Outcome:
    return plan_pb2.Outcome(
        active_s=outcome.active_s,
        requests=outcome.requests,
        energy_j=outcome.energy_j,
        carbon_gco2e=outcome.carbon_gco2e,
        latency_s=outcome.latency_s,
    )


def routing_to(table: RoutingTable) -> plan_pb2.RoutingTable:
    """Return the message of a routing table."""
    return plan_pb2.RoutingTable(
        revision=table.revision,
        plan_version=table.plan_version,
        models=[_routes_to(routes) for routes in table.models],
    )


def routing_from(message: plan_pb2.RoutingTable) -> RoutingTable:
    """Return a routing table."""
    return RoutingTable(
        revision=message.revision,
        plan_version=message.plan_version,
        models=tuple(_routes_from(routes) for routes in message.models),
    )


def _routes_to(routes: ModelRoutes) -> plan_pb2.ModelRoutes:
    return plan_pb2.ModelRoutes(
        model=routes.model,
        accuracy_unit=routes.accuracy_unit,
        slo_latency_s=routes.slo_latency_s,
        slo_percentile=routes.slo_percentile,
        instance_choice=routes.instance_choice,
        instances=[
            plan_pb2.Instance(
                endpoint=instance.endpoint,
                segment_id=instance.segment_id,
                variant=instance.variant,
                accuracy=instance.accuracy,
                share=instance.share,
                credits=instance.credits,
                zone=instance.zone,
                pue=instance.pue,
            )
            for instance in routes.instances
        ],
    )


def _routes_from(message: plan_pb2.ModelRoutes) -> ModelRoutes:
    return ModelRoutes(
        model=message.model,
        accuracy_unit=message.accuracy_unit,
        slo_latency_s=message.slo_latency_s,
        slo_percentile=message.slo_percentile,
        instance_choice=message.instance_choice,
        instances=tuple(
            Instance(
                endpoint=instance.endpoint,
                segment_id=instance.segment_id,
                variant=instance.variant,
                accuracy=instance.accuracy,
                share=instance.share,
                credits=instance.credits,
                zone=instance.zone,
                pue=instance.pue,
            )
            for instance in message.instances
        ),
    )


def load_from(
    message: planner_pb2.ReportLoadRequest, percentiles: Mapping[str, float]
) -> LoadReport:
    """Return what a router reports.

    Args:
        message: The report.
        percentiles: The SLO's percentile by model.

    Raises:
        InvalidArgument: The report does not name its router.
    """
    if not message.router_id:
        raise InvalidArgument("router_id: required", field="router_id")
    return LoadReport(
        router_id=message.router_id,
        revision=message.routing_revision,
        window_s=message.window.ToTimedelta().total_seconds(),
        arrivals={load.model: load.arrivals for load in message.models},
        answered=sum(load.answered for load in message.models),
        latency_s={
            load.model: load.latency_s[key]
            for load in message.models
            if load.model in percentiles
            and (key := f"{percentiles[load.model]:g}") in load.latency_s
        },
    )
