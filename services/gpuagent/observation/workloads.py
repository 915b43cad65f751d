"""Workloads that processes belong to: a pod, a container, a unit, or the program itself.

Read are /proc's files of processes that use a GPU. Whatever a process says of itself (its command,
its container's hostname) is text of others: printable, and of bounded length.
"""

import errno
import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import psutil

from services.kit import process_table

_POD: Final = re.compile(
    r"pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12})"
)
_CONTAINER: Final = re.compile(r"([0-9a-f]{64})")
_UNIT: Final = re.compile(r"/([^/]+\.service)(?:/|$)")
_HOSTNAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_MODEL_OPTIONS: Final = ("--served-model-name", "--model-path", "--model-id", "--model", "-m")
_SESSION_UNITS: Final = ("user@", "session-", "init.scope")
_TEXT: Final = 120
MAX_KNOWN: Final = 4096
"""Processes whose workload is remembered."""

MAX_MEMBERS: Final = 256
"""Processes of a pod, container or unit whose ports are looked at."""

ANCESTORS: Final = 4
"""Parents that are looked at: a server's engine is a child of the process that listens."""


@dataclass(frozen=True, slots=True)
class Workload:
    """A workload.

    Attributes:
        key: Its identity on this machine.
        name: For people.
        pod: Its pod's name; "": it has none, or it is not known.
        model: Model that its command names; "": it names none.
    """

    key: str
    name: str
    pod: str = ""
    model: str = ""


class Workloads:
    """Finds the workload of a process; each process is looked at once.

    Args:
        root: Folder that stands for "/".
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._proc, self._cgroups = root / "proc", root / "sys/fs/cgroup"
        self._known: dict[tuple[int, float], Workload] = {}
        self._pods: dict[str, str] = {}
        self.by_key: dict[str, Workload] = {}

    def of(self, pid: int) -> Workload:
        """Return the workload of a process; of one that has ended, the process itself."""
        try:
            process = psutil.Process(pid)
            key = (pid, process.create_time())
            if key not in self._known:
                if len(self._known) >= MAX_KNOWN:
                    self._known.clear()
                self._known[key] = self._read(process)
            found = self._known[key]
        except psutil.Error:
            found = Workload(f"process:{pid}", f"process {pid}")
        if len(self.by_key) >= MAX_KNOWN:  # entries of workloads that run come back at once
            self.by_key.clear()
            self._pods.clear()
        pod = self._pods.get(found.key, found.pod)
        self.by_key[found.key] = replace(found, pod=pod, name=pod or found.name)
        return found

    def rename(self, key: str, pod: str) -> None:
        """Set the pod of a workload, "namespace/name", as the kubelet says."""
        if pod and key in self.by_key:
            self._pods[key] = pod
            self.by_key[key] = replace(self.by_key[key], pod=pod, name=pod)

    def _read(self, process: psutil.Process) -> Workload:
        model = next(filter(None, (_model(each) for each in _family(process))), "")
        group = self._group(process.pid)
        if pod := _POD.search(group):
            name = self._hostname(process.pid)
            return Workload(f"pod:{pod.group(1).replace('_', '-')}", name or "pod", name, model)
        if container := _CONTAINER.search(group):
            short = container.group(1)[:12]
            return Workload(f"container:{short}", f"container {short}", model=model)
        if (unit := _UNIT.search(group)) and not unit.group(1).startswith(_SESSION_UNITS):
            return Workload(f"unit:{unit.group(1)}", unit.group(1)[:_TEXT], model=model)
        top = list(_family(process))[-1]
        return Workload(f"process:{top.pid}", _command(top), model=model)

    def members(self, pid: int) -> tuple[int, ...]:
        """Return the processes beside one in its pod, container or unit, else of its program."""
        found = [pid]
        with suppress(psutil.Error):
            found += [each.pid for each in _family(psutil.Process(pid))]
        if not self.of(pid).key.startswith("process:"):
            group = self._group(pid).rpartition("::")[2].partition("\n")[0]
            path = self._cgroups / group.lstrip("/") / "cgroup.procs"
            with suppress(OSError, ValueError), path.open(encoding="ascii") as file:
                found += map(int, file.read(65_536).split()[:MAX_MEMBERS])
        return tuple(dict.fromkeys(found))

    def _group(self, pid: int) -> str:
        """Return the paths of a process's control groups."""
        with suppress(OSError):
            return (self._proc / str(pid) / "cgroup").read_text("utf-8", "replace")[:65_536]
        return ""

    def _hostname(self, pid: int) -> str:
        """Return the name of a pod: its containers' hostname, unless it sets another."""
        path = self._proc / str(pid) / "root/etc/hostname"
        # The container may have put a pipe there, at which a reader waits, or a link to our files.
        with suppress(OSError), open(path, "rb", buffering=0, opener=_own_file) as file:
            name = (file.read(254) or b"").decode("utf-8", "replace").strip()
            return name if _HOSTNAME.fullmatch(name) else ""
        return ""


def _family(process: psutil.Process) -> Iterator[psutil.Process]:
    """Yield a process, and the parents that are the same program, nearest first."""
    yield process
    found = process
    for _ in range(ANCESTORS):
        try:
            parent = found.parent()
            if parent is None or parent.pid <= 1 or not _is_part(found, parent):
                return
        except psutil.Error:
            return
        yield parent
        found = parent


def _is_part(child: psutil.Process, parent: psutil.Process) -> bool:
    """Return whether a process was forked from a program, and is not one that it started.

    Engines of servers name themselves ("VLLM::EngineCore"), or are started by `multiprocessing`.
    """
    if child.exe() != parent.exe():
        return False
    words, others = process_table.command(child.pid), process_table.command(parent.pid)
    return (
        words == others
        or "::" in "".join(words[:1])
        or any("multiprocessing" in w for w in words[:8])
    )


def _command(process: psutil.Process) -> str:
    """Return a command in short: the program's name, and what it runs."""
    words = [word[-_TEXT:] for word in process_table.command(process.pid)[:4]]
    text = " ".join(filter(None, (word.rpartition("/")[2] for word in words)))
    said = _printable(text or process_table.name(process.pid))[:_TEXT]
    return said or f"process {process.pid}"


def _model(process: psutil.Process) -> str:
    """Return the model that a command names; "": none."""
    words = process_table.command(process.pid)
    for at, word in enumerate(words[:200]):
        option, equals, value = word.partition("=")
        if option in _MODEL_OPTIONS and not (option == "-m" and "python" in words[0]):
            given = value if equals else next(iter(words[at + 1 : at + 2]), "")
            return _printable(given)[:_TEXT]
        if word == "serve" and at + 1 < len(words) and at <= 2:  # vllm serve MODEL
            return _printable(words[at + 1])[:_TEXT]
    return ""


def _own_file(path: str, flags: int) -> int:
    found = os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW)
    if not stat.S_ISREG(os.fstat(found).st_mode):
        os.close(found)
        raise OSError(errno.EINVAL, "not a file", path)
    return found


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else " " for letter in text)
