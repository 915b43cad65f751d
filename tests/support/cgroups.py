"""Control groups as a kernel shows them, below a folder that stands for "/"."""

from collections.abc import Mapping
from pathlib import Path


def kernel(root: Path, groups: str, files: Mapping[str, str]) -> Path:
    """Write /proc/self/cgroup and files below /sys/fs/cgroup; return the root."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(groups)
    for name, text in files.items():
        file = root / "sys/fs/cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")
    return root


V1 = "4:memory:/docker/abc\n3:cpuset:/docker/abc\n1:cpu,cpuacct:/docker/abc\n0::/\n"
V2 = "0::/system.slice/agent.service\n"
UNLIMITED_V1 = {
    "cpu/cpu.cfs_quota_us": "-1",
    "cpu/cpu.cfs_period_us": "100000",
    "memory/memory.limit_in_bytes": "9223372036854771712",
}
