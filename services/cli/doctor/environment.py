"""Checks of what surrounds a process here: proxies, quotas, limits, clock, folders. A line each."""

import ctypes
import math
import os
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psutil

from services.cli.doctor.finding import Finding, bad, fine, note
from services.kit import cgroup, proxies
from services.kit.config import Deployment
from services.kit.descriptors import MOST, OTHERS
from services.kit.plurals import counted
from services.kit.units import BYTES_PER_MIB

_ROOT: Final = Path("/")
_LOW_MEMORY_MIB: Final = 2048
_LOW_SHM_MIB: Final = 1024
_CONNECTIONS: Final = 1024
"""Connections of a machine without a deployment file."""

_UNSYNCHRONISED: Final = 0x40
_US_PER_S: Final = 1_000_000


def environment(deployment: Deployment | None, root: Path = _ROOT) -> Iterator[Finding]:
    """Yield findings on what surrounds processes here; change nothing.

    Args:
        deployment: The deployment; None: there is no valid file.
        root: Folder that stands for "/".
    """
    yield _proxies()
    limits = cgroup.limits(root)
    yield _quota(limits.cores, deployment)
    yield _memory(limits.memory_bytes)
    yield _descriptors(deployment)
    yield _shared_memory(root / "dev/shm")
    yield _clock()
    if deployment is not None:
        yield from _folders(deployment)


def _proxies() -> Finding:
    names = [name for each in proxies.VARIABLES for name in (each, each.upper())]
    given = ", ".join(filter(os.environ.get, names))
    if not given:
        return fine("proxies", "the environment names none")
    found = f"{given}: what leaves the suite obeys, its services call one another directly"
    if variable := proxies.grpc_variable("127.0.0.1"):
        found += f"; other gRPC clients call even this machine through {variable}"
    return note("proxies", found, "no_proxy=localhost,127.0.0.1,<hosts> for what is to be direct")


def _quota(cores: float, deployment: Deployment | None) -> Finding:
    subject = "CPU quota"
    if math.isinf(cores):
        return fine(subject, f"none: {counted(len(os.sched_getaffinity(0)), 'core')} may be used")
    nodes = deployment.nodes.items() if deployment is not None else ()
    offered = {
        name: node.cpu.cores if isinstance(node.cpu.cores, int) else len(node.cpu.cores)
        for name, node in nodes
        if node.cpu is not None
    }
    slow = [f"{name} offers {count}" for name, count in offered.items() if count > cores]
    found = f"{cores:g} cores by its control group"
    if slow:
        found += f", but {', '.join(slow)}: each counts as a slower one"
    remedy = "raise the container's CPU limit, or lower nodes.<name>.cpu.cores"
    return note(subject, found, remedy) if slow or cores < 1 else fine(subject, found)


def _memory(limit_bytes: float) -> Finding:
    subject, total_bytes = "memory limit", psutil.virtual_memory().total
    if limit_bytes >= total_bytes:
        return fine(subject, f"none: the machine has {total_bytes // BYTES_PER_MIB} MiB")
    limit_mib = int(limit_bytes) // BYTES_PER_MIB
    found = f"{limit_mib} MiB by its control group, of {total_bytes // BYTES_PER_MIB} MiB"
    if limit_mib >= _LOW_MEMORY_MIB:
        return fine(subject, found)
    return note(subject, found, "a process beyond it is killed: raise the container's memory limit")


def _descriptors(deployment: Deployment | None) -> Finding:
    subject = "descriptors"
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST if hard == resource.RLIM_INFINITY else hard
    wanted = (deployment.router.max_connections if deployment else _CONNECTIONS) + OTHERS
    found = f"{most} files may be open, {wanted} are needed for router.max_connections"
    if most >= wanted:
        return fine(subject, found)
    remedy = "raise LimitNOFILE or ulimit -Hn, or lower router.max_connections"
    return note(subject, found, remedy)


def _shared_memory(folder: Path) -> Finding:
    subject = "shared memory"
    try:
        size_mib = shutil.disk_usage(folder).total // BYTES_PER_MIB
    except OSError as error:
        return note(subject, f"no /dev/shm: {error.strerror}", "mount a tmpfs there")
    if size_mib >= _LOW_SHM_MIB:
        return fine(subject, f"{size_mib} MiB in /dev/shm")
    return note(
        subject,
        f"{size_mib} MiB in /dev/shm: vLLM, SGLang and PyTorch need more between their processes",
        f"docker run --shm-size={_LOW_SHM_MIB}m, or a memory volume of the pod",
    )


def _clock() -> Finding:
    subject = "clock"
    status, error_us = _kernel_clock()
    if status & _UNSYNCHRONISED:
        found = "the kernel's is not synchronised: nodes and certificates may disagree on the time"
    elif error_us >= _US_PER_S:
        found = f"the kernel's may be {error_us / _US_PER_S:.1f} s off"
    else:
        return fine(subject, f"synchronised, within {error_us / 1000:.0f} ms")
    return note(subject, found, "run chrony or systemd-timesyncd on the host")


def _kernel_clock() -> tuple[int, int]:
    """Return status and largest error (us) of the kernel's clock, as adjtimex(2) has them."""
    fields = (ctypes.c_long * 64)()  # struct timex: modes, offset, freq, maxerror, esterror, status
    if ctypes.CDLL(None).adjtimex(ctypes.byref(fields)) < 0:
        return _UNSYNCHRONISED, 0
    status = ctypes.c_int.from_buffer(fields, 5 * ctypes.sizeof(ctypes.c_long)).value
    return status, int(fields[3])


def _folders(deployment: Deployment) -> Iterator[Finding]:
    """Yield the folders of state that this user cannot write; one line where all can be."""
    database, routes = deployment.planner.database, deployment.router.routing_file
    folders = {f"nodes.{name}.state_dir": node.state_dir for name, node in deployment.nodes.items()}
    folders["carbon.cache_dir"] = Path(deployment.carbon.cache_dir)
    if isinstance(database, Path):
        folders["planner.database"] = database.parent
    if routes is not None:
        folders["router.routing_file"] = routes.parent
    wrong = 0
    for setting, folder in folders.items():
        there = next(each for each in (folder.absolute(), *folder.absolute().parents) if _is(each))
        if not (there.is_dir() and os.access(there, os.W_OK | os.X_OK)):
            wrong += 1
            why = f"this user cannot write into {there}" if there.is_dir() else f"{there} is a file"
            yield bad("folders", f"{setting}: {why}", f"change its owner, or move {setting}")
    if not wrong:
        yield fine("folders", "all of the file's can be written")


def _is(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # in a folder that may not be entered: a parent says so
        return False
