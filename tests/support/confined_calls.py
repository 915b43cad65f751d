"""Functions for a confined process to call: what a parser would do that was taken over."""

import ctypes
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field

from services.kit.errors import NotFound


def environment() -> dict[str, str]:
    """Return the variables of this process."""
    return dict(os.environ)


def status() -> dict[str, str]:
    """Return what the kernel says of this process."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return {name: " ".join(value.split()) for name, value in (line.split(":", 1) for line in lines)}


def permitted(file: Path) -> list[str]:
    """Return what of `TRIES` can be done, none of which should be.

    Args:
        file: Outside what may be read.
    """
    return [name for name in TRIES if _succeeds(name, file)]


def _succeeds(name: str, file: Path) -> bool:
    try:
        TRIES[name](file)
    except (OSError, RuntimeError):
        return False
    return True


def _connect(_file: Path) -> None:
    socket.create_connection(("127.0.0.1", 1), 0.1)


def _fork(_file: Path) -> None:
    if not os.fork():
        os._exit(0)


def _append(_file: Path) -> None:
    with Path(__file__).open("ab"):
        pass


def _uring(_file: Path) -> None:
    if ctypes.CDLL(None).syscall(425, 8, ctypes.create_string_buffer(120)) < 0:
        raise OSError


TRIES: Final[Mapping[str, Callable[[Path], object]]] = {
    "a socket of the internet": lambda _: socket.socket(),
    "a socket of this machine": lambda _: socket.socketpair(),
    "a connection": _connect,
    "a program": lambda _: os.posix_spawn("/bin/true", ["true"], {}),
    "another program": lambda _: os.execv("/bin/true", ["true"]),  # noqa: S606 - refused
    "a process": _fork,
    "a ring for calls": _uring,
    "a signal": lambda _: os.kill(os.getppid(), 0),
    "a user's file": lambda file: file.read_bytes(),
    "a user's folder": lambda file: [*file.parent.iterdir()],
    "another's environment": lambda _: Path(f"/proc/{os.getppid()}/environ").read_bytes(),
    "a change": lambda file: file.write_bytes(b"1"),
    "a change of what may be read": _append,
    "a new file": lambda file: file.with_name("new").touch(),
    "a removal": lambda file: file.unlink(),
    "a link": lambda file: file.with_name("link").symlink_to(file),
    "another name": lambda file: file.rename(file.with_name("renamed")),
    "other permissions": lambda file: file.chmod(0o777),
    "another length": lambda file: os.truncate(file, 0),
    "another user": lambda _: os.setuid(65534),
}


def memory() -> int:
    """Take memory without end."""
    held = []
    while True:
        held.append(bytes(2**28))


def processor() -> int:
    """Take processor time without end."""
    while True:
        pass


def sleep() -> int:
    """Do nothing for long."""
    time.sleep(600)
    return 0


def depth() -> int:
    """Recurse without end."""
    return depth() + 1


def crash() -> int:
    """Read where nothing is."""
    return ctypes.string_at(0)[0]


def killed() -> int:
    """End as where the system has no memory left."""
    with suppress(OSError):
        signal.raise_signal(signal.SIGKILL)
    return 0


def closed() -> int:
    """Answer nothing."""
    os._exit(0)


def failure() -> int:
    """Raise an error that no caller expects."""
    raise KeyError("a\u2028b\x1b[2J")


def refusal() -> int:
    """Raise an error of a service, whose text is hostile."""
    raise NotFound("no \x1b]0;\u2028 here")


def answer(text: str) -> str:
    """Return a text."""
    return text


def deep() -> list[object]:
    """Return a document that is nested deep."""
    found: list[object] = []
    for _ in range(5000):
        found = [found]
    return found


def figure() -> Annotated[float, Field(allow_inf_nan=False)]:
    """Return what is no number."""
    return float("nan")


def wrong_type() -> int:
    """Return another type than it says."""
    return "no number"  # type: ignore[return-value]


def write(folder: Path) -> None:
    """Write a file, and try a link, a program and a file beside the folder."""
    (folder / "written").write_bytes(b"1")
    with suppress(OSError):
        (folder / "link").symlink_to("/etc/passwd")
    with suppress(OSError):
        (folder.parent / "beside").write_bytes(b"1")


def spelled(text: str) -> str:
    """Return a text that was given as bytes in hexadecimal digits."""
    return bytes.fromhex(text).decode()
