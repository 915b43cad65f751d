"""The carbon intensity of the electricity here: a constant, or a zone's by its sources."""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from services.carbon.core.monitor import Monitor
from services.carbon.runtime.grid_state import GridState, update_zone
from services.carbon.runtime.live_sources import Ingestion, live_feeds
from services.carbon.sources.factory import build
from services.carbon.sources.live.client import http_client
from services.kit.clock import RealClock
from services.kit.config import Carbon
from services.kit.config.loader import load
from services.kit.errors import InvalidArgument

KEY: Final = "ELECTRICITY_MAPS_API_KEY"
_DAY: Final = timedelta(hours=24)


@dataclass(slots=True)
class Electricity:
    """The electricity, as far as it is known.

    Attributes:
        label: Its zone and source, in words; "": nothing is known.
        constant: Intensity that holds for all time, gCO2e/kWh; None: the zone's, or not known.
    """

    label: str = ""
    constant: float | None = None
    _zone: str = ""
    _state: GridState | None = field(default=None, repr=False)

    def now(self) -> float | None:
        """Return the intensity in force, gCO2e/kWh; None: not known (yet)."""
        if self._state is None:
            return self.constant
        latest = self._state.latest.get(self._zone)
        return None if latest is None else latest.sample.intensity_gco2e_per_kwh

    def day_ahead(self) -> Sequence[float]:
        """Return the forecast of the next 24 hours, equal steps, gCO2e/kWh; (): none."""
        if self._state is None or self.now() is None:
            return ()
        now = datetime.now(UTC)
        found = self._state.forecast(self._zone, _DAY, now)
        return tuple(each.intensity_gco2e_per_kwh for each in found.periods)


@asynccontextmanager
async def electricity(
    zone: str, constant: float | None, config: Path
) -> AsyncIterator[Electricity]:
    """Follow the intensity while the block runs.

    Args:
        zone: Zone of the deployment file, "GB", or one of Electricity Maps; "": none.
        constant: Intensity in place of a zone's, gCO2e/kWh.
        config: Deployment file, which need not exist.

    Raises:
        ConfigError: The file, or a source of its, cannot be used.
        InvalidArgument: The zone is in no file, and no provider is known for it.
    """
    if constant is not None:
        yield Electricity(f"{constant:g} gCO2e/kWh, given", constant)
        return
    if not zone:
        yield Electricity()
        return
    carbon = _settings(zone, config)
    start, sources = await asyncio.to_thread(build, carbon, datetime.now(UTC))
    window = timedelta(seconds=carbon.zones[zone].average_window_s)
    monitor = Monitor(
        zone, sources[zone], start, signal=carbon.zones[zone].signal, average_window=window
    )
    state, clock, updated = GridState({zone: monitor}), RealClock(), asyncio.Event()
    names = ", ".join(source.kind for source in carbon.zones[zone].sources)
    async with http_client() as client, asyncio.TaskGroup() as tasks:
        feeds = await asyncio.to_thread(lambda: tuple(live_feeds(carbon, sources, client, start)))
        background = [
            tasks.create_task(
                update_zone(monitor, state, clock, updated if feeds else None), name="observe.zone"
            )
        ]
        for each in feeds:
            if each.provider is not None:
                ingestion = Ingestion(each, monitor, updated, clock)
                polling = ingestion.poll(each.provider)
                background.append(tasks.create_task(polling, name=f"observe.poll[{zone}]"))
        try:
            yield Electricity(f"{zone} ({names})", None, zone, state)
        finally:
            for task in background:
                task.cancel()


def _settings(zone: str, config: Path) -> Carbon:
    """Return settings of one zone: the file's, or a provider's defaults."""
    if config.exists():
        carbon = load(config).carbon
        if zone in carbon.zones:
            if carbon.zones[zone].signal == "percentile":
                raise InvalidArgument(
                    f"--zone {zone}: its signal is a percentile, which is not an emission",
                    field="zone",
                )
            return carbon.model_copy(update={"zones": {zone: carbon.zones[zone]}})
    return Carbon.model_validate({"zones": {zone: {"source": _provider(zone, os.environ)}}})


def _provider(zone: str, environment: Mapping[str, str]) -> dict[str, Any]:
    if environment.get(KEY):
        return {"kind": "electricity-maps", "zone": zone, "key_env": KEY}
    if zone == "GB":
        return {"kind": "neso"}
    raise InvalidArgument(
        f"--zone {zone}: no deployment file has it, and its provider is not known. Set {KEY} for "
        "Electricity Maps' zones, use GB (NESO, without a key), name a file that has the zone "
        "(--config), or give a constant (--intensity)",
        field="zone",
    )
