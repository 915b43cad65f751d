"""Queries to the driver, each by itself: one that is refused takes no other along."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import pynvml

from services.gpuagent.devices.nvml.errors import spoken

T = TypeVar("T")

NOTED_S: Final = 60.0
"""Time that a refusal is reported for after it was last seen, s: some come and go."""

_OPTIONAL: Final = frozenset(
    {
        "nvmlDeviceGetGpuInstanceProfileInfo",
        "nvmlDeviceGetMigMode",
        "nvmlDeviceGetTotalEnergyConsumption",
    }
)
"""Queries that healthy boards refuse as not supported: they have no MIG, no energy counter."""


class Refusals:
    """Queries that the driver refuses about one GPU, with its words, by name.

    Args:
        monotonic: Seconds.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._noted: dict[str, tuple[float, str]] = {}

    @property
    def present(self) -> Mapping[str, str]:
        """The refusals of the last while; safe to read from another thread."""
        since_s = self._monotonic() - NOTED_S
        return {name: why for name, (at_s, why) in dict(self._noted).items() if at_s >= since_s}

    def note(self, query: str, why: str) -> None:
        """Note a refusal."""
        self._noted[query] = (self._monotonic(), why)

    def attempt(self, query: Callable[..., T], *arguments: Any) -> T | None:
        """Return an answer; None: the driver refuses it.

        Raises:
            NVMLError_GpuIsLost: The GPU has fallen off the bus.
        """
        name = query.__name__
        try:
            return query(*arguments)
        except pynvml.NVMLError_FunctionNotFound:  # the driver is older than the query
            return None
        except pynvml.NVMLError as error:
            absent = isinstance(error, pynvml.NVMLError_NotSupported) and name in _OPTIONAL
            if not absent:
                self.note(name, spoken(error))
            if isinstance(error, pynvml.NVMLError_GpuIsLost):
                raise
            return None


@dataclass(slots=True, eq=False)
class Board:
    """One GPU and what its driver has said of it.

    Attributes:
        uuid: Its identity.
        handle: Its nvmlDevice_t.
        refusals: Queries that are refused.
    """

    uuid: str
    handle: Any
    refusals: Refusals = field(default_factory=Refusals)
    _answers: dict[tuple[Any, ...], Any] = field(default_factory=dict)

    def now(self, query: Callable[..., T], *arguments: Any) -> T | None:
        """Return an answer of now; None: refused."""
        return self.refusals.attempt(query, self.handle, *arguments)

    def fixed(self, query: Callable[..., T], *arguments: Any) -> T | None:
        """Return an answer that never changes: queried until it is given; None: refused."""
        known: T | None = self._answers.get((query, *arguments))
        return self.latest(query, *arguments) if known is None else known

    def latest(self, query: Callable[..., T], *arguments: Any) -> T | None:
        """Return an answer of now, or the last one while it is refused; None: never given."""
        key, answer = (query, *arguments), self.now(query, *arguments)
        if answer is not None:
            self._answers[key] = answer
        known: T | None = self._answers.get(key)
        return known
