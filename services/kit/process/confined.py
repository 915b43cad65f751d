"""Calls in a process of their own, which reads a file of others and can do nothing else.

    network = confined(examine, file, known, file=file, reads=[file.parent])

The process has no network, no secrets in its environment, bounds of memory and processor time, and
no file to write; it answers a bounded JSON document, which is checked against the type of the
function's result. Whatever happens to it, the caller gets one sentence that names the file.
"""

import contextlib
import inspect
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Annotated, Any, Final, TypeVar, cast, get_type_hints

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from services.kit import cgroup
from services.kit.errors import InvalidArgument, ServiceError, from_status
from services.kit.process import environment
from services.kit.process.confinement import ReaderLimits
from services.kit.segment import plain, require_printable, require_unicode
from services.kit.units import BYTES_PER_GIB, BYTES_PER_MIB

T = TypeVar("T")

_MODULE: Final = "services.kit.process.confined_child"
_CHUNK_BYTES: Final = 65_536
_ANSWER_BYTES: Final = BYTES_PER_MIB
_LEAST_MEMORY_BYTES: Final = 2 * BYTES_PER_GIB
_WAITS: Final = 3
"""Time by the clock over processor time: the machine may be busy."""

_START_S: Final = 60.0


class Refusal(BaseModel):
    """An error of the function. Attributes: status, message, reason and field of ServiceError."""

    status: Annotated[str, Field(max_length=40)]
    message: str
    reason: Annotated[str, Field(max_length=100)] = ""
    field: Annotated[str, Field(max_length=1000)] = ""


class Call(BaseModel):
    """A call for the process.

    Attributes:
        function: "module:name".
        file: What it reads, for messages.
        arguments: By name, as JSON.
        limits: Of the process.
        reads: What it may read.
        scratch: Folder that it may write into; None: none.
    """

    function: str
    file: Path
    arguments: dict[str, Any]
    limits: ReaderLimits
    reads: tuple[Path, ...]
    scratch: Path | None


def confined(  # noqa: PLR0913 - what a process may do
    function: Callable[..., T],
    *arguments: object,
    file: Path,
    reads: Sequence[Path],
    scratch: Path | None = None,
    cpu_s: int = 600,
    answer_bytes: int = _ANSWER_BYTES,
) -> T:
    """Return what a function of a module returns, called in a confined process. Blocks.

    Args:
        function: The function; its arguments and its result have types that JSON carries.
        arguments: Its arguments.
        file: What it reads, for messages.
        reads: Files, and folders with all below them, that it may read.
        scratch: Folder that it may write into; None: it writes no file.
        cpu_s: Processor time that it may take, s.
        answer_bytes: Size of its answer, as JSON.

    Raises:
        ServiceError: As the function raised it.
        InvalidArgument: It reached a limit, or ended without an answer; the message names the file.
    """
    require_unicode(*map(str, (file, *reads)))
    call = Call(
        function=f"{function.__module__}:{function.__qualname__}",
        file=file,
        arguments=_as_json(function, arguments),
        limits=ReaderLimits(cpu_s, memory_bytes(), answer_bytes),
        reads=tuple(path.absolute() for path in reads),
        scratch=scratch,
    )
    return _result(function, _answer(call), call)


def memory_bytes() -> int:
    """Return the memory of a confined process: half of what is here, and 2 GiB of addresses."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return _LEAST_MEMORY_BYTES + int(min(machine, cgroup.limits().memory_bytes)) // 2


def types_of(function: Callable[..., Any]) -> dict[str, TypeAdapter[Any]]:
    """Return what reads and writes a function's arguments, by name, and its result, "return"."""
    return {name: TypeAdapter(each) for name, each in get_type_hints(function).items()}


def _as_json(function: Callable[..., Any], arguments: Sequence[object]) -> dict[str, Any]:
    types = types_of(function)
    given = inspect.signature(function).bind(*arguments).arguments
    return {name: types[name].dump_python(value, mode="json") for name, value in given.items()}


def _answer(call: Call) -> bytes:
    limits = call.limits
    variables = environment.passed_on() | environment.one_thread()
    if call.scratch is not None:
        variables["TMPDIR"] = str(call.scratch)
    with subprocess.Popen(  # noqa: S603 - our own interpreter and module
        # -P: a folder `services` in the current directory must not come before ours.
        [sys.executable, "-P", "-m", _MODULE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=variables,
    ) as child:
        given, taken = cast(IO[bytes], child.stdin), cast(IO[bytes], child.stdout)
        waits_s = _WAITS * limits.cpu_s + _START_S
        try:
            with contextlib.suppress(BrokenPipeError):  # it has ended: its status says why
                given.write(call.model_dump_json().encode())
                given.close()
            answer = _read(taken.fileno(), waits_s, call)
            status = child.wait(_START_S)
        except (TimeoutError, subprocess.TimeoutExpired) as error:
            raise InvalidArgument(
                f"{call.file} cannot be read: it took longer than {waits_s:.0f} s"
            ) from error
        finally:
            child.kill()
    if status:
        raise InvalidArgument(f"{call.file} cannot be read: {_why(status, limits)}")
    return answer


def _read(descriptor: int, waits_s: float, call: Call) -> bytes:
    """Read a pipe to its end, and no more than an answer may have.

    Raises:
        TimeoutError: The end did not come in time.
        InvalidArgument: There is more.
    """
    until_s, answer = time.monotonic() + waits_s, bytearray()
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    while (left_s := until_s - time.monotonic()) > 0:
        if not waiting.poll(left_s * 1000):
            continue
        chunk = os.read(descriptor, _CHUNK_BYTES)
        if not chunk:
            return bytes(answer)
        answer += chunk
        if len(answer) > call.limits.answer_bytes:
            raise InvalidArgument(
                f"{call.file}: its description has more than {call.limits.answer_bytes} bytes"
            )
    raise TimeoutError


def _why(status: int, limits: ReaderLimits) -> str:
    match -status:
        case signal.SIGXCPU:
            return f"it took more than {limits.cpu_s} s of processor time"
        case signal.SIGKILL:
            return "the process that read it was killed, as where memory runs out"
        case number if number > 0:
            name = signal.Signals(number).name if number in set(signal.Signals) else str(number)
            return f"the process that read it crashed ({name})"
        case _:
            return f"the process that read it ended with status {status}"


def _result(function: Callable[..., T], answer: bytes, call: Call) -> T:
    """Return the answer of a process that may have been taken over, where it is a valid one."""
    known = set(_texts(call.arguments))
    kind, _, content = answer.partition(b"\n")
    try:
        if kind == b"error":
            raise _error(Refusal.model_validate_json(content))
        found = TypeAdapter(Any).validate_json(content)  # bounds how deep it is nested
        require_printable(str(call.file), *(text for text in _texts(found) if text not in known))
        result: T = types_of(function)["return"].validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"])) or "its description"
        raise InvalidArgument(f"{call.file}: {plain(place)}: {plain(first['msg'])}") from error
    return result


def _error(refusal: Refusal) -> ServiceError:
    error = from_status(refusal.status, plain(refusal.message))
    error.reason, error.field = plain(refusal.reason) or error.status, plain(refusal.field)
    return error


def _texts(value: object) -> Iterator[str]:
    match value:
        case str():
            yield value
        case Mapping():
            for key, each in value.items():
                yield from (key, *_texts(each))
        case list() | tuple():
            for each in value:
                yield from _texts(each)
