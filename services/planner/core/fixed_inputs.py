"""Settings that plans depend on, until an operator changes them.

A restart, or an operator, may change them, and earlier plans are then outdated. They are therefore
stored with the newest plan, by their names in the deployment file.
"""

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from services.kit.config import Objective
from services.kit.config import Planner as Settings
from services.planner.core.model import Model

_OWN_TRIGGERS = frozenset({"carbon_weight"})
_SHOWN = 3

FixedInputs = Mapping[str, str]
"""Values by setting, for example {"models.digits.slo.latency_s": "0.4"}; a variant has a digest."""


def fixed_inputs(models: Iterable[Model], settings: Settings, objective: Objective) -> FixedInputs:
    """Return the fixed inputs of plans; strategy and CLOVER's lambda are separate triggers.

    Args:
        models: The deployment's models, with their profiles.
        settings: The planner's settings.
        objective: Objective in force; it may have changed since the start.
    """
    found = {
        f"planner.objective.{name}": value
        for name, value in _leaves(objective.model_dump(mode="json"))
        if name not in _OWN_TRIGGERS
    }
    for name in ("batch_sizes", "max_processes", "clock_ratios", "placement"):
        found[f"planner.{name}"] = str(getattr(settings, name))
    found["planner.horizon"] = f"{settings.horizon.length_s:g} s by {settings.horizon.step_s:g} s"
    embodied = settings.accounting.embodied
    if embodied is not None and embodied.in_plans:
        found["planner.accounting.embodied"] = str(embodied)
    for model in models:
        at = f"models.{model.name}"
        found[f"{at}.slo.latency_s"] = f"{model.slo_latency_s:g}"
        for name, limit_s in (("ttft_s", model.slo_first_token_s), ("tpot_s", model.slo_token_s)):
            if limit_s < math.inf:
                found[f"{at}.slo.{name}"] = f"{limit_s:g}"
        found[f"{at}.slo.percentile"] = f"{model.slo_percentile:g}"
        for name in ("overload_weight", "replicas_min", "spread", "survive"):
            found[f"{at}.{name}"] = str(getattr(model, name))
        for variant in model.variants:
            text = repr(variant).encode()
            found[f"{at}.variants.{variant.name}"] = hashlib.sha256(text).hexdigest()[:12]
    return found


def differences(before: FixedInputs, now: FixedInputs) -> str:
    """Return the differences as text; "": none, or the earlier settings are unknown."""
    if not before or before == now:
        return ""
    names = [*now, *(name for name in before if name not in now)]
    said = [_words(name, before, now) for name in names if before.get(name) != now.get(name)]
    more = f" and {len(said) - _SHOWN} more" if len(said) > _SHOWN else ""
    return ", ".join(said[:_SHOWN]) + more


def _words(name: str, before: FixedInputs, now: FixedInputs) -> str:
    if name not in now:
        return f"{name} removed"
    if name not in before:
        return f"{name} new"
    return f"{name} changed" if ".variants." in name else f"{name} {before[name]} -> {now[name]}"


def _leaves(values: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, str]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{path}{name}.")
        else:
            yield f"{path}{name}", f"{value:g}" if isinstance(value, float) else str(value)
