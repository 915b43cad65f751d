"""Limits of control groups, as each kernel and container shows them."""

import math
from collections.abc import Mapping
from pathlib import Path

import pytest

from services.kit import cgroup
from services.kit.cgroup import CgroupLimits
from tests.support.cgroups import UNLIMITED_V1, V1, V2, kernel

GIB = 2**30


@pytest.mark.parametrize(
    ("groups", "files", "cores", "memory_bytes"),
    [
        ("0::/\n", {"cpu.max": "150000 100000", "memory.max": f"{GIB}"}, 1.5, GIB),
        ("0::/\n", {"cpu.max": "max 100000", "memory.max": "max"}, math.inf, math.inf),
        (
            V2,
            {
                "system.slice/cpu.max": "200000 100000",
                "system.slice/agent.service/cpu.max": "max 100000",
                "system.slice/agent.service/memory.max": f"{4 * GIB}",
                "system.slice/memory.max": f"{GIB}",
            },
            2.0,
            GIB,
        ),
        (
            V1,
            {
                "cpu/cpu.cfs_quota_us": "150000",
                "cpu/cpu.cfs_period_us": "100000",
                "memory/memory.limit_in_bytes": f"{GIB}",
            },
            1.5,
            GIB,
        ),
        (
            V1,
            {
                **UNLIMITED_V1,
                "cpu/docker/abc/cpu.cfs_quota_us": "50000",
                "cpu/docker/abc/cpu.cfs_period_us": "100000",
                "memory/docker/abc/memory.limit_in_bytes": f"{GIB}",
            },
            0.5,
            GIB,
        ),
        (V1, UNLIMITED_V1, math.inf, 9223372036854771712),
        ("0::/../outside\n", {"cpu.max": "what"}, math.inf, math.inf),
        ("", {}, math.inf, math.inf),
    ],
    ids=["v2", "v2 max", "v2 nested", "v1 in a container", "v1", "v1 none", "odd", "empty"],
)
def test_the_narrowest_limit_of_a_group_and_those_above_counts(
    groups: str, files: Mapping[str, str], cores: float, memory_bytes: float, tmp_path: Path
) -> None:
    root = kernel(tmp_path, groups, files)

    assert cgroup.limits(root) == CgroupLimits(cores, memory_bytes)


def test_a_machine_without_control_groups_has_no_limits(tmp_path: Path) -> None:
    assert cgroup.limits(tmp_path) == CgroupLimits()


def test_a_process_has_as_many_cores_as_its_quota_keeps_busy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    expected = {math.inf: 8, 20.0: 8, 1.5: 2, 2.0: 2, 0.2: 1}
    for quota, cores in expected.items():
        monkeypatch.setattr(cgroup, "limits", lambda quota=quota: CgroupLimits(cores=quota))
        assert cgroup.whole_cores() == cores
