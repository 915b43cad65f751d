"""ENTSO-E's transparency platform: actual generation per type times the emissions of the type.

It publishes MW per production type and quarter hour or hour, one or two hours late, with revisions.
The intensity is that of generation within the zone, without imports.
"""

import math
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from xml.etree.ElementTree import Element, ParseError

from defusedxml import DefusedXmlException

from services.carbon.core.sources.feed import FailureKind, Reading, SourceFailed
from services.carbon.core.sources.generation import Generation, intensities
from services.carbon.sources.live.error_text import MAX_CHARACTERS, reasons, without
from services.carbon.sources.live.provider import HOUR, HttpProvider, Request, first_needed
from services.kit.config.carbon_sources import EntsoeSource
from services.kit.xml_bounds import root_of, text_at

_OVERLAP = timedelta(hours=6)  # late types and revisions come within it
_RESOLUTIONS = {
    "PT5M": timedelta(minutes=5),
    "PT15M": timedelta(minutes=15),
    "PT30M": timedelta(minutes=30),
    "PT60M": HOUR,
    "PT1H": HOUR,
}
_GENERATION, _REALISED = "A75", "A16"  # document and process type
_VARIABLE_BLOCKS = "A03"
"""The curve type whose values hold until the next; of others, each value has a position."""

MAX_VALUES = 100_000
"""Values of a document: a week of 20 production types in steps of five minutes has 40,320."""

_NO_DATA = "no matching data"


class Entsoe(HttpProvider[EntsoeSource]):
    """One bidding zone; the API requires its key in the URL, which is therefore never logged."""

    def _requests(self, now: datetime, known_until: datetime | None) -> tuple[Request, ...]:
        since = first_needed(now, known_until, _OVERLAP)
        params = {
            "securityToken": self._key.get_secret_value(),
            "documentType": _GENERATION,
            "processType": _REALISED,
            "in_Domain": self._source.area,
            "periodStart": _hour(since),
            "periodEnd": _hour(now + HOUR),
        }
        return (Request("present", "", lambda body: self._reading(body, since, now), params),)

    def _reading(self, body: bytes, since: datetime, until: datetime) -> Reading:
        """Return the intensity of every step whose generation is known in full.

        Args:
            body: A document.
            since: Steps that begin more than an hour earlier are left out.
            until: Steps that begin more than an hour later are left out.

        Raises:
            SourceFailed: The body has no generation, or is something else.
        """
        try:
            root = root_of(body)
        except (ParseError, DefusedXmlException, ValueError) as error:
            raise SourceFailed("garbled", f"{self.name}: its answer is not XML: {error}") from None
        document = root.tag.rpartition("}")[2]
        if document != "GL_MarketDocument":
            said = without(reasons(root), (self._key.get_secret_value(),)) or document
            kind: FailureKind = "empty" if _NO_DATA in said.casefold() else "unknown"
            raise SourceFailed(kind, f"{self.name}: {said[:MAX_CHARACTERS]}")
        try:
            steps = _bounded(_generated(root))
            wanted = (each for each in steps if since - HOUR <= each.since <= until + HOUR)
            return Reading(intensities(wanted))
        except (ValueError, KeyError, OverflowError) as error:
            what = f"{self.name}: cannot parse its answer: {type(error).__name__}: {error}"
            raise SourceFailed("garbled", what) from None


def _generated(root: Element) -> Iterator[Generation]:
    for series in root.iterfind("{*}TimeSeries"):
        if text_at(series, "inBiddingZone_Domain.mRID"):  # else it is consumption
            kind = text_at(series, "MktPSRType/psrType")
            holds = text_at(series, "curveType") == _VARIABLE_BLOCKS
            for period in series.iterfind("{*}Period"):
                yield from _points(period, kind, holds=holds)


def _bounded(values: Iterator[Generation]) -> Iterator[Generation]:
    """Yield the values of a document; one position may stand for all of a month.

    Raises:
        ValueError: There are too many.
    """
    for count, each in enumerate(values):
        if count == MAX_VALUES:
            raise ValueError(f"more than {MAX_VALUES} values")
        yield each


def _points(period: Element, kind: str, *, holds: bool) -> Iterator[Generation]:
    """Yield each step of a period that has a value.

    Args:
        period: The period.
        kind: Production type.
        holds: A position that is left out repeats the one before; else its value is not known.
    """
    step = _RESOLUTIONS[text_at(period, "resolution")]
    start, end = (
        datetime.fromisoformat(text_at(period, f"timeInterval/{edge}")).astimezone(UTC)
        for edge in ("start", "end")
    )
    given = {
        int(text_at(point, "position")): float(text_at(point, "quantity"))
        for point in period.iterfind("{*}Point")
    }
    power_mw = math.nan
    for position in range(1, min((end - start) // step, 4 * 24 * 31) + 1):
        power_mw = given.get(position, power_mw if holds else math.nan)
        if math.isfinite(power_mw):
            yield Generation(kind, start + (position - 1) * step, step, power_mw)


def _hour(when: datetime) -> str:
    return when.astimezone(UTC).strftime("%Y%m%d%H00")
