"""Electricity prices of the live planner: read from their sources for ever, each by itself."""

import asyncio
from collections.abc import Iterator, Mapping
from typing import Final

from cinquefoil.condition.v1.records import Condition, ConditionKind
from services.kit.clock import Clock
from services.kit.config import Grid
from services.kit.config.prices import CsvPrice, EntsoePrice, PriceSource
from services.kit.errors import ServiceError
from services.kit.telemetry import logs
from services.planner.adapters.price_sources import entsoe_prices, file_prices, key_of
from services.planner.core.cycle.cluster_state import ClusterState
from services.planner.core.energy_prices.course import PriceStep

_log = logs.get("energy_prices")
_tracebacks = logs.Tracebacks()

_FILE_S: Final = 60.0
"""Time between two readings of a file, s."""


class LiveEnergyPrices:
    """Reads prices into the cluster's state.

    Args:
        grid: Has the sources.
        state: Receives prices.
        clock: Source of time.
    """

    def __init__(self, grid: Grid, state: ClusterState, clock: Clock) -> None:
        self._sources: Mapping[str, PriceSource] = grid.prices
        self._state, self._clock = state, clock
        self._failed: dict[str, str] = {}

    async def follow(self) -> None:
        """Read all sources, for ever; a failure is a condition, and ends nothing."""
        async with asyncio.TaskGroup() as tasks:
            for zone, source in self._sources.items():
                if isinstance(source, CsvPrice | EntsoePrice):
                    work = self._follow(zone, source)
                    tasks.create_task(work, name=f"planner.prices.{zone}")

    def announced(self, server: str, steps: list[PriceStep]) -> None:
        """Take over all prices that an OpenADR server announces now."""
        for zone, source in self._sources.items():
            if (
                source.kind == "openadr"
                and source.server == server
                and self._state.prices.replace(zone, steps, self._now_s())
            ):
                self._state.changed.notify()

    def conditions(self) -> Iterator[Condition]:
        """Yield zones whose price is not known, or stands for that of another day."""
        for zone in self._sources:
            price = self._state.prices.at(zone, self._now_s())
            why = self._failed.get(zone, "its source has none of now")
            if price is not None and not price.days_old:
                continue
            held = (
                "plans count energy there by its carbon alone"
                if price is None
                else f"plans use {price.eur_per_kwh:.4g} EUR/kWh, of {price.days_old} d ago"
            )
            yield Condition(
                ConditionKind.PRICE_UNKNOWN,
                f"zone/{zone}",
                f"the price of electricity in {zone} is not known: {why}; {held}",
                f"grid.prices.{zone}",
            )

    async def _follow(self, zone: str, source: CsvPrice | EntsoePrice) -> None:
        while True:
            try:
                steps = await self._read(source)
                if self._state.prices.put(zone, steps, self._now_s()):
                    self._state.changed.notify()
                self._failed.pop(zone, None)
            except ServiceError as error:
                self._fail(zone, error.message)
            except Exception as error:  # noqa: BLE001 - logged; the planner must go on
                # Border to files and a server of others: the planner keeps planning.
                _log.error("price", zone=zone, **_tracebacks.details(error))
                self._fail(zone, type(error).__name__)
            await self._clock.sleep(_FILE_S if isinstance(source, CsvPrice) else source.poll_s)

    async def _read(self, source: CsvPrice | EntsoePrice) -> list[PriceStep]:
        if isinstance(source, CsvPrice):
            return await asyncio.to_thread(file_prices, source.path, self._now_s())
        key = await asyncio.to_thread(key_of, source.key_file)
        return await entsoe_prices(source, key, self._clock.now())

    def _fail(self, zone: str, why: str) -> None:
        if self._failed.get(zone) != why:
            _log.warning("price not read", zone=zone, why=why)
        self._failed[zone] = why

    def _now_s(self) -> float:
        return self._clock.now().timestamp()
