"""Request quotas of clients."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from services.kit.config import Quota
from services.kit.errors import ResourceExhausted

_MOST_KNOWN: Final = 4096
_DEFERRED: Final = "waiting "
_DEFERRED_RETRY_S: Final = 1.0


@dataclass(slots=True)
class _Use:
    """Usage of a client. Attributes: quota, in_flight, tokens (of its bucket), filled_s."""

    quota: Quota
    in_flight: int
    tokens: float
    filled_s: float

    def fill(self, now_s: float) -> None:
        """Add the tokens of the time since the last request."""
        elapsed_s, self.filled_s = now_s - self.filled_s, now_s
        rate_rps = self.quota.rate_rps or 0.0
        self.tokens = min(self.quota.burst, self.tokens + elapsed_s * rate_rps)


class Quotas:
    """Quotas by client: requests in flight, and a token bucket for their rate."""

    def __init__(self, quotas: Mapping[str, Quota]) -> None:
        """Apply quotas.

        Args:
            quotas: By pattern of the client's identity, exact or a prefix that ends in "*". The
                longest pattern that matches counts; a client without one has no quota.
        """
        self._quotas = quotas
        self._uses: dict[str, _Use] = {}

    @contextmanager
    def charged(self, client: str, now_s: float) -> Iterator[None]:
        """Count a call of a client while the block runs.

        Raises:
            ResourceExhausted: The client has used its quota; says when to try again.
        """
        self.enter(client, now_s)
        try:
            yield
        finally:
            self.leave(client)

    @contextmanager
    def charged_apart(self, client: str, now_s: float) -> Iterator[None]:
        """Count a request of a client that can wait while the block runs; as of `deferred`.

        Raises:
            ResourceExhausted: The client has used its quota; says when to try again.
        """
        self.enter(client, now_s, _DEFERRED)
        try:
            yield
        finally:
            self.leave(client, _DEFERRED)

    @contextmanager
    def deferred(self, client: str, now_s: float) -> Iterator[None]:
        """Count a call of a client, which is counted already, as one that can wait instead.

        These have the same quota again, so that they take none of the other requests'.

        Raises:
            ResourceExhausted: The client has used its quota; says when to try again.
        """
        use = self._uses.get(client)
        if use is None:
            yield
            return
        use.in_flight -= 1
        use.tokens = min(use.tokens + 1, use.quota.burst)
        try:
            with self.charged_apart(client, now_s):
                yield
        finally:
            self._uses.setdefault(client, use).in_flight += 1

    def enter(self, client: str, now_s: float, kind: str = "") -> None:
        """Count a request of a client; call `leave` when it has ended.

        Args:
            client: Its identity.
            now_s: The time.
            kind: Kind of its requests, counted apart.

        Raises:
            ResourceExhausted: The client has used its quota; says when to try again.
        """
        use = self._uses.get(kind + client)
        if use is None:
            quota = self._of(client)
            if quota is None:
                return
            self._forget(now_s)
            use = self._uses[kind + client] = _Use(quota, 0, quota.burst, now_s)
        quota = use.quota
        if quota.in_flight is not None and use.in_flight >= quota.in_flight:
            raise ResourceExhausted(
                f"{client} has {use.in_flight} {kind and _DEFERRED}requests in flight, its quota",
                reason="QUOTA",
                retry_after_s=_DEFERRED_RETRY_S if kind else None,
            )
        if quota.rate_rps is not None:
            use.fill(now_s)
            if use.tokens < 1:
                raise ResourceExhausted(
                    f"{client} has used its quota of {quota.rate_rps:g} requests per second",
                    reason="QUOTA",
                    retry_after_s=(1 - use.tokens) / quota.rate_rps,
                )
            use.tokens -= 1
        use.in_flight += 1

    def leave(self, client: str, kind: str = "") -> None:
        """End a request that `enter` admitted."""
        use = self._uses.get(kind + client)
        if use is not None:
            use.in_flight -= 1

    def _of(self, client: str) -> Quota | None:
        exact = self._quotas.get(client)
        if exact is not None:
            return exact
        prefixes = [
            pattern
            for pattern in self._quotas
            if pattern.endswith("*") and client.startswith(pattern[:-1])
        ]
        return self._quotas[max(prefixes, key=len)] if prefixes else None

    def _forget(self, now_s: float) -> None:
        """Remove idle clients whose burst is full again, if many are known."""
        if len(self._uses) < _MOST_KNOWN:
            return
        for use in self._uses.values():
            use.fill(now_s)
        self._uses = {
            client: use
            for client, use in self._uses.items()
            if use.in_flight or (use.quota.rate_rps is not None and use.tokens < use.quota.burst)
        }
