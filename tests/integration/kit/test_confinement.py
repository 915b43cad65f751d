"""Confined workers: the calls that they still have."""

import subprocess
import sys
from ctypes.util import find_library
from typing import Final

import pytest

_PROGRAM: Final = """
import ctypes, os, subprocess, sys, threading
from services.kit.process.confinement import confine
confine(starts_programs={starts})
def can(do):
    try:
        do()
    except (OSError, RuntimeError):
        return False
    return True
def fork():
    if not os.fork():
        os._exit(0)
def uring():
    if ctypes.CDLL(None).syscall(425, 8, ctypes.create_string_buffer(120)) < 0:
        raise OSError
def thread():
    started = threading.Thread(target=int)
    started.start()
    started.join()
program = lambda: subprocess.run(["/bin/true"])
print(*(can(each) for each in (thread, fork, program, uring)))
"""


@pytest.mark.skipif(find_library("seccomp") is None, reason="needs libseccomp")
@pytest.mark.parametrize(
    ("starts", "permitted"),
    [(False, "True False False False"), (True, "True True True False")],
)
def test_only_a_worker_that_starts_programs_can_fork(starts: bool, permitted: str) -> None:
    """Threads stay; no worker has rings for calls (io_uring), which no filter would see."""
    program = _PROGRAM.format(starts=starts)
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert ended.stdout.split("\n")[0] == permitted
