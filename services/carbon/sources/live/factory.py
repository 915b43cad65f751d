"""Creates providers from the settings of live sources."""

from __future__ import annotations

import httpx
from pydantic import SecretStr

from services.carbon.core.sources.provider import Provider
from services.carbon.sources.live.api_key import read_api_key
from services.carbon.sources.live.carbon_aware_sdk import CarbonAwareSdk
from services.carbon.sources.live.electricity_maps import ElectricityMaps
from services.carbon.sources.live.entsoe import Entsoe
from services.carbon.sources.live.http import Http
from services.carbon.sources.live.neso import Neso
from services.carbon.sources.live.watttime import WattTime
from services.kit import config as settings


def provider(source: settings.LiveSource, client: httpx.AsyncClient) -> Provider | None:
    """Return the provider of a polled source; None: the source is not polled.

    Args:
        source: Settings of the source.
        client: HTTP client, shared.

    Raises:
        ConfigError: The key cannot be read.
    """
    http = Http(client, source.timeout_s)
    if isinstance(source, settings.KeyedSource):
        return _keyed(source, http, read_api_key(source))
    return Neso(http, source) if isinstance(source, settings.NesoSource) else None


def _keyed(source: settings.KeyedSource, http: Http, key: SecretStr | None) -> Provider | None:
    if isinstance(source, settings.CarbonAwareSdkSource):
        return CarbonAwareSdk(http, source, key)
    secret = key or SecretStr("")  # the settings' types require one
    match source:
        case settings.ElectricityMapsSource():
            return ElectricityMaps(http, source, secret)
        case settings.WattTimeSource():
            return WattTime(http, source, secret)
        case settings.EntsoeSource():
            return Entsoe(http, source, secret)
        case _:
            return None
