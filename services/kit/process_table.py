"""Words and variables of this machine's processes, of which no more is read than a program has.

A process may say that gigabytes of its memory are its command, or its environment (prctl(2),
PR_SET_MM_MAP), and the kernel copies them for each reader.
"""

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

PROC: Final = Path("/proc")
_COMMAND_BYTES: Final = 2**17
_ENVIRONMENT_BYTES: Final = 2**21
_NAME_BYTES: Final = 64


def command(pid: int, proc: Path = PROC) -> list[str]:
    """Return the words of a process's command, of 128 KiB; []: it has ended, or has none.

    Of one that names itself the words are those of its title.
    """
    text = _read(proc / str(pid) / "cmdline", _COMMAND_BYTES).decode(errors="replace")
    words = text.removesuffix("\0").split("\0") if text else []
    return words if len(words) != 1 else words[0].split(" ")


def name(pid: int, proc: Path = PROC) -> str:
    """Return a process's own name; "": it has ended."""
    return _read(proc / str(pid) / "comm", _NAME_BYTES).decode(errors="replace").strip()


def environment(pid: int, proc: Path = PROC) -> list[bytes]:
    """Return a process's variables, NAME=value, of 2 MiB; []: it ended, or is not ours to read."""
    return _read(proc / str(pid) / "environ", _ENVIRONMENT_BYTES).split(b"\0")


def variable(pid: int, key: str, proc: Path = PROC) -> str:
    """Return a variable of a process; "": it has none of this name."""
    start = f"{key}=".encode()
    found = (each for each in environment(pid, proc) if each.startswith(start))
    return os.fsdecode(next(found, b"").removeprefix(start))


def _read(path: Path, most_bytes: int) -> bytes:
    with suppress(OSError), path.open("rb", buffering=0) as file:
        found = bytearray()
        while (piece := file.read(most_bytes - len(found))) and len(found) < most_bytes:
            found += piece
        return bytes(found)
    return b""
