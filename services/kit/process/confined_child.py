"""`python -m services.kit.process.confined_child`: a call of `confined`, from stdin to stdout."""

import importlib
import os
import signal
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import pyprctl

from services.kit.errors import InvalidArgument, ServiceError
from services.kit.process.confined import Call, Refusal, types_of
from services.kit.process.confinement import confine_reader
from services.kit.units import BYTES_PER_MIB

_SYSTEM: Final = (
    *("/usr", "/lib", "/lib64", "/proc/self", "/proc/cpuinfo", "/proc/meminfo", "/proc/stat"),
    *("/sys/devices/system", "/sys/fs/cgroup", "/dev/null", "/dev/zero", "/dev/urandom"),
    *("/etc/ld.so.cache", "/etc/localtime"),
)
"""Files of the system that Python and ONNX Runtime read."""


def main() -> None:
    """Confine this process, then call the function, and write its result or its error."""
    pyprctl.set_pdeathsig(signal.SIGKILL)
    call = Call.model_validate_json(sys.stdin.buffer.read())
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # libraries that print write no answer
    module, _, name = call.function.partition(":")
    function = getattr(importlib.import_module(module), name)
    if len([*Path("/proc/self/task").iterdir()]) > 1:  # confinement is of a thread
        raise RuntimeError(f"{module} starts threads")
    confine_reader(call.limits, (*call.reads, *_of_python()), call.scratch)
    out.write(_answer(function, call))
    out.flush()
    os._exit(0)  # no last look at what libraries hold


def _of_python() -> Iterable[Path]:
    found = {*sys.path, sys.prefix, sys.base_prefix, sys.exec_prefix, *_SYSTEM}
    return map(Path, filter(None, found))


def _answer(function: Callable[..., Any], call: Call) -> bytes:
    types = types_of(function)
    try:
        arguments = {
            name: types[name].validate_python(value) for name, value in call.arguments.items()
        }
        return b"result\n" + types["return"].dump_json(function(**arguments))
    except ServiceError as error:
        refusal = Refusal(
            status=error.status,
            message=_text(error.message),
            reason=error.reason,
            field=_text(error.field),
        )
    except MemoryError:
        most_mib = call.limits.memory_bytes // BYTES_PER_MIB
        refusal = _invalid(call, f"it takes more than {most_mib} MiB of memory")
    except RecursionError:
        refusal = _invalid(call, "its parts are nested too deep")
    except Exception as error:  # noqa: BLE001 - parsers' errors share no base class
        refusal = _invalid(call, f"{type(error).__name__}: {error}")
    return b"error\n" + refusal.model_dump_json().encode()


def _invalid(call: Call, why: str) -> Refusal:
    message = f"{call.file} cannot be read: {why}"
    return Refusal(status=InvalidArgument.status, message=_text(message))


def _text(text: str) -> str:
    return text[:1000].encode(errors="replace").decode()


if __name__ == "__main__":
    main()
