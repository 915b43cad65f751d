"""Status of a Model object of Kubernetes: columns of `kubectl get models`, and conditions."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cinquefoil.condition.v1.records import Condition
from cinquefoil.planner.v1.records import Instance
from services.kit.conditions import Effect, command_of, effect_of, stops_model
from services.kit.plurals import counted
from services.planner.core.accounting.entries import Figures

MOST_TEXT: Final = 1024
"""Longest message of a condition or an Event, as Kubernetes has it."""

MEASURED: Final = ("latency", "gco2ePer1k", "saved")
"""Parts of a status that change all the time."""

_READY: Final = "Ready"
_ACCEPTED: Final = "Accepted"
_PER_1K: Final = 1000


@dataclass(frozen=True, slots=True)
class ModelState:
    """Present state of a model.

    Attributes:
        objective_s, percentile: Its latency objective.
        instances: Where its requests go now.
        latency_s: Latency at that percentile; None: not known.
        account: Its account of the last day; None: there is none.
        conditions: Those that concern it.
        plan: Version of the active plan; 0: none.
        why: What caused that plan.
        of_others: Its servers are not ours.
    """

    objective_s: float
    percentile: float
    instances: Sequence[Instance] = ()
    latency_s: float | None = None
    account: Figures | None = None
    conditions: tuple[Condition, ...] = ()
    plan: int = 0
    why: str = ""
    of_others: bool = False

    @property
    def replicas(self) -> Mapping[str, int]:
        """Segments by variant, the one with the largest share of the load first."""
        shares: dict[str, float] = {}
        segments: dict[str, set[str]] = {}
        for each in self.instances:
            shares[each.variant] = shares.get(each.variant, 0.0) + each.share
            segments.setdefault(each.variant, set()).add(each.segment_id)
        order = sorted(segments, key=lambda name: (-shares[name], name))
        return {name: len(segments[name]) for name in order}


def refused(before: Mapping[str, Any], generation: int, why: str, now: str) -> dict[str, Any]:
    """Return the status of an object whose spec is not used; what was served before stays.

    Args:
        before: Its status up to now.
        generation: Generation of the spec.
        why: What is wrong with it, and what is allowed.
        now: Time, as Kubernetes writes it.
    """
    kept = [each for each in before.get("conditions", ()) if each["type"] != _ACCEPTED]
    made = _condition(_ACCEPTED, "False", "Invalid", why)
    return {
        **before,
        "observedGeneration": generation,
        "conditions": _since([made, *kept], before, generation, now),
    }


def accepted(
    before: Mapping[str, Any], generation: int, state: ModelState | None, now: str
) -> dict[str, Any]:
    """Return the status of an object whose spec is used.

    Args:
        before: Its status up to now.
        generation: Generation of the spec.
        state: The model; None: this planner does not have it yet.
        now: Time, as Kubernetes writes it.
    """
    made = [_condition(_ACCEPTED, "True", "Valid", "its spec is part of the deployment")]
    if state is None:
        why = "services have yet to read it: kubelets replace a mounted ConfigMap within a minute"
        made.append(_condition(_READY, "False", "NotRead", why))
        return {
            "observedGeneration": generation,
            "conditions": _since(made, before, generation, now),
        }
    made += [_ready(state), *_own(state.conditions)]
    found: dict[str, Any] = {
        "observedGeneration": generation,
        "variant": next(iter(state.replicas), ""),
        "replicas": sum(state.replicas.values()),
        "objective": _time(state.objective_s),
        "conditions": _since(made, before, generation, now),
    }
    if state.latency_s is not None:
        at = "" if state.percentile == 95 else f" (p{state.percentile:g})"
        found["latency"] = _time(state.latency_s) + at
    account = state.account
    if account is not None and account.requests:
        found["gco2ePer1k"] = f"{account.carbon_gco2e / account.requests * _PER_1K:.3g}"
        if account.base_carbon_gco2e > 0:
            share = 1 - account.carbon_gco2e / account.base_carbon_gco2e
            found["saved"] = f"{share:.0%}"
    if state.plan:
        found |= {"plan": state.plan, "why": state.why[:MOST_TEXT]}
    return found


def planned(state: ModelState) -> str:
    """Return an Event's sentence on the active plan."""
    parts = [f"{count} x {variant}" for variant, count in state.replicas.items()]
    return f"plan {state.plan}: {', '.join(parts) or 'no segment'}; {state.why}"[:MOST_TEXT]


def _ready(state: ModelState) -> dict[str, str]:
    if state.of_others:
        why = "its servers are others': routers know which are ready (cinquefoil status)"
        return _condition(_READY, "Unknown", "ServersOfOthers", why)
    if state.instances:
        count = counted(sum(state.replicas.values()), "segment")
        return _condition(_READY, "True", "Serving", f"requests go to {count}")
    waits = [each for each in state.conditions if effect_of(each) is not Effect.DEGRADES]
    first = next(filter(stops_model, waits), waits[0] if waits else None)
    if first is None:
        return _condition(_READY, "False", "NotServing", "no segment serves yet")
    return _condition(_READY, "False", _camel(first.kind.name), _sentence(first))


def _own(conditions: Iterable[Condition]) -> Iterable[dict[str, str]]:
    """Return our conditions as Kubernetes has them: of one kind there is one."""
    sentences: dict[str, list[Condition]] = {}
    for each in conditions:
        sentences.setdefault(_camel(each.kind.name), []).append(each)
    for kind, found in sentences.items():
        effect = effect_of(found[0]).value.capitalize()
        yield _condition(kind, "True", effect, "; ".join(map(_sentence, found)))


def _sentence(condition: Condition) -> str:
    setting = f"setting: {condition.setting}; " if condition.setting else ""
    return f"{condition.sentence} ({setting}run: {command_of(condition)})"


def _condition(kind: str, status: str, reason: str, message: str) -> dict[str, str]:
    return {"type": kind, "status": status, "reason": reason, "message": message[:MOST_TEXT]}


def _since(
    made: Iterable[Mapping[str, Any]], before: Mapping[str, Any], generation: int, now: str
) -> list[dict[str, Any]]:
    """Return conditions with the times since when they have been so."""
    known = {each["type"]: each for each in before.get("conditions", ())}
    found = []
    for each in made:
        last = known.get(each["type"], {})
        same = last.get("status") == each["status"] and last.get("lastTransitionTime")
        since = last["lastTransitionTime"] if same else now
        found.append({**each, "lastTransitionTime": since, "observedGeneration": generation})
    return found


def _camel(kind: str) -> str:
    return "".join(word.capitalize() for word in kind.split("_"))


def _time(value_s: float) -> str:
    return f"{value_s * 1e3:.3g} ms" if value_s < 1 else f"{value_s:.3g} s"
