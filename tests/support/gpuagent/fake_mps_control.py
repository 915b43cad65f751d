#!/usr/bin/env python3
"""Stands in for NVIDIA's `nvidia-cuda-mps-control`, interface "legacy v2", where there is none.

With -d it becomes a daemon that listens in CUDA_MPS_PIPE_DIRECTORY; without, it passes the commands
of its standard input on to that daemon. What the real one would not like it notes as a violation:
see `_violations`. Its clients are the live processes whose environment names its pipe directory.

Everything is written to CUDA_MPS_LOG_DIRECTORY/journal.jsonl. A file `crash_on` or `hang_on` there
holds a command: at it the daemon dies, or answers never again.
"""

import json
import os
import re
import socket
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

MEMORY = re.compile(r"[1-9][0-9]*[MG]")


def main(arguments: list[str]) -> int:
    """Run as the daemon or as the program that commands it."""
    pipes = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/nowhere"))
    logs = Path(os.environ.get("CUDA_MPS_LOG_DIRECTORY", "/nowhere"))
    if arguments == ["-d"]:
        return start(pipes, logs)
    for line in sys.stdin:
        try:
            with socket.socket(socket.AF_UNIX) as link:
                link.connect(str(pipes / "control"))
                link.sendall(line.strip().encode())
                answer = link.makefile().read()
        except OSError:
            sys.stdout.write("Cannot find MPS control daemon process\n")
            return 1
        sys.stdout.write(answer)
        if answer.startswith("error"):
            return 1
    return 0


def start(pipes: Path, logs: Path) -> int:
    """Become a daemon; return when it listens."""
    for folder in (pipes, logs):
        if not folder.is_dir():
            sys.stdout.write(f"Failed to open {folder}\n")
            return 1
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(str(pipes / "control"))
    except OSError as error:
        sys.stdout.write(f"An instance of this daemon is already running ({error})\n")
        return 1
    listener.listen()
    if os.fork():
        return 0
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(null, descriptor)
    Daemon(pipes, logs).run(listener)
    return 0


class Daemon:
    """The state of one control daemon."""

    def __init__(self, pipes: Path, logs: Path) -> None:
        self.pipes = pipes
        self.logs = logs
        self.percentage = 100.0
        self.memory: dict[str, str] = {}
        self.commands: dict[str, Callable[..., str]] = {
            "get_default_active_thread_percentage": lambda: f"{self.percentage:.1f}",
            "set_default_active_thread_percentage": self.set_percentage,
            "get_default_device_pinned_mem_limit": lambda device: self.memory.get(device, "none"),
            "set_default_device_pinned_mem_limit": self.set_memory,
            "get_server_list": lambda: "4242" if any(self.clients()) else "",
            "quit": lambda: "",
        }

    def run(self, listener: socket.socket) -> None:
        """Serve until `quit` is received."""
        self.note("start", device=os.environ.get("CUDA_VISIBLE_DEVICES", ""))
        for folder in (self.pipes, self.logs):
            if stat.S_IMODE(folder.stat().st_mode) != 0o700:
                self.violation(f"{folder.name} is open to others")
        if not os.environ.get("CUDA_VISIBLE_DEVICES", "").startswith(("MIG-", "GPU-")):
            self.violation("the daemon must see exactly one device, by UUID")
        while True:
            link, _ = listener.accept()
            with link:
                line = link.recv(4096).decode()
                self.misbehave(line)
                link.sendall(f"{self.answer(line)}\n".encode())
            if line == "quit":
                return

    def answer(self, line: str) -> str:
        """Carry out a command."""
        word, *arguments = line.split()
        clients = list(self.clients())
        self.note(line, clients=[pid for pid, _ in clients])
        for pid, environment in clients:
            if "CUDA_VISIBLE_DEVICES" in environment:
                self.violation(f"client {pid} names devices, but sees its daemon's")
        if clients and (word.startswith("set_") or word == "quit"):
            self.violation(f"{word} with {len(clients)} clients")
        try:
            return self.commands[word](*arguments)
        except (KeyError, TypeError, ValueError) as error:
            self.violation(f"{line}: {error!r}")
            return f"error: {line}"

    def set_percentage(self, percentage: str) -> str:
        """Set what clients may take of the threads."""
        self.percentage = float(percentage)
        if not 0 < self.percentage <= 100:
            raise ValueError(percentage)
        return ""

    def set_memory(self, device: str, limit: str) -> str:
        """Set what clients may take of the memory."""
        if device != "0" or not MEMORY.fullmatch(limit):
            raise ValueError(f"{device} {limit}")
        self.memory[device] = limit
        return ""

    def clients(self) -> Iterator[tuple[int, dict[str, str]]]:
        """Yield the processes that would connect to this daemon, with their environment."""
        ours = os.fsencode(f"CUDA_MPS_PIPE_DIRECTORY={self.pipes}")
        for folder in Path("/proc").glob("[1-9]*"):
            with suppress(OSError):
                if b"services.gpuagent.worker\0" not in (folder / "cmdline").read_bytes():
                    continue
                words = (folder / "environ").read_bytes().split(b"\0")
                if ours in words:
                    pairs = (os.fsdecode(word).partition("=") for word in words)
                    yield int(folder.name), {name: value for name, _, value in pairs}

    def misbehave(self, line: str) -> None:
        """Crash or hang where the test wants it."""
        if self.wanted("crash_on", line):
            self.note("crash")
            os._exit(1)
        while self.wanted("hang_on", line):
            time.sleep(0.05)

    def wanted(self, what: str, line: str) -> bool:
        """Return whether the test set this fault for this command."""
        with suppress(FileNotFoundError):
            return (self.logs / what).read_text() == line.split(maxsplit=1)[0]
        return False

    def violation(self, what: str) -> None:
        """Note what the real daemon would not like."""
        self.note("violation", what=what)

    def note(self, event: str, **facts: object) -> None:
        """Write a line of the journal."""
        with (self.logs.parent.parent / "journal.jsonl").open("a") as journal:
            journal.write(
                json.dumps({"event": event, "seat": self.logs.parent.name, **facts}) + "\n"
            )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
