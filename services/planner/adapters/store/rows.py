"""Rows <-> the planner's records."""

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, fields, replace
from functools import lru_cache
from typing import Any

from pydantic import TypeAdapter
from sqlalchemy import Row

from cinquefoil.planner.v1 import plan_pb2
from services.kit.config import Objective
from services.planner.adapters.wire.convert import plan_from, plan_to
from services.planner.core.accounting.account import Account, Spent
from services.planner.core.accounting.counters import EnergyCounters
from services.planner.core.decide import Snapshot
from services.planner.core.fleet import RunningSegment
from services.planner.core.maintenance import Freeze
from services.planner.core.model import Gpu, Model, Period
from services.planner.core.online_search.profile_corrections import Beliefs, Cell, Evidence
from services.planner.core.overrides import Override
from services.planner.core.plan import Outcome, Plan, PlanState
from services.planner.core.roster import JoinedNode, NodeOrder, OrderedNode


def plan_row(plan: Plan) -> dict[str, Any]:
    """Return the columns of a plan that stay as they are, its version apart."""
    bare = replace(plan, version=0, failure="", outcome=None)
    return {
        "state": plan.state,
        "created_at": plan.created_at,
        "strategy": plan.strategy,
        "reason": plan.reason,
        "failure": plan.failure,
        "payload": plan_to(bare).SerializeToString(),
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
    return plan_from(plan_pb2.Plan.FromString(payload))


def _outcome_of(row: Row[Any]) -> Outcome | None:
    if row.since is None:
        return None
    return Outcome(**{field.name: getattr(row, field.name) for field in fields(Outcome)})


_FREEZE: TypeAdapter[Freeze | None] = TypeAdapter(Freeze | None)


def freeze_bytes(freeze: Freeze | None) -> bytes:
    """Return a freeze as it is written."""
    return _FREEZE.dump_json(freeze)


def freeze_of(value: bytes) -> Freeze | None:
    """Return a freeze."""
    return _FREEZE.validate_json(value)


_OVERRIDES = TypeAdapter(dict[str, Override])


def overrides_bytes(overrides: Mapping[str, Override]) -> bytes:
    """Return what operators changed of the settings, as it is written."""
    return _OVERRIDES.dump_json(dict(overrides))


def overrides_of(value: bytes) -> dict[str, Override]:
    """Return what operators changed of the settings, by path."""
    return _OVERRIDES.validate_json(value)


def node_row(joined: JoinedNode | None, order: OrderedNode | None) -> dict[str, Any]:
    """Return the columns of what is known of a node, its name apart."""
    return {
        "zone": joined.zone if joined else "",
        "address": joined.address if joined else "",
        "ordered": order.order if order else "",
        "principal": order.principal if order else "",
        "ordered_at": order.at if order else None,
    }


def order_of(row: Row[Any]) -> OrderedNode:
    """Return what is ordered of a node."""
    return OrderedNode(NodeOrder(row.ordered), row.principal, row.ordered_at)


_ACCOUNT = TypeAdapter(Account)
_COUNTERS = TypeAdapter(EnergyCounters)


class AccountEncoder:
    """Encodes accounts that hardly differ: of a large fleet's, the counters that are others."""

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


def beliefs_bytes(beliefs: Beliefs) -> bytes:
    """Return what live measurements taught, as it is written."""
    evidence = [[*cell, *astuple(found)] for cell, found in beliefs.evidence.items()]
    return json.dumps({"evidence": evidence, "waits": dict(beliefs.waits)}).encode()


def beliefs_of(value: bytes) -> Beliefs:
    """Return what live measurements taught."""
    data = json.loads(value)
    names = len(Cell._fields)
    evidence = {Cell(*row[:names]): Evidence(*row[names:]) for row in data["evidence"]}
    return Beliefs(evidence, data["waits"])


@dataclass(frozen=True, slots=True)
class _StoredSnapshot:
    """A snapshot without the models' profiles, which the deployment has."""

    gpus: tuple[Gpu, ...]
    demand_rps: Mapping[str, float]
    running: tuple[RunningSegment, ...]
    shares: Mapping[str, float]
    objective: Objective
    strategy: str
    forecast: tuple[Period, ...]


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
            replace(model, demand_rps=kept.demand_rps[model.name])
            for model in models
            if model.name in kept.demand_rps
        ),
        running=kept.running,
        shares=dict(kept.shares),
        objective=kept.objective,
        strategy=kept.strategy,
        forecast=kept.forecast,
    )
