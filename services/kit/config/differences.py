"""Differences between two deployment files, by the paths of settings."""

from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from services.kit.config import Deployment


def differences(before: Deployment, after: Deployment) -> tuple[str, ...]:
    """Return the paths of settings that differ, for example "models.digits.slo.latency_s".

    What is only in one of them, such as a model, is one path.
    """
    return tuple(_differ(before.model_dump(mode="json"), after.model_dump(mode="json"), ""))


def matching(paths: Iterable[str], patterns: Iterable[str]) -> tuple[str, ...]:
    """Return the paths that match a pattern, in which "*" stands for anything."""
    patterns = tuple(patterns)
    return tuple(path for path in paths if any(fnmatchcase(path, each) for each in patterns))


def _differ(before: Mapping[str, Any], after: Mapping[str, Any], path: str) -> Iterator[str]:
    for name in dict.fromkeys((*before, *after)):
        old, new = before.get(name), after.get(name)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from _differ(old, new, f"{path}{name}.")
        elif old != new:
            yield f"{path}{name}"
