"""Confinement of processes that parse what others made: models, requests, files."""

import ctypes
import errno
import os
import pwd
import resource
from collections.abc import Iterable
from ctypes.util import find_library
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyprctl

from services.kit.process import landlock
from services.kit.telemetry import logs
from services.kit.units import BYTES_PER_MIB

_FORBIDDEN: Final = (
    "acct",
    "add_key",
    "bpf",
    "chroot",
    "delete_module",
    "finit_module",
    "init_module",
    "io_uring_setup",
    "kexec_file_load",
    "kexec_load",
    "keyctl",
    "mount",
    "move_mount",
    "name_to_handle_at",
    "open_by_handle_at",
    "open_tree",
    "perf_event_open",
    "pivot_root",
    "process_vm_readv",
    "process_vm_writev",
    "ptrace",
    "quotactl",
    "reboot",
    "request_key",
    "setns",
    "swapoff",
    "swapon",
    "umount2",
    "unshare",
    "userfaultfd",
)
"""System calls that no worker needs; after the default list of containers."""

_PROGRAMS: Final = ("execve", "execveat", "fork", "vfork")

_OF_OTHERS: Final = (
    *("kill", "pidfd_getfd", "pidfd_open", "pidfd_send_signal"),
    *("rt_sigqueueinfo", "rt_tgsigqueueinfo", "tkill"),
)
"""Calls by which a process acts on other processes of its user."""

_NETWORK: Final = (
    *("accept", "accept4", "bind", "connect", "listen", "recvfrom", "recvmmsg", "recvmsg"),
    *("sendmmsg", "sendmsg", "sendto", "socket", "socketpair"),
    *("mq_open", "msgget", "semget", "shmat", "shmget"),
)

_CHANGES: Final = (
    *("chmod", "chown", "creat", "fallocate", "fchmod", "fchmodat", "fchown", "fchownat"),
    *("fremovexattr", "fsetxattr", "ftruncate", "lchown", "link", "linkat", "lremovexattr"),
    *("lsetxattr", "mkdir", "mkdirat", "mknod", "mknodat", "removexattr", "rename", "renameat"),
    *("renameat2", "rmdir", "setxattr", "symlink", "symlinkat", "truncate", "unlink", "unlinkat"),
    *("utime", "utimensat", "utimes"),
)
"""Calls that change files, beside opening one to write."""

_OPENS: Final = (("open", 1), ("openat", 2))
"""Calls that open a file, each with the index of its flags."""

_CLONE_THREAD: Final = 0x10000  # sched.h
_NEW_USER: Final = 0x10000000
_NEW_NETWORK: Final = 0x40000000

_MOST_DESCRIPTORS: Final = 65_536
_MOST_FILE_BYTES: Final = 4096 * BYTES_PER_MIB
_READERS_DESCRIPTORS: Final = 256
_LAST_S: Final = 5
_READERS_FILE_BYTES: Final = 2048 * BYTES_PER_MIB  # of an ONNX file, by protobuf

_log = logs.get("confinement")


def confine(*, starts_programs: bool, user: tuple[int, int] | None = None) -> None:
    """Give up, for this process and what it starts: privileges, capabilities, core dumps, calls.

    Files that are open stay open; what it opens later, it opens as `user`.

    Core dumps would hold clients' data. Where libseccomp is missing, or a rule cannot be loaded,
    the rest holds, and a line says so. Processes are not counted (RLIMIT_NPROC): the system counts
    all of a user's, on the whole machine. A worker that starts no program cannot fork.

    Args:
        starts_programs: Whether the worker starts a server that computes in its stead.
        user: User and group to become; None: those that it has.

    Raises:
        RuntimeError: It may not become that user.
    """
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_NOFILE, _MOST_DESCRIPTORS)
    if not starts_programs:
        _limit(resource.RLIMIT_FSIZE, _MOST_FILE_BYTES)
    pyprctl.set_no_new_privs()
    _drop_capabilities(user)
    try:
        _call_filter(_FORBIDDEN if starts_programs else (*_FORBIDDEN, *_PROGRAMS)).load()
    except (ImportError, OSError, RuntimeError) as error:
        _log.warning("system calls are not filtered", error=str(error))


def missing() -> dict[str, str]:
    """Return the mechanisms that this system lacks, each with where it is from."""
    lacking = {}
    if find_library("seccomp") is None:
        lacking["libseccomp"] = "apt install libseccomp2, or dnf install libseccomp"
    if not landlock.version():
        lacking["Landlock"] = "Linux 5.13 with CONFIG_SECURITY_LANDLOCK, and `landlock` in lsm="
    return lacking


@dataclass(frozen=True, slots=True)
class ReaderLimits:
    """Limits of a process that reads a file of others.

    Attributes:
        cpu_s: Processor time, s.
        memory_bytes: Address space.
        answer_bytes: What it may answer.
    """

    cpu_s: int
    memory_bytes: int
    answer_bytes: int


def confine_reader(limits: ReaderLimits, reads: Iterable[Path], scratch: Path | None) -> None:
    """Leave this process, which has one thread, nothing but its memory and some files to read.

    It has no network, starts no program and no process, and signals none. Several mechanisms stand
    behind one another, each where the system has it: a network namespace of its own, Landlock for
    files, and libseccomp for calls.

    Args:
        limits: Processor time and memory.
        reads: Files, and folders with all below them, that it may read.
        scratch: Folder that it may write into; None: it writes no file.
    """
    calls = _readers_filter(may_write=scratch is not None)  # looks for its library: needs programs
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_CPU, limits.cpu_s, beyond=_LAST_S)
    _limit(resource.RLIMIT_AS, limits.memory_bytes)
    _limit(resource.RLIMIT_NOFILE, _READERS_DESCRIPTORS)
    _limit(resource.RLIMIT_FSIZE, 0 if scratch is None else _READERS_FILE_BYTES)
    pyprctl.set_no_new_privs()
    _leave_network()
    _drop_capabilities(None)
    landlock.restrict(reads, [] if scratch is None else [scratch])
    if calls is not None:
        calls.load()


def _limit(kind: int, most: int, *, beyond: int = 0) -> None:
    """Lower a limit, where it is higher; `beyond` it the kernel kills."""
    _, hard = resource.getrlimit(kind)
    end = most + beyond if hard == resource.RLIM_INFINITY else min(most + beyond, hard)
    resource.setrlimit(kind, (min(most, end), end))


def _leave_network() -> None:
    """Move this process into an empty network, as root or in a user namespace, where it may."""
    unshare = ctypes.CDLL(None).unshare
    if unshare(_NEW_NETWORK):
        unshare(_NEW_USER | _NEW_NETWORK)


def _drop_capabilities(user: tuple[int, int] | None) -> None:
    pyprctl.cap_ambient_clear_all()
    if pyprctl.Cap.SETPCAP in pyprctl.CapState.get_current().effective:
        for capability in pyprctl.capbset.probe():
            pyprctl.capbset_drop(capability)
    if user is not None:
        _become(*user)
    pyprctl.CapState(set(), set(), set()).set_current()


def _become(user_id: int, group_id: int) -> None:
    try:
        os.setgroups([])
        os.setresgid(group_id, group_id, group_id)
        os.setresuid(user_id, user_id, user_id)
    except OSError as error:
        raise RuntimeError(f"may not become user {user_id}, group {group_id}: {error}") from error
    try:
        os.environ["HOME"] = pwd.getpwuid(user_id).pw_dir
    except KeyError:
        os.environ["HOME"] = "/"


def _readers_filter(*, may_write: bool) -> Any:
    """Return the filter of a reader's calls; None: libseccomp is missing."""
    forbidden = (*_FORBIDDEN, *_PROGRAMS, *_OF_OTHERS, *_NETWORK)
    try:
        calls = _call_filter(forbidden if may_write else (*forbidden, *_CHANGES))
    except (ImportError, RuntimeError):
        return None
    _refuse(calls, "tgkill", (0, "NE", os.getpid()))
    _refuse(calls, "prlimit64", (0, "NE", 0))
    if not may_write:
        _refuse(calls, "openat2", error=errno.ENOSYS)  # as clone3
        for name, flags in _OPENS:
            for bit in (os.O_WRONLY, os.O_RDWR, os.O_CREAT, os.O_TRUNC):
                _refuse(calls, name, (flags, "MASKED_EQ", bit, bit))
    return calls


def _call_filter(forbidden: tuple[str, ...]) -> Any:
    import pyseccomp  # noqa: PLC0415 - fails where libseccomp is missing

    calls = pyseccomp.SyscallFilter(pyseccomp.ALLOW)
    for name in forbidden:
        _refuse(calls, name)
    if "fork" in forbidden:  # threads stay
        _refuse(calls, "clone", (0, "MASKED_EQ", _CLONE_THREAD, 0))
        _refuse(
            calls, "clone3", error=errno.ENOSYS
        )  # its flags lie in memory; libc uses clone then
    return calls


def _refuse(calls: Any, name: str, *arguments: tuple[Any, ...], error: int = errno.EPERM) -> None:
    """Refuse a call where its arguments compare so; one that libseccomp does not know is left."""
    import pyseccomp  # noqa: PLC0415 - as above

    if pyseccomp.resolve_syscall(pyseccomp.Arch.NATIVE, name) != _UNKNOWN:
        compared = (
            pyseccomp.Arg(at, getattr(pyseccomp, how), *values) for at, how, *values in arguments
        )
        calls.add_rule(pyseccomp.ERRNO(error), name, *compared)


_UNKNOWN: Final = -1
"""libseccomp's number of a call that it does not know."""
