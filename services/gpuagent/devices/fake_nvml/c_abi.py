"""The C border: how exported functions take arguments and give results.

Each function of the simulated library is a real C function pointer (`ctypes.CFUNCTYPE`): whatever
pynvml passes is converted as for a shared library, arrives here as numbers and addresses, and is
written to through those addresses.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from services.gpuagent.devices.fake_nvml.core.return_codes import Code, Fault
from services.gpuagent.devices.fake_nvml.fake_gpu import FakeGpu, MigDevice
from services.gpuagent.devices.fake_nvml.fake_node import FakeNode
from services.gpuagent.devices.fake_nvml.rights import UNPRIVILEGED, Right
from services.kit.telemetry import logs

_Body = TypeVar("_Body", bound=Callable[..., None])
_log = logs.get("simulator")


@dataclass(frozen=True, slots=True)
class Parameter:
    """How one C argument becomes a Python one.

    Attributes:
        ctype: Its C type.
        decode: Turns the C value into what the function's body takes.
    """

    ctype: Any
    decode: Callable[[FakeNode, Any], Any]


def _value(_: FakeNode, value: Any) -> Any:
    return value


UINT = Parameter(ctypes.c_uint, _value)
INT = Parameter(ctypes.c_int, _value)
STRING = Parameter(ctypes.c_char_p, _value)
ADDRESS = Parameter(ctypes.c_void_p, _value)  # of an array, or None for NULL
DEVICE = Parameter(ctypes.c_void_p, FakeNode.device)
GPU = Parameter(ctypes.c_void_p, FakeNode.gpu)
MIG_DEVICE = Parameter(ctypes.c_void_p, FakeNode.mig_device)
GPU_INSTANCE = Parameter(ctypes.c_void_p, FakeNode.gpu_instance)
COMPUTE_INSTANCE = Parameter(ctypes.c_void_p, FakeNode.compute_instance)


def at(ctype: Any) -> Parameter:
    """Return the parameter for a pointer to a `ctype`; NULL is INVALID_ARGUMENT."""

    def decode(_: FakeNode, address: int | None) -> Any:
        if not address:
            raise Fault(Code.INVALID_ARGUMENT)
        return ctype.from_address(address)

    return Parameter(ctypes.c_void_p, decode)


UINT_AT = at(ctypes.c_uint)
HANDLE_AT = at(ctypes.c_void_p)


def write_string(address: int | None, size: int, text: str) -> None:
    """Write a C string into a buffer.

    Raises:
        Fault: INVALID_ARGUMENT for NULL, INSUFFICIENT_SIZE where it does not fit.
    """
    data = text.encode() + b"\0"
    if not address:
        raise Fault(Code.INVALID_ARGUMENT)
    if len(data) > size:
        raise Fault(Code.INSUFFICIENT_SIZE)
    ctypes.memmove(address, data, len(data))


def write_array(address: int | None, ctype: Any, values: Sequence[Any]) -> None:
    """Write values to an array that the caller made large enough, as nvml.h demands."""
    if not address:
        raise Fault(Code.INVALID_ARGUMENT)
    (ctype * len(values)).from_address(address)[:] = values


def write_handles(array: int | None, handles: Sequence[int], number: ctypes.c_uint) -> None:
    """Write handles to an array, and how many there are."""
    write_array(array, ctypes.c_void_p, handles)
    number.value = len(handles)


def write_handle(info: Any, field: str, handle: int) -> None:
    """Write a handle into a struct, whose field ctypes knows as a pointer."""
    offset = getattr(type(info), field).offset
    ctypes.c_void_p.from_buffer(info, offset).value = handle


@dataclass(frozen=True, slots=True)
class Export:
    """One function of the library.

    Attributes:
        symbol: Its C name.
        parameters: Its C parameters; it returns nvmlReturn_t.
        body: What it does; raises Fault for any return but NVML_SUCCESS.
        needs: Rights of which the caller must hold one; none: anybody may call it.
        before_init: It may be called before nvmlInit.
    """

    symbol: str
    parameters: tuple[Parameter, ...]
    body: Callable[..., None]
    needs: Right
    before_init: bool

    def bind(self, node: FakeNode) -> Any:
        """Return the C function pointer for one machine."""
        prototype = ctypes.CFUNCTYPE(ctypes.c_int, *(entry.ctype for entry in self.parameters))
        return prototype(lambda *arguments: self._call(node, arguments))

    def _call(self, node: FakeNode, arguments: Sequence[Any]) -> int:
        try:
            with node.lock:
                self._run(node, arguments)
        except Fault as fault:
            return fault.code
        except Exception:  # noqa: BLE001 - border to C: ctypes would turn it into success
            _log.exception("simulated function failed", symbol=self.symbol)
            return Code.UNKNOWN
        return Code.SUCCESS

    def _run(self, node: FakeNode, arguments: Sequence[Any]) -> None:
        if not self.before_init:
            node.admit(self.needs)
        decoded = [
            parameter.decode(node, argument)
            for parameter, argument in zip(self.parameters, arguments, strict=True)
        ]
        fault = node.injector.due(self.symbol, _gpu_uuid(decoded))
        if fault is None or fault.after:
            self.body(node, *decoded)
        if fault is not None:
            raise Fault(fault.code)


class Exports:
    """Collects the functions of the library."""

    def __init__(self) -> None:
        self.functions: list[Export] = []

    def function(
        self,
        symbol: str,
        *parameters: Parameter,
        needs: Right = UNPRIVILEGED,
        before_init: bool = False,
    ) -> Callable[[_Body], _Body]:
        """Export a function under a C name; see `Export`."""

        def add(body: _Body) -> _Body:
            self.functions.append(Export(symbol, parameters, body, needs, before_init))
            return body

        return add


def _gpu_uuid(decoded: Sequence[Any]) -> str:
    """Return the UUID of the GPU that a call is about, or "" where it is about none."""
    for value in decoded:
        subject = value[0] if isinstance(value, tuple) else value
        if isinstance(subject, MigDevice):
            subject = subject.gpu
        if isinstance(subject, FakeGpu):
            return subject.uuid
    return ""
