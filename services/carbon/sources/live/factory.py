"""Creates providers from the settings of live sources, with their API keys."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
from pydantic import SecretStr

from services.carbon.sources.live.carbon_aware_sdk import CarbonAwareSdk
from services.carbon.sources.live.electricity_maps import ElectricityMaps
from services.carbon.sources.live.entsoe import Entsoe
from services.carbon.sources.live.http import Http, fits_a_header
from services.carbon.sources.live.neso import Neso
from services.carbon.sources.live.openadr import OpenAdr
from services.carbon.sources.live.provider import HttpProvider
from services.carbon.sources.live.watttime import WattTime
from services.kit.config import carbon_sources as settings
from services.kit.config.loader import ConfigError, Mistake

_PROVIDERS: Mapping[type, type[HttpProvider[Any]]] = {
    settings.CarbonAwareSdkSource: CarbonAwareSdk,
    settings.ElectricityMapsSource: ElectricityMaps,
    settings.EntsoeSource: Entsoe,
    settings.NesoSource: Neso,
    settings.OpenAdrSource: OpenAdr,
    settings.WattTimeSource: WattTime,
}


def provider(source: settings.LiveSource, client: httpx.AsyncClient) -> HttpProvider[Any] | None:
    """Return the provider of a polled source; None: the source is not polled.

    Args:
        source: Settings of the source.
        client: HTTP client, shared.

    Raises:
        ConfigError: The key cannot be read, or a header cannot carry it.
    """
    key = _api_key(source) if isinstance(source, settings.KeyedSource) else None
    kind = _PROVIDERS.get(type(source))
    http = Http(client, source.timeout_s, key=key)
    return None if kind is None else kind(http, source, key)


def _api_key(source: settings.KeyedSource) -> SecretStr | None:
    """Return the key of a source, from a file or a variable; None: the source needs none."""
    if source.key_file is not None:
        setting, place, found = "key_file", source.key_file, _from_file(source.key_file)
    elif source.key_env is not None:
        setting, place = "key_env", Path(source.key_env)
        found = os.environ.get(source.key_env, "").strip()
        if not found:
            raise ConfigError(place, [Mistake(setting, 0, "the variable is not set, or empty")])
    else:
        return None
    # A password or a secret is encoded, and may be any text; others go into headers.
    any_text = isinstance(source, settings.WattTimeSource | settings.OpenAdrSource)
    if not any_text and not fits_a_header(found):
        raise ConfigError(place, [Mistake(setting, 0, "must be printable ASCII")])
    return SecretStr(found)


def _from_file(path: Path) -> str:
    try:
        found = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "is not text"
        raise ConfigError(path, [Mistake("key_file", 0, f"cannot be read: {why}")]) from None
    if not found or len(found.splitlines()) > 1:
        raise ConfigError(path, [Mistake("key_file", 0, "must hold one key and nothing else")])
    return found
