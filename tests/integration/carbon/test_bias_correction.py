"""A provider's record is known again after a restart."""

import math
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from services.carbon.core.forecast.bias_correction import (
    HOURS,
)
from services.carbon.core.model import Outlook, Sample
from services.carbon.core.sources.feed import Feed, Reading
from services.carbon.sources.live.cache import Cache
from services.kit.config.carbon_sources import NesoSource

START = datetime(2024, 3, 6, tzinfo=UTC)
HOUR = timedelta(hours=1)


def curve(hour: int) -> float:
    return 300 + 80 * math.sin(2 * math.pi * hour / 24)


def outlook(hour: int, error: float = 0.0, hours: int = HOURS + 1) -> Outlook:
    """Return what a provider says at `hour` that is wrong by `error` all the time."""
    samples = (
        Sample(START + (hour + ahead) * HOUR, curve(hour + ahead) - error, "forecast")
        for ahead in range(hours)
    )
    return Outlook(tuple(samples), HOUR, START + hour * HOUR)


def test_a_restart_knows_the_record_again(tmp_path: Path) -> None:
    """The restored record has the hours beyond a short forecast, too, which were not predicted."""
    kept, feed, again = Cache(tmp_path, "GB", NesoSource(kind="neso")), Feed("x"), Feed("x")
    for hour in range(80):
        feed.add(Reading((), outlook(hour, 30, 25)), START + hour * HOUR)
    kept.save((), None, START, feed.record.issued)
    kept.restore(again, START + 80 * HOUR)

    assert len(feed.record.issued) == 80
    for hour, row in feed.record.issued.items():
        assert row == pytest.approx(again.record.issued[hour], nan_ok=True)
