"""`python die_with_parent.py PARENT PROGRAM ...`: PROGRAM dies with PARENT.

Linux keeps a process's parent-death signal over exec (prctl(2), PR_SET_PDEATHSIG).
"""

import ctypes
import os
import signal
import sys
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


def main(parent: int, command: list[str]) -> None:
    """Become `command`; it is killed when process `parent`, which started this one, ends."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the signal was set
        return
    try:
        os.execvp(command[0], command)  # noqa: S606 - a list of arguments, no shell
    except OSError as error:
        sys.exit(f"cannot start {command[0]}: {error.strerror}")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
