"""Landlock: the files that a process may open from now on, and no peer that it may reach.

Three calls of the kernel (landlock(7), Linux 5.13); the bindings on PyPI are young or unfinished.
"""

import ctypes
import os
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Final

_CREATE_RULESET: Final = 444
_ADD_RULE: Final = 445
_RESTRICT_SELF: Final = 446
_VERSION: Final = 1
_PATH_BENEATH: Final = 1

_READ_FILE: Final = 1 << 2
_READ_DIR: Final = 1 << 3
_RIGHTS: Final = ((1, (1 << 13) - 1), (2, 1 << 13), (3, 1 << 14), (5, 1 << 15))
"""Rights that the kernel knows from a version on: files, links across folders, truncation,
devices."""

_NETWORK: Final = (4, 0b11)
_SCOPES: Final = (6, 0b11)
"""Rights that are refused altogether, from a version on: TCP's bind and connect; signals to other
processes, and their abstract sockets."""

_OF_FILES: Final = 1 | 1 << 1 | _READ_FILE | 1 << 14 | 1 << 15
_SPECIAL: Final = 1 | 1 << 6 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 12 | 1 << 15
"""Rights that not even a folder to write into gives: programs, devices, sockets, pipes, links."""

_libc = ctypes.CDLL(None, use_errno=True)


def version() -> int:
    """Return the version that the kernel has; 0: none, or it is switched off."""
    found: int = _libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION)
    return max(found, 0)


def restrict(reads: Iterable[Path], writes: Iterable[Path]) -> bool:
    """Restrict this thread, and what it starts, to some files; False: the kernel lacks Landlock.

    It may not signal other processes, nor speak TCP, where the kernel can refuse that.

    The process must have no new privileges (prctl(2), PR_SET_NO_NEW_PRIVS).

    Args:
        reads: Files, and folders with all below them; those that do not exist are left out.
        writes: Folders whose files it may make, write and remove, too.

    Raises:
        OSError: The kernel refuses a rule.
    """
    known = version()
    if not known:
        return False
    handled = sum(rights for since, rights in _RIGHTS if known >= since)
    refused = (mask for since, mask in (_NETWORK, _SCOPES) if known >= since)
    attributes = b"".join(struct.pack("=Q", each) for each in (handled, *refused))
    ruleset = _checked(_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), 0)
    try:
        for path in reads:
            _permit(ruleset, path, _READ_FILE | _READ_DIR)
        for path in writes:
            _permit(ruleset, path, handled & ~_SPECIAL)
        _checked(_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)
    return True


def _permit(ruleset: int, path: Path, rights: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:  # who opens it later gets the reason
        return
    try:
        if not path.is_dir():
            rights &= _OF_FILES
        _checked(_ADD_RULE, ruleset, _PATH_BENEATH, struct.pack("=Qi", rights, descriptor), 0)
    finally:
        os.close(descriptor)


def _checked(call: int, *arguments: object) -> int:
    found: int = _libc.syscall(call, *arguments)
    if found < 0:
        raise OSError(error := ctypes.get_errno(), f"landlock: {os.strerror(error)}")
    return found
