"""The C border: how exported functions take arguments and give results.

Each function of the simulated library is a real C function pointer (`ctypes.CFUNCTYPE`): whatever
pynvml passes is converted as for a shared library, arrives here as numbers and addresses, and is
written to through those addresses.
"""

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from services.gpuagent.devices.fake_nvml.core.return_codes import Code, Fault
from services.gpuagent.devices.fake_nvml.fake_node import UNPRIVILEGED, FakeNode, Handle, Right
from services.kit.errors import ServiceError
from services.kit.telemetry import logs

_Body = TypeVar("_Body", bound=Callable[..., Any])
_log = logs.get("fake_nvml")
_POINTER = ctypes.c_void_p


@dataclass(frozen=True, slots=True)
class Input:
    """An argument of a function's body.

    Attributes:
        ctypes: The C types of its C arguments: one, or none.
        decode: Turns the C value into what the body takes.
    """

    ctypes: tuple[Any, ...]
    decode: Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Output:
    """A result of a function's body.

    Attributes:
        ctypes: The C types of its C arguments: addresses to write to, and sizes.
        write: Writes a value of the body to the C arguments.
    """

    ctypes: tuple[Any, ...]
    write: Callable[..., None]


def _value(_: FakeNode, value: Any) -> Any:
    return value


NODE = Input((), lambda node: node)
UINT = Input((ctypes.c_uint,), _value)
ULONGLONG = Input((ctypes.c_ulonglong,), _value)
STRING = Input((ctypes.c_char_p,), _value)
DEVICE = Input((_POINTER,), FakeNode.device)
GPU = Input((_POINTER,), FakeNode.gpu)
MIG_DEVICE = Input((_POINTER,), FakeNode.mig_device)
GPU_INSTANCE = Input((_POINTER,), FakeNode.gpu_instance)
COMPUTE_INSTANCE = Input((_POINTER,), FakeNode.compute_instance)
GPM_SAMPLE = Input((_POINTER,), FakeNode.gpm_sample)


def pointer_to(ctype: Any) -> Input:
    """Return the input for a pointer to a `ctype` that the body reads; NULL: INVALID_ARGUMENT."""
    return Input((_POINTER,), lambda _, address: _at(ctype, address))


def number(ctype: Any) -> Output:
    """Return the output for a number behind a pointer."""

    def write(_: FakeNode, address: int | None, value: Any) -> None:
        _at(ctype, address).value = value

    return Output((_POINTER,), write)


def struct(ctype: Any, version: int | None = None) -> Output:
    """Return the output for a struct behind a pointer; the body returns its fields by name.

    Args:
        ctype: The struct.
        version: What the caller must have put into its field `version`; None: it has none.
    """

    def write(node: FakeNode, address: int | None, fields: Mapping[str, Any]) -> None:
        info = _at(ctype, address)
        if version is not None and info.version != version:
            raise Fault(Code.ARGUMENT_VERSION_MISMATCH)
        for name, value in fields.items():
            if isinstance(value, Handle):  # ctypes knows the field as a pointer
                field = _POINTER.from_buffer(info, getattr(ctype, name).offset)
                field.value = node.handle(value)
            else:
                setattr(info, name, value)

    return Output((_POINTER,), write)


def array(ctype: Any, *, optional: bool = False) -> Output:
    """Return the output for an array that the caller made large enough, and for its length.

    Args:
        ctype: Of the entries.
        optional: The caller may give NULL, to have the length only.
    """

    def write(_: FakeNode, address: int | None, count: int | None, values: Sequence[Any]) -> None:
        if address or not optional:
            _write_array(address, ctype, values)
        _at(ctypes.c_uint, count).value = len(values)

    return Output((_POINTER, _POINTER), write)


def _write_handle(node: FakeNode, address: int | None, handle: Handle) -> None:
    _at(_POINTER, address).value = node.handle(handle)


def _write_handles(
    node: FakeNode, address: int | None, count: int | None, handles: Sequence[Handle]
) -> None:
    array(_POINTER).write(node, address, count, [node.handle(each) for each in handles])


def _write_text(_: FakeNode, address: int | None, size: int, text: str) -> None:
    data = text.encode() + b"\0"
    if not address:
        raise Fault(Code.INVALID_ARGUMENT)
    if len(data) > size:
        raise Fault(Code.INSUFFICIENT_SIZE)
    ctypes.memmove(address, data, len(data))


def sized_array(ctype: Any, *, count_first: bool = True) -> Output:
    """Return the output for an array and its length, or the length where it is too short.

    Args:
        ctype: Of the entries.
        count_first: The length's address is the first of the two arguments.
    """

    def write(_: FakeNode, first: int | None, second: int | None, values: Sequence[Any]) -> None:
        count, address = (first, second) if count_first else (second, first)
        length = _at(ctypes.c_uint, count)
        room = length.value if address else 0
        length.value = len(values)
        if room < len(values):
            raise Fault(Code.INSUFFICIENT_SIZE)
        if values:
            _write_array(address, ctype, values)

    return Output((_POINTER, _POINTER), write)


UINT_OUT = number(ctypes.c_uint)
ULONGLONG_OUT = number(ctypes.c_ulonglong)
TEXT_OUT = Output((_POINTER, ctypes.c_uint), _write_text)
HANDLE_OUT = Output((_POINTER,), _write_handle)
HANDLES_OUT = Output((_POINTER, _POINTER), _write_handles)
CLOCKS_OUT = sized_array(ctypes.c_uint)


def _at(ctype: Any, address: int | None) -> Any:
    if not address:
        raise Fault(Code.INVALID_ARGUMENT)
    return ctype.from_address(address)


def _write_array(address: int | None, ctype: Any, values: Sequence[Any]) -> None:
    _at(ctype * len(values), address)[:] = values


@dataclass(frozen=True, slots=True)
class Export:
    """One function of the library.

    Attributes:
        symbol: Its C name.
        parameters: Its C parameters; it returns nvmlReturn_t.
        body: What it does: takes the inputs, returns the output, or a tuple of several; raises
            Fault for any return but NVML_SUCCESS.
        needs: Rights of which the caller must hold one; none: any caller may.
        before_init: It may be called before nvmlInit.
    """

    symbol: str
    parameters: tuple[Input | Output, ...]
    body: Callable[..., Any]
    needs: Right
    before_init: bool

    def bind(self, node: FakeNode) -> Any:
        """Return the C function pointer for one node."""
        types = [ctype for parameter in self.parameters for ctype in parameter.ctypes]
        prototype = ctypes.CFUNCTYPE(ctypes.c_int, *types)
        return prototype(lambda *arguments: self._call(node, arguments))

    def _call(self, node: FakeNode, arguments: Sequence[Any]) -> int:
        try:
            with node.lock:
                self._run(node, arguments)
        except Fault as fault:
            return fault.code
        except ServiceError as error:  # its state cannot be written, or is damaged
            _log.warning("simulated function failed", symbol=self.symbol, error=error.message)
            return Code.OPERATING_SYSTEM
        except Exception:  # noqa: BLE001 - border to C: ctypes would turn it into success
            _log.exception("simulated function failed", symbol=self.symbol)
            return Code.UNKNOWN
        return Code.SUCCESS

    def _run(self, node: FakeNode, arguments: Sequence[Any]) -> None:
        if not self.before_init:
            node.admit(self.needs)
        rest, inputs, outputs = iter(arguments), [], []
        for parameter in self.parameters:
            own = [next(rest) for _ in parameter.ctypes]
            if isinstance(parameter, Input):
                inputs.append(parameter.decode(node, *own))
            elif own == [None]:
                raise Fault(Code.INVALID_ARGUMENT)
            else:
                outputs.append((parameter.write, own))
        result = self.body(*inputs)
        values = result if len(outputs) > 1 else (result,)
        for (write, own), value in zip(outputs, values, strict=bool(outputs)):
            write(node, *own, value)


EXPORTS: Final[list[Export]] = []
"""The functions of the library."""


def export(
    symbol: str,
    *parameters: Input | Output,
    needs: Right = UNPRIVILEGED,
    before_init: bool = False,
) -> Callable[[_Body], _Body]:
    """Export a function under a C name; see `Export`."""

    def add(body: _Body) -> _Body:
        EXPORTS.append(Export(symbol, parameters, body, needs, before_init))
        return body

    return add
