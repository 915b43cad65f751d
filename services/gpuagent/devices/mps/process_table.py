"""Control daemons in the process table, which no note of a process id can contradict. Blocks."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil

_PIPES: Final = "CUDA_MPS_PIPE_DIRECTORY"


def daemons(program: str, root: Path) -> dict[Path, list[psutil.Process]]:
    """Return the daemons whose pipe directory lies below `root`, by that directory."""
    found: dict[Path, list[psutil.Process]] = {}
    for process in psutil.process_iter(["cmdline"]):
        command = process.info["cmdline"] or []
        if "-d" not in command or all(Path(word).name != program for word in command):
            continue
        with suppress(psutil.Error):
            pipes = Path(process.environ().get(_PIPES, ""))
            if pipes.is_relative_to(root) and process.status() != psutil.STATUS_ZOMBIE:
                found.setdefault(pipes, []).append(process)
    return found


def end(program: str, pipes: Path, patience_s: float) -> bool:
    """Wait for a daemon's end, then kill it with its servers; return whether it was killed."""
    processes = daemons(program, pipes).get(pipes, [])
    _, alive = psutil.wait_procs(processes, timeout=patience_s if processes else 0)
    for process in alive:
        with suppress(psutil.Error):
            family = [*process.children(recursive=True), process]
            for each in family:
                with suppress(psutil.Error):
                    each.kill()
            psutil.wait_procs(family, timeout=patience_s)
    return bool(alive)
