"""Settings that operators override at run time.

A setting is named by its path, "models.digits.slo.latency_s". An override survives restarts, and
changes of the deployment file, until it is reset.
"""

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final

from pydantic import JsonValue, ValidationError

from cinquefoil.planner.v1.records import ChangedSetting
from services.kit.config import Deployment, Model, TableProfile
from services.kit.config.differences import keys_of
from services.kit.errors import InvalidArgument

MAX_OVERRIDES: Final = 1000

_SET: Final = (
    ("models", "*", "demand_rps"),
    ("models", "*", "demand_min_rps"),
    *(("models", "*", name) for name in ("overload_weight", "replicas_min", "spread", "survive")),
    ("models", "*", "slo", "*"),
    ("planner", "objective", "*"),
    ("planner", "objective", "*", "*"),
    ("planner", "strategy"),
    ("sites", "*", "power_budget_w"),
)
_REMOVED: Final = (
    ("models", "*"),
    ("models", "*", "variants", "*"),
    ("planner", "objective", "accuracy_mean"),
)


def overridden(
    deployment: Deployment, values: Mapping[str, JsonValue], *, may_add: bool = False
) -> Deployment:
    """Return a deployment with some settings changed.

    Args:
        deployment: The deployment of the file.
        values: Values by path; None removes a model, a variant or the mean accuracy.
        may_add: Whether "models.NAME" may be the section of a model outside the file, as in a dry
            run; its profiles may not be tables, which would be read from disk.

    Raises:
        InvalidArgument: A setting does not exist, cannot be changed at run time, or may not have
            the value; the error's field is its path.
    """
    known = deployment.model_dump()
    data = deployment.model_dump(exclude_unset=True)  # a default that is given may be refused
    # Removals come last: a path into a removed section exists until then.
    for path in sorted(values, key=lambda path: (values[path] is None, path)):
        value, name = values[path], path.removeprefix("models.")
        if (
            may_add
            and isinstance(value, dict)
            and "variants" in value
            and name not in known["models"]
        ):
            known["models"][name] = data["models"][name] = value
        else:
            keys = _checked(known, path, value)
            for each in (known, data):
                _put(each, keys, value)
    try:
        found = Deployment.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "values"
        message = first["msg"].removeprefix("Value error, ")
        raise InvalidArgument.at(where, message) from error
    for name in found.models.keys() - deployment.models.keys():
        _require_no_table(name, found.models[name])
    return found.read_from(deployment.source, deployment.digest)


def _require_no_table(name: str, model: Model) -> None:
    for variant, each in model.variants.items():
        profiles = each.profile, *(stage.profile for stage in each.stages)
        if any(isinstance(profile, TableProfile) for profile in profiles):
            raise InvalidArgument.at(
                f"models.{name}.variants.{variant}.profile.kind",
                "of a model that is not in the file must be analytic or language, got table",
            )


def still_valid(
    deployment: Deployment, overrides: Mapping[str, ChangedSetting]
) -> tuple[dict[str, ChangedSetting], dict[str, str]]:
    """Return the overrides that a changed file still allows, and why others are dropped."""
    kept: dict[str, ChangedSetting] = {}
    dropped: dict[str, str] = {}
    for path, override in overrides.items():
        values = {name: each.value for name, each in kept.items()}
        try:
            overridden(deployment, {**values, path: override.value})
        except InvalidArgument as error:
            dropped[path] = error.message
        else:
            kept[path] = override
    return kept, dropped


def _checked(known: Mapping[str, Any], path: str, value: JsonValue) -> tuple[str, ...]:
    """Return the keys of the setting at a path, which may be set to `value`.

    Raises:
        InvalidArgument: There is no such setting, or it cannot be changed so.
    """
    keys = keys_of(known, path)
    if not _allowed(keys, _REMOVED if value is None else _SET):
        raise InvalidArgument.at(
            path,
            "cannot be removed; models, variants and planner.objective.accuracy_mean can"
            if value is None
            else "cannot be changed at run time; change the deployment file and reload it (SIGHUP)",
        )
    return keys


def _put(data: dict[str, Any], keys: Sequence[str], value: JsonValue) -> None:
    """Set or remove the setting at these keys."""
    parent = data
    for key in keys[:-1]:
        parent = parent.setdefault(key, {})
    if value is None:
        del parent[keys[-1]]
    else:
        parent[keys[-1]] = value


def _allowed(keys: Sequence[str], patterns: Iterable[tuple[str, ...]]) -> bool:
    return any(
        len(keys) == len(each)
        and all(fnmatchcase(key, pattern) for key, pattern in zip(keys, each, strict=True))
        for each in patterns
    )
