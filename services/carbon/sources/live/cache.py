"""Values of live sources on disk, so that a restart needs no requests before they are due."""

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from hashlib import blake2b
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from pydantic import AwareDatetime, BaseModel, Field

from services.carbon.core.model import Outlook, Provenance, Sample
from services.carbon.core.sources.feed import Feed, Reading
from services.kit.config.carbon_sources import LiveSource
from services.kit.errors import Unavailable
from services.kit.state_file import read_disposable, write_json
from services.kit.telemetry import logs

_log = logs.get("carbon.cache")
_UNRELATED = {"poll_s", "fresh_s", "timeout_s", "forecast", "key_file", "key_env"}
_UNRELATED |= {"granularity", "horizon_h"}

_Row = tuple[AwareDatetime, float, Provenance]


class _Outlook(BaseModel):
    samples: list[_Row]
    step: timedelta
    issued: AwareDatetime


class _File(BaseModel):
    version: Literal[1] = 1
    requested: AwareDatetime = Field(alias="asked")
    samples: list[_Row]
    outlook: _Outlook | None = None
    issued: dict[int, list[float | None]] = Field(default={}, alias="told")


class Cache:
    """The file of one feed. Its name has a digest of the settings, so that others do not match.

    Args:
        folder: Folder of the file; created where it is missing.
        zone: Name of the zone.
        source: Settings of the source.
    """

    def __init__(self, folder: Path, zone: str, source: LiveSource) -> None:
        content = source.model_dump_json(exclude=_UNRELATED).encode()
        digest = blake2b(content, digest_size=6).hexdigest()
        self._path = folder / f"{zone}.{digest}.json"

    def restore(self, feed: Feed, now: datetime) -> datetime | None:
        """Add the saved values to a feed; return the time of the last request, if any.

        A damaged file is set aside; an unreadable one is logged, and its values requested again.
        """
        try:
            found = read_disposable(self._path, _File.model_validate, version=1)
        except Unavailable as error:
            _log.warning("the saved values cannot be used", error=error.message)
            return None
        if found is None:
            return None
        nan = float("nan")
        rows = {hour: [nan if v is None else v for v in row] for hour, row in found.issued.items()}
        feed.record.restore(rows)
        outlook = None
        if found.outlook is not None:
            ahead = found.outlook
            outlook = Outlook(tuple(map(_sample, ahead.samples)), ahead.step, ahead.issued)
        feed.add(Reading(tuple(map(_sample, found.samples)), outlook), now)
        return min(found.requested, now)

    def save(
        self,
        known: tuple[Sample, ...],
        outlook: Outlook | None,
        requested: datetime,
        issued: Mapping[int, list[float]] = MappingProxyType({}),
    ) -> None:
        """Replace the file atomically; a disk failure is only logged.

        Args:
            known: All samples.
            outlook: Forecast of the provider.
            requested: Time of the last request.
            issued: Earlier forecasts of the provider.
        """
        ahead = None
        if outlook is not None:
            rows = list(map(_row, outlook.samples))
            ahead = _Outlook(samples=rows, step=outlook.step, issued=outlook.issued)
        file = _File(
            asked=requested, samples=list(map(_row, known)), outlook=ahead, told=dict(issued)
        )
        try:
            write_json(self._path, json.loads(file.model_dump_json(by_alias=True)), durable=False)
        except Unavailable as error:
            _log.warning("the values are kept in memory only", error=error.message)


def _row(sample: Sample) -> _Row:
    return sample.since, sample.intensity_gco2e_per_kwh, sample.provenance


def _sample(row: _Row) -> Sample:
    return Sample(*row)
