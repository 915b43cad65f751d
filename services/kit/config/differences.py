"""Paths of settings, and differences between two deployment files by them."""

from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from services.kit.config import Deployment
from services.kit.errors import InvalidArgument


def differences(before: Deployment, after: Deployment) -> tuple[str, ...]:
    """Return the paths of settings that differ, for example "models.digits.slo.latency_s".

    What is only in one of them, such as a model, is one path.
    """
    return tuple(_differ(before.model_dump(mode="json"), after.model_dump(mode="json"), ""))


def matching(paths: Iterable[str], patterns: Iterable[str]) -> tuple[str, ...]:
    """Return the paths that match a pattern, in which "*" stands for anything."""
    patterns = tuple(patterns)
    return tuple(path for path in paths if any(fnmatchcase(path, each) for each in patterns))


def keys_of(data: Mapping[str, Any], path: str) -> tuple[str, ...]:
    """Return the keys of a path; names of models may contain dots.

    Raises:
        InvalidArgument: There is no such setting.
    """
    keys: list[str] = []
    rest, here = path, data
    while rest:
        names = [name for name in here if rest == name or rest.startswith(f"{name}.")]
        if not names:
            known = ", ".join(here)
            raise InvalidArgument.at(path, f"no setting {rest!r}; there is {known}"[:500])
        key = max(names, key=len)
        keys.append(key)
        rest = rest[len(key) + 1 :]
        inner = here[key]
        here = inner if isinstance(inner, dict) else {}
    return tuple(keys)


def _differ(before: Mapping[str, Any], after: Mapping[str, Any], path: str) -> Iterator[str]:
    for name in dict.fromkeys((*before, *after)):
        old, new = before.get(name), after.get(name)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from _differ(old, new, f"{path}{name}.")
        elif old != new:
            yield f"{path}{name}"
