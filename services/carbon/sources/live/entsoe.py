"""ENTSO-E's transparency platform: actual generation per type times the emissions of the type.

It publishes MW per production type and quarter hour or hour, one or two hours late, with revisions.
The intensity is that of generation within the zone, without imports.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from xml.etree.ElementTree import Element, ParseError

from defusedxml import DefusedXmlException
from defusedxml.ElementTree import fromstring

from services.carbon.core.model import Sample
from services.carbon.core.sources.emission_factors import LIFECYCLE_GCO2E_PER_KWH, STORAGE
from services.carbon.core.sources.feed import Reading, SourceFailed
from services.carbon.sources.live.http import HttpProvider, first_needed
from services.kit.config.carbon_sources import EntsoeSource

_OVERLAP = timedelta(hours=6)  # late types and revisions come within it
_RESOLUTIONS = {"PT15M": timedelta(minutes=15), "PT30M": timedelta(minutes=30)}
_RESOLUTIONS |= {"PT60M": timedelta(hours=1), "PT1H": timedelta(hours=1)}
_GENERATION, _REALISED = "A75", "A16"  # document and process type

Mix = Mapping[datetime, Mapping[str, float]]


class Entsoe(HttpProvider[EntsoeSource]):
    """One bidding zone; the API requires its key in the URL, which is therefore never logged."""

    async def read(self, now: datetime, known_until: datetime | None) -> Reading:
        """Return the intensity of every step whose generation is known in full."""
        params = {
            "securityToken": self._key.get_secret_value(),
            "documentType": _GENERATION,
            "processType": _REALISED,
            "in_Domain": self._source.area,
            "periodStart": _hour(first_needed(now, known_until, _OVERLAP)),
            "periodEnd": _hour(now + timedelta(hours=1)),
        }
        body = await self._http.get(self._url, params)
        return Reading() if body is None else Reading(intensities(mix(body, self.name)))


def mix(body: bytes, who: str) -> Mix:
    """Return the generation by step and production type, MW.

    Raises:
        SourceFailed: The body has no generation, or is something else.
    """
    try:
        root = fromstring(body)
    except (ParseError, DefusedXmlException, ValueError) as error:
        raise SourceFailed("garbled", f"{who}: its answer is not XML: {error}") from None
    document = root.tag.rpartition("}")[2]
    if document != "GL_MarketDocument":
        text = _text(root, "Reason/text") or document
        raise SourceFailed("unknown", f"{who}: {text[:200]}")
    found: dict[datetime, dict[str, float]] = defaultdict(dict)
    try:
        for series in root.iterfind("{*}TimeSeries"):
            kind = _text(series, "MktPSRType/psrType")
            if _text(series, "inBiddingZone_Domain.mRID"):  # else it is consumption
                for when, power_mw in _points(series):
                    found[when][kind] = found[when].get(kind, 0.0) + power_mw
    except (ValueError, KeyError, OverflowError) as error:
        raise SourceFailed("garbled", f"{who}: cannot parse its answer: {error}") from None
    return found


def intensities(found: Mix) -> tuple[Sample, ...]:
    """Return the intensity of each step; late ones, in which types are missing, are left out.

    A type with values in most steps must have one in every step: without it, a step would look
    cleaner or dirtier than it was.
    """
    usual = Counter(kind for each in found.values() for kind in each)
    needed = {kind for kind, count in usual.items() if 2 * count > len(found)}
    return tuple(
        Sample(when, value)
        for when, each in sorted(found.items())
        if needed <= each.keys() and (value := _intensity(each)) is not None
    )


def _intensity(power_mw: Mapping[str, float]) -> float | None:
    """Return the mean intensity; None without generation."""
    generated = {kind: max(mw, 0.0) for kind, mw in power_mw.items() if kind not in STORAGE}
    total_mw = sum(generated.values())
    if total_mw <= 0:
        return None
    unknown = LIFECYCLE_GCO2E_PER_KWH["B20"]
    emitted = (mw * LIFECYCLE_GCO2E_PER_KWH.get(kind, unknown) for kind, mw in generated.items())
    return sum(emitted) / total_mw


def _points(series: Element) -> Iterator[tuple[datetime, float]]:
    """Yield start and power of each step; a position left out repeats the one before (A03)."""
    for period in series.iterfind("{*}Period"):
        step = _RESOLUTIONS[_text(period, "resolution")]
        start, end = (
            datetime.fromisoformat(_text(period, f"timeInterval/{edge}")).astimezone(UTC)
            for edge in ("start", "end")
        )
        given = {
            int(_text(point, "position")): float(_text(point, "quantity"))
            for point in period.iterfind("{*}Point")
        }
        power_mw = None
        for position in range(1, min((end - start) // step, 4 * 24 * 31) + 1):
            power_mw = given.get(position, power_mw)
            if power_mw is not None:
                yield start + (position - 1) * step, power_mw


def _text(element: Element, path: str) -> str:
    """Return the text of the first element at `path`, in any namespace; empty without one."""
    return (element.findtext("/".join(f"{{*}}{name}" for name in path.split("/"))) or "").strip()


def _hour(when: datetime) -> str:
    return when.astimezone(UTC).strftime("%Y%m%d%H00")
