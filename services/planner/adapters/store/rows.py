"""Rows <-> the planner's records."""

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields, replace
from functools import lru_cache
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer, PlainValidator, TypeAdapter
from sqlalchemy import Row

from cinquefoil.gpuagent.v1.records import Segment
from cinquefoil.planner.v1 import plan_pb2
from cinquefoil.planner.v1.records import Dispersion, NodeOrder, Outcome, Plan, PlanState
from services.kit.config import Objective
from services.kit.rpc.record_mapping import from_message, to_message
from services.planner.core.accounting.account import Account, Spent
from services.planner.core.accounting.counters import EnergyCounters
from services.planner.core.accuracy_mean.ledger import GridHour
from services.planner.core.decide import Snapshot
from services.planner.core.known_nodes import JoinedNode
from services.planner.core.model import Gpu, Model, Period
from services.planner.core.online_search.profile_corrections import Beliefs, Cell, Evidence
from services.planner.core.plan import Pin


def plan_row(plan: Plan) -> dict[str, Any]:
    """Return the columns of a plan that stay as they are, its version apart."""
    bare = replace(plan, version=0, failure="", outcome=None)
    return {
        "state": plan.state,
        "created_at": plan.created_at,
        "strategy": plan.strategy,
        "reason": plan.reason,
        "failure": plan.failure,
        "payload": to_message(bare, plan_pb2.Plan).SerializeToString(),
    }


def plan_of(row: Row[Any]) -> Plan:
    """Return the plan of a row of plans, joined with outcomes."""
    return replace(
        planned(row.payload),
        version=row.version,
        state=PlanState(row.state),
        failure=row.failure,
        outcome=_outcome_of(row),
    )


@lru_cache(maxsize=2)
def planned(payload: bytes) -> Plan:
    """Return the columns that stay of a plan; of 8,000 segments that takes a tenth of a second."""
    return from_message(plan_pb2.Plan.FromString(payload), Plan)


def _outcome_of(row: Row[Any]) -> Outcome | None:
    if row.since is None:
        return None
    return Outcome(**{field.name: getattr(row, field.name) for field in fields(Outcome)})


def node_row(joined: JoinedNode | None, order: NodeOrder | None) -> dict[str, Any]:
    """Return the columns of a node, without its name."""
    return {
        "zone": joined.zone if joined else "",
        "address": joined.address if joined else "",
        "ordered": ("drain" if order.drain else "cordon") if order else "",
        "principal": order.principal if order else "",
        "ordered_at": order.at if order else None,
    }


def order_of(row: Row[Any]) -> NodeOrder:
    """Return the order about a node."""
    return NodeOrder(row.ordered == "drain", row.principal, row.ordered_at)


_ACCOUNT = TypeAdapter(Account)
_COUNTERS = TypeAdapter(EnergyCounters)


class AccountEncoder:
    """Encodes accounts that differ little: of a large fleet's, only the changed counters."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[EnergyCounters, bytes]] = {}

    def __call__(self, account: Account) -> bytes:
        """Return the fleet's account as it is written."""
        known, self._known = self._known, {}
        for gpu, counters in account.gpus.items():
            before = known.get(gpu)
            if before is None or before[0] is not counters:
                data = json.dumps(gpu).encode() + b":" + _COUNTERS.dump_json(counters)
                before = counters, data
            self._known[gpu] = before
        gpus = b",".join([data for _, data in self._known.values()])
        rest = _ACCOUNT.dump_json(account, exclude={"gpus"})
        return b'{"gpus":{' + gpus + b"}," + rest.removeprefix(b"{")


def account_of(value: bytes) -> Account:
    """Return the fleet's account; one of a planner that kept totals only knows no parts."""
    data = json.loads(value)
    if "meters_j" not in data:
        return _ACCOUNT.validate_json(value)
    gpus = {gpu: EnergyCounters(0.0, 0.0, j, models=None) for gpu, j in data["meters_j"].items()}
    return Account(Spent(data["energy_j"], data["carbon_gco2e"]), gpus)


def _beliefs_to(beliefs: Beliefs) -> dict[str, Any]:
    evidence = [[*cell, *astuple(found)] for cell, found in beliefs.evidence.items()]
    return {"evidence": evidence, "waits": dict(beliefs.waits)}


def _beliefs_from(data: Any) -> Beliefs:
    names = len(Cell._fields)
    evidence = {Cell(*row[:names]): Evidence(*row[names:]) for row in data["evidence"]}
    return Beliefs(evidence, data["waits"])


def _hour_to(hour: GridHour) -> list[Any]:
    """Return an hour as a row: weeks of them are written at once."""
    number, *values = astuple(hour)
    return [number, *({name: float(f"{v:.6g}") for name, v in each.items()} for each in values)]


def _hour_from(row: Sequence[Any]) -> GridHour:
    return GridHour(*row)


# The planner's own state as JSON; older planners wrote pins without holder, and policies without
# threshold.
StoredBeliefs = Annotated[Beliefs, PlainValidator(_beliefs_from), PlainSerializer(_beliefs_to)]
StoredHours = Annotated[
    tuple[GridHour, ...],
    PlainValidator(lambda found: tuple(map(_hour_from, found))),
    PlainSerializer(lambda hours: [_hour_to(each) for each in hours]),
]
StoredGpus = Annotated[
    dict[tuple[str, str], str],
    BeforeValidator(lambda rows: {(node, uuid): kind for node, uuid, kind in rows}),
    PlainSerializer(lambda gpus: [[*gpu, kind] for gpu, kind in gpus.items()]),
]
StoredPin = Annotated[
    Pin | None, BeforeValidator(lambda found: [found] if isinstance(found, int) else found)
]
StoredPolicy = Annotated[
    tuple[str, str, float | None], BeforeValidator(lambda found: [*found, None][:3])
]
"""Discipline, choice, and threshold, where one was ordered."""


@dataclass(frozen=True, slots=True)
class _StoredSnapshot:
    """A snapshot without the models' profiles, which the deployment has."""

    gpus: tuple[Gpu, ...]
    demand_rps: Mapping[str, float]
    running: tuple[Segment, ...]
    shares: Mapping[str, float]
    objective: Objective
    strategy: str
    forecast: tuple[Period, ...]
    accuracy_price: Mapping[str, float] = field(default_factory=dict)
    dispersion: Mapping[str, Dispersion] = field(default_factory=dict)  # older planners: none


_KEPT = TypeAdapter(_StoredSnapshot)


def snapshot_bytes(snapshot: Snapshot) -> bytes:
    """Return a snapshot as it is written: JSON, compressed; GPUs repeat themselves a lot."""
    kept = _StoredSnapshot(
        gpus=snapshot.gpus,
        demand_rps={model.name: model.demand_rps for model in snapshot.models},
        running=snapshot.running,
        shares=snapshot.shares,
        objective=snapshot.objective,
        strategy=snapshot.strategy,
        forecast=snapshot.forecast,
        accuracy_price=snapshot.accuracy_price,
        dispersion={model.name: model.dispersion for model in snapshot.models},
    )
    return zlib.compress(_KEPT.dump_json(kept))


def snapshot_of(value: bytes, models: Sequence[Model]) -> Snapshot:
    """Return a snapshot.

    Args:
        value: As `snapshot_bytes` made it.
        models: The deployment's models, for their profiles; one that the snapshot does not know
            is left out.
    """
    kept = _KEPT.validate_json(zlib.decompress(value))
    return Snapshot(
        gpus=kept.gpus,
        models=tuple(
            replace(
                model,
                demand_rps=kept.demand_rps[model.name],
                dispersion=kept.dispersion.get(model.name, model.dispersion),
            )
            for model in models
            if model.name in kept.demand_rps
        ),
        running=kept.running,
        shares=dict(kept.shares),
        objective=kept.objective,
        strategy=kept.strategy,
        forecast=kept.forecast,
        accuracy_price=dict(kept.accuracy_price),
    )
