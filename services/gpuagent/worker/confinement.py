"""Confinement of a worker before it parses untrusted models and requests."""

import errno
import os
import pwd
import resource
from typing import Final

import pyprctl

from services.kit.telemetry import logs

_FORBIDDEN: Final = (
    "acct",
    "add_key",
    "bpf",
    "chroot",
    "delete_module",
    "finit_module",
    "init_module",
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

_PROGRAMS: Final = ("execve", "execveat")

_log = logs.get("confinement")


def confine(*, starts_programs: bool, user: tuple[int, int] | None = None) -> None:
    """Give up, for this process and what it starts: privileges, capabilities, core dumps, calls.

    Files that are open stay open; what it opens later, it opens as `user`.

    Core dumps would hold clients' data. Where libseccomp is missing, or a rule cannot be loaded,
    the rest holds, and a line says so.

    Args:
        starts_programs: Whether the worker starts a server that computes in its stead.
        user: User and group to become; None: those that it has.

    Raises:
        RuntimeError: It may not become that user.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    pyprctl.set_no_new_privs()
    _drop_capabilities(user)
    try:
        _filter_calls(_FORBIDDEN if starts_programs else (*_FORBIDDEN, *_PROGRAMS))
    except (ImportError, OSError, RuntimeError) as error:
        _log.warning("system calls are not filtered", error=str(error))


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


def _filter_calls(forbidden: tuple[str, ...]) -> None:
    import pyseccomp  # noqa: PLC0415 - fails where libseccomp is missing

    calls = pyseccomp.SyscallFilter(pyseccomp.ALLOW)
    for name in forbidden:
        calls.add_rule(pyseccomp.ERRNO(errno.EPERM), name)
    calls.load()
