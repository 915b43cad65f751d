"""Processes of others: no more of their command and environment is read than a program has."""

import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from services.gpuagent.devices.mps.control_program import daemons
from services.gpuagent.observation.workloads import Workloads
from services.gpuagent.supervision.processes import running
from services.kit import process_table
from services.local.up.orphans import bearers

MIB = 2**20
LARGE = """
import ctypes, mmap, struct, sys
libc = ctypes.CDLL(None)
libc.sbrk.restype = ctypes.c_void_p
size = int(sys.argv[1])
given = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
given.write(b"control\\0-d\\0" + b"x" * (size - 12))
for end in (size // 2, size):
    given[end - 1] = 0
at = ctypes.addressof(ctypes.c_char.from_buffer(given))
found = [int(each) for each in open("/proc/self/stat").read().rpartition(")")[2].split()[23:50]]
code, end_code, stack = found[:3]
data, end_data, brk = found[19:22]
middle = at + size // 2
whole = (code, end_code, data, end_data, brk, libc.sbrk(0), stack, at, middle, middle, at + size)
sent = ctypes.create_string_buffer(struct.pack("11QQII", *whole, 0, 0, 2**32 - 1), 104)
print(libc.prctl(35, 14, sent, ctypes.c_ulong(104), 0), flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def large() -> Iterator[int]:
    """A process that says that its command and its environment are 64 MiB each."""
    command = [sys.executable, "-c", LARGE, str(128 * MIB)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        if process.stdout.readline() != b"0\n":
            process.kill()
            pytest.skip("this kernel has no PR_SET_MM_MAP")
        yield process.pid
        process.kill()


def test_a_command_of_gigabytes_takes_no_memory_of_its_readers(large: int, tmp_path: Path) -> None:
    """Any process of the machine may have one; psutil took 128 MiB for these 64."""
    with Path(f"/proc/{large}/cmdline").open("rb") as file:
        assert sum(map(len, iter(lambda: file.read(MIB), b""))) > 60 * MIB
    readers: dict[str, Callable[[], object]] = {
        "command": lambda: process_table.command(large),
        "workload": lambda: Workloads().of(large),
        "workers": lambda: running(tmp_path),
        "daemons": lambda: daemons("control", tmp_path),
        "bearers": lambda: bearers("another"),
    }
    for name, read in readers.items():
        tracemalloc.start()
        read()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 16 * MIB, name


def test_words_and_variables_are_as_they_were_given() -> None:
    """Empty words, too."""
    given = [sys.executable, "-c", "print(flush=True); input()", "a", "", "b c"]
    pipe = subprocess.PIPE
    with subprocess.Popen(given, stdin=pipe, stdout=pipe, env={"A": "1"}) as process:
        assert process.stdout is not None
        process.stdout.readline()  # it has begun
        found = process_table.command(process.pid)
        variables = process_table.environment(process.pid)
        variable = process_table.variable(process.pid, "A")
        process.kill()
    assert found == given
    assert b"A=1" in variables
    assert variable == "1"
