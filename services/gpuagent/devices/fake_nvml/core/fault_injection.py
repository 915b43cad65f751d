"""Faults that a test orders: the nth call of a function, on one GPU, or at a rate."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Self

from services.gpuagent.devices.fake_nvml.core.return_codes import Code
from services.kit.errors import InvalidArgument


@dataclass(slots=True)
class InjectedFault:
    """A fault to come.

    Attributes:
        code: What the call returns.
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
        self._random = random.Random(0)  # noqa: S311 - faults in a simulation are no secret
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
