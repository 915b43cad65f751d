"""Room at a server, shared out among its callers: no caller alone can take all of it."""

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from services.kit.net import is_loopback_host

UNKNOWN, KNOWN, OPERATOR = range(3)
"""Ranks of callers: without an identity, with one, and with the right to operate the service."""


class Payer(NamedTuple):
    """The caller that room is taken for. Attributes: name (identity, else host), rank."""

    name: str
    rank: int


class Refused(Exception):
    """A call that its caller may not make. Attributes: code, details, trailers of the answer."""

    def __init__(
        self, code: int, details: str, trailers: Sequence[tuple[str, str | bytes]] = ()
    ) -> None:
        super().__init__(details)
        self.code, self.details, self.trailers = code, details, trailers


Admit = Callable[[str, Any], Payer]
"""Returns who makes a call, from its method and context, or raises `Refused`.

The method "" stands for connecting.
"""

EVERYBODY: Final = Payer("", OPERATOR)
"""Callers on this machine, where no identities are checked: shares do not apply."""


def local_or_host(host: str) -> Payer:
    """Return whose share calls of a host take where no identities are checked.

    Args:
        host: As `host_of` returns it.
    """
    kind, _, address = host.partition(":")
    if kind == "unix" or is_loopback_host(address.strip("[]")):
        return EVERYBODY
    return Payer(host, KNOWN)


class Room:
    """So many places, of which each kind of caller has a share.

    One caller may take half of them, all callers without an identity together another half,
    and all but operators seven eighths.

    Attributes:
        taken: Places that are taken.
        share: Places that one caller may take.
    """

    def __init__(self, total: int, least: int = 1) -> None:
        """Make room for `total`; one caller may take `least` of it in any case."""
        self.taken = 0
        self.share = max(total // 2, least)
        self._total = max(total, least)
        self._for_all_but_operators = max(total - total // 8, least)
        self._unknown = 0
        self._by_name: dict[str, int] = {}

    def take(self, payer: Payer, count: int = 1) -> bool:
        """Take places; False: there are not so many, and none were taken."""
        taken = self.taken + count
        name, rank = payer
        if rank == OPERATOR:
            if taken > self._total:
                return False
            self.taken = taken
            return True
        held = self._by_name.get(name, 0) + count
        unknown = self._unknown + count if rank == UNKNOWN else 0
        if held > self.share or unknown > self.share or taken > self._for_all_but_operators:
            return False
        self.taken = taken
        self._by_name[name] = held
        if unknown:
            self._unknown = unknown
        return True

    def give_back(self, payer: Payer, count: int = 1) -> None:
        """Give places back."""
        self.taken -= count
        name, rank = payer
        if rank == OPERATOR:
            return
        if left := self._by_name[name] - count:
            self._by_name[name] = left
        else:
            del self._by_name[name]
        if rank == UNKNOWN:
            self._unknown -= count
