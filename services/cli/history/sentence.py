"""A plan in one sentence: when it came, why, and what it changed."""

import re
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from typing import Final

from cinquefoil.planner.v1.plan_pb2 import Plan

_WORDS: Final = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_MAX_CHANGES: Final = 2
"""Models that a sentence has room for."""

_MOVED: Final = re.compile(r"(\S+) ([\d.]+) -> ([\d.]+) gCO2e/kWh")
"""An intensity that has moved, in a plan's reason."""


def sentence(plan: Plan, before: Plan | None, at: datetime) -> str:
    """Return a plan in one sentence.

    Args:
        plan: The plan.
        before: The plan that ran before it; None: none did.
        at: When it came to run.
    """
    changes = list(_changes(plan, before))
    shown = changes[:_MAX_CHANGES]
    if left := len(changes) - len(shown):
        shown.append(f"{_number(left)} more {'model' if left == 1 else 'models'} changed")
    what = ", ".join(shown) or "the same slices stay"
    return f"Plan {plan.version} at {at:%H:%M}: {_cause(plan)}, {what}."


def _cause(plan: Plan) -> str:
    """Return why the plan was made, in a few words."""
    first, _, _ = plan.reason.partition(";")
    moved = _MOVED.findall(first) if first.startswith("carbon: ") else ()
    several = len(plan.inputs.intensity_gco2e_per_kwh) > 1
    return (
        ", ".join(
            f"{zone if several else 'grid'} {float(before):.0f} -> {float(now):.0f} g/kWh"
            for zone, before, now in moved
        )
        or first.strip()
        or "no reason is known"
    )


def _changes(plan: Plan, before: Plan | None) -> Iterator[str]:
    """Yield what changes for each model, in order of name."""
    now, then = _slices(plan), _slices(before) if before else {}
    for model in sorted(now.keys() | then.keys()):
        has, had = now.get(model, Counter()), then.get(model, Counter())
        if has == had:
            continue
        on = _on(sum(has.values()))
        variants, earlier = {each for each, _ in has}, {each for each, _ in had}
        if not has:
            yield f"{model} stopped"
        elif not had:
            yield f"{model} began with {_listed(variants)} on {on}"
        elif variants != earlier:
            yield f"{model} moved to {_listed(variants)} on {on}"
        elif sum(has.values()) != sum(had.values()):
            yield f"{model} went from {_number(sum(had.values()))} to {on}"
        else:
            yield f"{model} moved to other slices"


def _slices(plan: Plan) -> dict[str, Counter[tuple[str, str]]]:
    """Return how many slices of each size run each variant, by model."""
    found: dict[str, Counter[tuple[str, str]]] = {}
    for segment in plan.segments:
        spec = segment.spec
        where = f"{spec.gpu_uuid} {spec.placement.profile}@{spec.placement.start}"
        found.setdefault(spec.model, Counter())[spec.variant, where] += 1
    return found


def _listed(names: set[str]) -> str:
    *others, last = sorted(names)
    return f"{', '.join(others)} and {last}" if others else last


def _on(count: int) -> str:
    return f"{_number(count)} {'slice' if count == 1 else 'slices'}"


def _number(count: int) -> str:
    return _WORDS[count] if count < len(_WORDS) else str(count)
