"""Memory that waiting requests may take, over all models."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class ByteBudget:
    """Bytes of request bodies that wait. Attributes: limit_bytes, used_bytes."""

    limit_bytes: int = 2**63
    used_bytes: int = 0

    def fits(self, size_bytes: int) -> bool:
        """Return whether so many more bytes may wait."""
        return self.used_bytes + size_bytes <= self.limit_bytes
