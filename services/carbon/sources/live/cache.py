"""What live sources said, on disk: a restart needs to ask nobody before it is time."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from datetime import datetime, timedelta
from hashlib import blake2b
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from pydantic import AwareDatetime, BaseModel, TypeAdapter, ValidationError

from services.carbon.core.model import Provenance, Sample
from services.carbon.core.sources.feed import Feed
from services.carbon.core.sources.provider import Outlook, Reading
from services.kit.config import LiveSource
from services.kit.telemetry import logs

_log = logs.get("carbon.cache")
_NOT_CONTENT = {"poll_s", "fresh_s", "timeout_s", "forecast", "key_file", "key_env"}

_Row = tuple[AwareDatetime, float, Provenance]


class _Foretold(BaseModel):
    samples: list[_Row]
    step: timedelta
    issued: AwareDatetime


class _File(BaseModel):
    version: Literal[1] = 1
    asked: AwareDatetime
    samples: list[_Row]
    outlook: _Foretold | None = None
    told: dict[int, list[float | None]] = {}


class Cache:
    """One feed's file. It names what was asked, so that other settings find nothing.

    Args:
        folder: Made where it is missing.
        zone: Of the deployment file.
        source: What was asked.
    """

    def __init__(self, folder: Path, zone: str, source: LiveSource) -> None:
        what = source.model_dump_json(exclude=_NOT_CONTENT).encode()
        digest = blake2b(what, digest_size=6).hexdigest()
        self._path = folder / f"{zone}.{digest}.json"

    def restore(self, feed: Feed, now: datetime) -> datetime | None:
        """Let a feed learn what it knew; return when its source was last asked, if it was.

        A file that cannot be used counts for nothing: the source is asked instead.
        """
        try:
            found = TypeAdapter(_File).validate_json(self._path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValidationError) as error:
            why = type(error).__name__
            _log.warning("what was kept cannot be used", file=self._path.name, error=why)
            return None
        nan = float("nan")
        told = {hour: [nan if v is None else v for v in row] for hour, row in found.told.items()}
        feed.record.restore(told)
        outlook = None
        if found.outlook is not None:
            ahead = found.outlook
            outlook = Outlook(tuple(map(_sample, ahead.samples)), ahead.step, ahead.issued)
        feed.learn(Reading(tuple(map(_sample, found.samples)), outlook), now)
        return min(found.asked, now)

    def save(
        self,
        known: tuple[Sample, ...],
        outlook: Outlook | None,
        asked: datetime,
        told: Mapping[int, list[float]] = MappingProxyType({}),
    ) -> None:
        """Write the file as a whole, or leave the old one; a disk that fails is told, no more.

        Args:
            known: All samples.
            outlook: The provider's forecast.
            asked: When it was last asked.
            told: The provider's earlier forecasts.
        """
        ahead = None
        if outlook is not None:
            rows = list(map(_row, outlook.samples))
            ahead = _Foretold(samples=rows, step=outlook.step, issued=outlook.issued)
        file = _File(asked=asked, samples=list(map(_row, known)), outlook=ahead, told=dict(told))
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self._path.parent, prefix=".", suffix=".json")
            with os.fdopen(handle, "w", encoding="utf-8") as out:
                out.write(file.model_dump_json())
            Path(name).replace(self._path)
        except OSError as error:
            _log.warning("cannot be kept", file=self._path.name, error=error.strerror)


def _row(sample: Sample) -> _Row:
    return sample.since, sample.intensity_gco2e_per_kwh, sample.provenance


def _sample(row: _Row) -> Sample:
    return Sample(*row)
