"""Limits that the control groups of a container or unit set to this process (version 1 and 2)."""

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class CgroupLimits:
    """Limits of this process's groups. Attributes: cores, memory_bytes (infinite: no limit)."""

    cores: float = math.inf
    memory_bytes: float = math.inf


def limits(root: Path = Path("/")) -> CgroupLimits:
    """Return the narrowest limits of this process's groups and of all above them.

    Args:
        root: Folder that stands for "/".
    """
    cores, memory = [math.inf], [math.inf]
    for controllers, path in _groups(root / "proc/self/cgroup"):
        for name in controllers or ("",):
            for folder in _folders(root / "sys/fs/cgroup" / name, path):
                cores += _cores(folder)
                memory += _memory(folder)
    return CgroupLimits(min(cores), min(memory))


def whole_cores() -> int:
    """Return the cores that this process may run on, no more than its quota keeps busy."""
    cores, quota = len(os.sched_getaffinity(0)), limits().cores
    return max(math.ceil(min(cores, quota)), 1)


def _groups(file: Path) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield controllers and path of each hierarchy; no controller: version 2."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        yield tuple(filter(None, controllers.split(","))), path


def _folders(mount: Path, path: str) -> Iterator[Path]:
    """Yield a group's folder and those above it.

    In a container the path may be the host's, and the mount the group itself.
    """
    folder = mount / path.lstrip("/")
    while folder != mount and mount in folder.parents:
        yield folder
        folder = folder.parent
    yield mount


def _cores(folder: Path) -> Iterator[float]:
    quota, _, period = _text(folder / "cpu.max").partition(" ")
    if not quota:
        quota, period = _text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us")
    if quota.isdecimal() and period.isdecimal() and int(period):  # not "max", nor -1
        yield int(quota) / int(period)


def _memory(folder: Path) -> Iterator[float]:
    limit = _text(folder / "memory.max") or _text(folder / "memory.limit_in_bytes")
    if limit.isdecimal():
        yield float(limit)


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
