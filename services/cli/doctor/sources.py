"""Checks of the carbon providers of a deployment: one poll of each."""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

import httpx

from services.carbon.core.model import highest_plausible
from services.carbon.core.sources.feed import Feed, Reading, SourceFailed
from services.carbon.sources.live.client import http_client
from services.carbon.sources.live.factory import provider
from services.cli.doctor.finding import Finding, bad, fine, note
from services.kit.config import Deployment, Zone
from services.kit.config.carbon_sources import LiveSource, MqttSource
from services.kit.config.loader import ConfigError

_TIMEOUT_S: Final = 5.0
_REMEDIES: Final = {
    "refused": "check its key",
    "moved": "set its `url`",
    "unreachable": "check the network, its `url` and proxies (docs/operations.md)",
    "limited": "poll less often: `poll_s`",
}


def sources(deployment: Deployment) -> list[Finding]:
    """Return a finding on each provider that the carbon service would poll."""
    return asyncio.run(_sources(deployment))


async def _sources(deployment: Deployment) -> list[Finding]:
    polled = [
        (name, zone, source)
        for name, zone in deployment.carbon.zones.items()
        for source in zone.sources
        if isinstance(source, LiveSource) and not isinstance(source, MqttSource)
    ]
    if not polled:
        return []
    async with http_client() as client:
        return await asyncio.gather(*(_source(*each, client) for each in polled))


async def _source(name: str, zone: Zone, source: LiveSource, client: httpx.AsyncClient) -> Finding:
    subject = f"source {name}, {source.label}"
    quick = source.model_copy(update={"timeout_s": min(source.timeout_s, _TIMEOUT_S)})
    now = datetime.now(UTC)
    try:
        polled = provider(quick, client)
        reading = Reading() if polled is None else await polled.read(now, None)
    except ConfigError as error:
        return bad(subject, "; ".join(map(str, error.mistakes)), "correct the file")
    except SourceFailed as error:
        return _silent(subject, zone, error)
    if reading.failure is not None:
        return _silent(subject, zone, reading.failure)
    feed = Feed(source.label, maximum=highest_plausible(zone.signal))
    update = feed.add(reading, now)
    if not feed.known:
        return _silent(subject, zone, SourceFailed("implausible", "; ".join(update.refused[:3])))
    newest = feed.known[-1]
    unit = "percentile" if zone.signal == "percentile" else "gCO2e/kWh"
    found = f"{newest.intensity_gco2e_per_kwh:.4g} {unit} since {newest.since:%Y-%m-%d %H:%M} UTC"
    missing = "; ".join(_missing(reading))
    if not missing:
        return fine(subject, f"{found} ({newest.provenance})")
    return note(subject, f"{found} ({newest.provenance}); {missing}", "docs/carbon-sources.md")


def _silent(subject: str, zone: Zone, error: SourceFailed) -> Finding:
    """Return the finding on a source without values: bad where the zone has no other."""
    say = bad if len(zone.sources) == 1 else note
    remedy = _REMEDIES.get(error.kind, "check its settings (docs/carbon-sources.md)")
    return say(subject, f"no value ({error.kind}): {error}", remedy)


def _missing(reading: Reading) -> Iterator[str]:
    for part, failure in reading.parts.items():
        if failure is not None:
            what = "is not offered" if failure.not_offered else f"failed ({failure.kind})"
            yield f"its {part} {what}: {failure}"
