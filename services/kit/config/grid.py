"""Grid events: which are accepted, and where they come from (docs/grid-events.md)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import Field

from services.kit.config.prices import PriceSource, price_problems
from services.kit.config.section import Fraction, Name, NonNegative, Section
from services.kit.net import is_loopback_host

Url = Annotated[str, Field(pattern=r"^https?://[^\s/]+[^\s]*$", max_length=2048)]


class OpenAdr(Section):
    """An OpenADR 3 server (VTN) whose events limit a site; the planner polls it as a VEN.

    Attributes:
        url: Base URL of its API, such as "https://vtn.example/openadr3/3.1.0".
        site: Site whose power its events limit.
        program_ids: Programs whose events count; empty: all that the VTN shows.
        ven_name: Name that reports bear.
        token_url: Where access tokens come from; empty: "auth/token" below `url`.
        client_id: OAuth 2.0 client id; empty: requests bear no token.
        client_secret_file: File that contains only the client's secret, read for each token.
        scope: OAuth 2.0 scopes, space between them; empty: those that the server gives.
        certificates: File of certificate authorities that the servers are verified with; None: the
            system's.
        poll_s: Time between two polls, s.
        timeout_s: Longest wait for an answer, s.
        reports: Whether usage, baseline and shed power are reported for each event.
        lost_after_s: Time without an answer after which contact counts as lost, s. Events that are
            known hold to their end.
        lost_limit_w: Most power of the site from then on, until contact is back, W; None: no limit
            beside the known events.
    """

    url: Url
    site: Name
    program_ids: Annotated[
        tuple[Annotated[str, Field(max_length=128)], ...], Field(max_length=64)
    ] = ()
    ven_name: Annotated[str, Field(min_length=1, max_length=128)] = "cinquefoil"
    token_url: Url | None = None
    client_id: Annotated[str, Field(max_length=1024)] = ""
    client_secret_file: Path | None = None
    scope: Annotated[str, Field(max_length=1024)] = ""
    certificates: Path | None = None
    poll_s: Annotated[float, Field(ge=1, le=3600)] = 30.0
    timeout_s: Annotated[float, Field(gt=0, le=60)] = 10.0
    reports: bool = True
    lost_after_s: Annotated[float, Field(gt=0)] = 900.0
    lost_limit_w: NonNegative | None = None

    def _problems(self) -> Iterator[str]:
        if bool(self.client_id) != (self.client_secret_file is not None):
            yield "client_secret_file: client_id and client_secret_file belong together"
        for name in ("url", "token_url"):
            given = getattr(self, name)
            if (
                given
                and given.startswith("http://")
                and not is_loopback_host(urlsplit(given).hostname or "")
            ):
                yield f"{name}: must begin with https:// beyond this machine"


class Grid(Section):
    """Grid events: times in which a site may draw less power.

    Attributes:
        levels: Power in an event that names a level, as a share of the baseline, by level. OpenADR:
            1 moderate, 2 high, 3 emergency.
        emergency_level: Level that ALERT_GRID_EMERGENCY of OpenADR stands for.
        max_length_s: Longest event, s; longer ones are refused.
        max_ahead_s: Longest time that an event may be announced ahead, s.
        mqtt: Whether events count that are published as "<mqtt.prefix>/grid/event": who may publish
            there is the broker's to say.
        openadr: OpenADR servers by name.
        prices: Electricity prices by zone.
    """

    levels: dict[Annotated[int, Field(ge=1, le=100)], Fraction] = Field(
        default={1: 0.9, 2: 0.75, 3: 0.5}
    )
    emergency_level: Annotated[int, Field(ge=1)] = 3
    max_length_s: Annotated[float, Field(gt=0, le=31_622_400)] = 86_400.0
    max_ahead_s: Annotated[float, Field(gt=0, le=31_622_400)] = 2_592_000.0
    mqtt: bool = False
    openadr: Annotated[dict[Name, OpenAdr], Field(max_length=16)] = Field(default_factory=dict)
    prices: Annotated[dict[Name, PriceSource], Field(max_length=64)] = Field(default_factory=dict)

    def _problems(self) -> Iterator[str]:
        if self.emergency_level not in self.levels:
            known = ", ".join(map(str, self.levels)) or "none"
            yield f"emergency_level: {self.emergency_level} is not one of levels: {known}"


def grid_problems(grid: Grid, sites: Iterable[str], zones: Iterable[str]) -> Iterator[str]:
    """Yield contradictions with sites and zones, as "key: sentence"."""
    yield from price_problems(grid.prices, zones, grid.openadr)
    known = tuple(sites)
    for name, each in grid.openadr.items():
        if each.site not in known:
            there = ", ".join(known) or "none"
            yield f"grid.openadr.{name}.site: no site {each.site!r}; sites has {there}"
