"""Faults that a test orders: the nth call of a function, on one GPU, or at a rate."""

import ctypes
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from services.gpuagent.devices.fake_nvml.core.return_codes import Code, Fault
from services.gpuagent.devices.fake_nvml.fake_gpu import FakeGpu
from services.gpuagent.devices.fake_nvml.library import FakeNvml
from services.kit.errors import InvalidArgument


@dataclass(slots=True)
class InjectedFault:
    """A fault to come.

    Attributes:
        code: Return code of the call.
        symbols: C names of the functions that it hits; empty: every one.
        gpu_uuid: Hits only calls about this GPU or its slices; "": any call.
        skip: Matching calls that are let through first.
        times: Calls that fail then; None: every one.
        rate: Share of the matching calls that fail, 0..1.
        after: The call does its work, and then reports the failure: what read-back is for.
    """

    code: Code
    symbols: frozenset[str] = frozenset()
    gpu_uuid: str = ""
    skip: int = 0
    times: int | None = 1
    rate: float = 1.0
    after: bool = False

    def __post_init__(self) -> None:
        if self.skip < 0 or (self.times is not None and self.times < 1):
            raise InvalidArgument(f"skip must be >= 0 and times >= 1, got {self}")
        if not 0 <= self.rate <= 1:
            raise InvalidArgument(f"rate must be 0..1, got {self.rate}", field="rate")

    @classmethod
    def nth(cls, symbol: str, code: Code, number: int = 1) -> Self:
        """Order that the `number`th call of a function from now fails, number >= 1."""
        return cls(code, frozenset((symbol,)), skip=number - 1)

    def matches(self, symbol: str, gpu_uuid: str) -> bool:
        """Return whether the fault applies to a call."""
        return (not self.symbols or symbol in self.symbols) and self.gpu_uuid in ("", gpu_uuid)


class FaultInjector:
    """Decides which calls fail. The same orders, seed and calls give the same faults."""

    def __init__(self) -> None:
        self._random = random.Random(0)
        self._faults: list[InjectedFault] = []

    def inject(self, fault: InjectedFault, seed: int | None = None) -> None:
        """Take an order; of several that match a call, the earliest decides.

        Args:
            fault: The order.
            seed: Reseed the draws of faults with a rate.
        """
        if seed is not None:
            self._random.seed(seed)
        self._faults.append(replace(fault))  # it is counted down, and the caller's stays whole

    def clear(self) -> None:
        """Forget all orders."""
        self._faults.clear()

    def due(self, symbol: str, gpu_uuid: str) -> InjectedFault | None:
        """Return the order that makes this call fail, or None.

        Args:
            symbol: C name of the function.
            gpu_uuid: The GPU that the call is about; "" where it is about none.
        """
        for fault in self._faults:
            if fault.matches(symbol, gpu_uuid) and self._due(fault):
                return fault
        return None

    def _due(self, fault: InjectedFault) -> bool:
        if fault.skip:
            fault.skip -= 1
            return False
        if fault.rate < 1 and self._random.random() >= fault.rate:
            return False
        if fault.times is not None:
            fault.times -= 1
            if not fault.times:
                self._faults.remove(fault)
        return True


class FaultyNvml(FakeNvml):
    """Simulated hardware some of whose calls fail, as a test orders.

    Attributes:
        called: Functions that were called, each with the GPU that the call was about.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._injector = FaultInjector()
        self.called: set[tuple[str, str]] = set()

    def inject(self, fault: InjectedFault, *, seed: int | None = None) -> None:
        """Order a fault; see `InjectedFault` for which calls it hits."""
        with self._node.lock:
            self._injector.inject(fault, seed)

    def clear_faults(self) -> None:
        """Forget every fault that has not come yet."""
        with self._node.lock:
            self._injector.clear()

    def __getattr__(self, symbol: str) -> Any:
        """Return a C function that fails when it is to."""
        function = super().__getattr__(symbol)
        if symbol == "nvmlErrorString":
            return function

        def call(*arguments: Any) -> int:
            with self._node.lock:
                gpu_uuid = self._gpu_uuid(arguments)
                self.called.add((symbol, gpu_uuid))
                fault = self._injector.due(symbol, gpu_uuid)
                if fault is not None and not fault.after:
                    return fault.code
                status: int = function(*arguments)
                return status if fault is None or status != Code.SUCCESS else fault.code

        return call

    def _gpu_uuid(self, arguments: Sequence[Any]) -> str:
        """Return the GPU that a call is about: its first argument's; "" where it is about none."""
        node = self._node
        first = arguments[0] if arguments else None
        if isinstance(first, bytes):
            return first.decode()
        if isinstance(first, ctypes.c_uint):
            return node.gpus[first.value].uuid if first.value < len(node.gpus) else ""
        try:
            number = ctypes.cast(arguments[0], ctypes.c_void_p).value
        except (IndexError, ctypes.ArgumentError):
            return ""
        for find in (node.device, node.compute_instance, lambda found: node.gpu_instance(found)[0]):
            try:
                found = find(number)
            except Fault:
                continue
            return found.uuid if isinstance(found, FakeGpu) else found.gpu.uuid
        return ""
