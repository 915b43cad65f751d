"""Sources of electricity prices by zone (docs/prices.md)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

from pydantic import Field

from services.kit.config.section import Name, Section
from services.kit.net import is_loopback_host

LEAST_EUR_PER_KWH: Final = -1.0
MOST_EUR_PER_KWH: Final = 10.0
"""Bounds of prices: Europe's day-ahead auctions have -0.5 and 4 EUR/kWh."""

EurPerKwh = Annotated[float, Field(ge=LEAST_EUR_PER_KWH, le=MOST_EUR_PER_KWH)]


class StaticPrice(Section):
    """One price for all time.

    Attributes:
        eur_per_kwh: The price, EUR/kWh.
    """

    kind: Literal["static"]
    eur_per_kwh: EurPerKwh


class CsvPrice(Section):
    """A CSV file, read again where it has changed.

    Attributes:
        path: File with the columns `start` (ISO 8601, ascending) and `eur_per_kwh` or
            `eur_per_mwh`; each price holds until the next.
    """

    kind: Literal["csv"]
    path: Path


class OpenAdrPrice(Section):
    """Events of an OpenADR server with the payload PRICE.

    Attributes:
        server: Its name in `grid.openadr`.
    """

    kind: Literal["openadr"]
    server: Name


class EntsoePrice(Section):
    """Day-ahead prices of ENTSO-E's transparency platform (document A44).

    Attributes:
        area: EIC code of the bidding zone, for example "10Y1001A1001A82H".
        key_file: File that contains only the key.
        url: Address of the API.
        poll_s: Time between two requests, s.
        timeout_s: Longest wait for an answer, s.
    """

    kind: Literal["entsoe"]
    area: Annotated[str, Field(pattern=r"^[0-9A-Z-]{16}$")]
    key_file: Path
    url: Annotated[str, Field(pattern=r"^https?://[^\s?#@]+$", max_length=2048)] = (
        "https://web-api.tp.entsoe.eu/api"
    )
    poll_s: Annotated[float, Field(ge=1, le=86_400)] = 900.0
    timeout_s: Annotated[float, Field(gt=0, le=120)] = 20.0

    def _problems(self) -> Iterator[str]:
        host = urlsplit(self.url).hostname or ""
        if self.url.startswith("http:") and not is_loopback_host(host):
            yield f"url: {self.url} would send the key in the clear; use https://"


PriceSource = Annotated[
    StaticPrice | CsvPrice | OpenAdrPrice | EntsoePrice, Field(discriminator="kind")
]


def price_problems(
    prices: dict[str, PriceSource], zones: Iterable[str], servers: Iterable[str]
) -> Iterator[str]:
    """Yield contradictions with zones and OpenADR servers, as "key: sentence"."""
    zones, servers = tuple(zones), tuple(servers)
    for zone, source in prices.items():
        if zone not in zones:
            yield f"grid.prices.{zone}: no zone {zone!r}; carbon.zones has {', '.join(zones)}"
        if isinstance(source, OpenAdrPrice) and source.server not in servers:
            there = ", ".join(servers) or "none"
            yield (
                f"grid.prices.{zone}.server: no server {source.server!r}; grid.openadr has {there}"
            )
