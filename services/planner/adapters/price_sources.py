"""Electricity prices from files and from ENTSO-E (document A44), bounded in bytes and time."""

from __future__ import annotations

import asyncio
import csv
import ssl
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from io import StringIO
from itertools import islice, pairwise
from pathlib import Path
from typing import Final
from xml.etree.ElementTree import Element, ParseError

import aiohttp
from defusedxml import DefusedXmlException

from services.kit.config.prices import EntsoePrice
from services.kit.errors import Unavailable
from services.kit.xml_bounds import root_of, text_at
from services.planner.core.energy_prices.course import MOST_STEPS, PriceStep, wrong_price

_MAX_BYTES: Final = 4 * 2**20
_MAX_ANSWER: Final = 2**20
"""Of three days' prices, which have 50 kB."""

_MAX_KEY: Final = 4096
_LAST_STEP_S: Final = 3600.0
"""Length of a file's last price where it has one only, s."""

_UNITS: Final = {"eur_per_kwh": 1.0, "eur_per_mwh": 1e-3}
_RESOLUTIONS: Final[Mapping[str, timedelta]] = {
    "PT15M": timedelta(minutes=15),
    "PT30M": timedelta(minutes=30),
    "PT60M": timedelta(hours=1),
    "P1D": timedelta(days=1),
}
_VARIABLE_BLOCKS: Final = "A03"
_NO_DATA: Final = "no matching data"


def file_prices(path: Path, now_s: float) -> list[PriceStep]:
    """Return the prices of a CSV file: those from a week ago on, as many as are kept.

    Raises:
        Unavailable: It cannot be read, or is not as it should be; the message has the line.
    """
    try:
        with path.open("rb") as file:
            body = file.read(_MAX_BYTES + 1)
        if len(body) > _MAX_BYTES:
            raise Unavailable(f"{path}: more than {_MAX_BYTES} bytes")
        rows = list(_rows(csv.DictReader(StringIO(body.decode("utf-8-sig")))))
    except (OSError, UnicodeDecodeError, csv.Error, ValueError) as error:
        raise Unavailable(f"{path}: {str(error)[:300]}") from error
    ends = [after for _, (after, _) in pairwise(rows)]
    ends.append(rows[-1][0] + (rows[-1][0] - rows[-2][0] if len(rows) > 1 else _LAST_STEP_S))
    found = [
        PriceStep(start_s, end_s, eur) for (start_s, eur), end_s in zip(rows, ends, strict=True)
    ]
    return [each for each in found if each.end_s > now_s - 8 * 86_400][:MOST_STEPS]


def _rows(reader: csv.DictReader[str]) -> Iterator[tuple[float, float]]:
    """Yield start, Unix time, and price of each line.

    Raises:
        ValueError: A line is not as it should be, or there is none.
    """
    unit = next((name for name in reader.fieldnames or () if name in _UNITS), "")
    if "start" not in (reader.fieldnames or ()) or not unit:
        raise ValueError(f"the first line must name start and one of {', '.join(_UNITS)}")
    before_s = -float("inf")
    for row in reader:
        at = f"line {reader.line_num}"
        try:
            start = datetime.fromisoformat(row["start"])
            eur = float(row[unit]) * _UNITS[unit]
        except (ValueError, TypeError) as error:
            raise ValueError(f"{at}: {error}") from error
        if problem := wrong_price(eur):
            raise ValueError(f"{at}: {unit}: {problem}")
        start_s = start.replace(tzinfo=start.tzinfo or UTC).timestamp()
        if start_s <= before_s:
            raise ValueError(f"{at}: start must be after the one before, got {row['start']}")
        before_s = start_s
        yield start_s, eur
    if before_s < 0:
        raise ValueError("no prices")


async def entsoe_prices(source: EntsoePrice, key: str, now: datetime) -> list[PriceStep]:
    """Return the day-ahead prices of a bidding zone, of yesterday to tomorrow.

    Raises:
        Unavailable: The platform does not answer, or not with prices; the key is not in the
            message.
    """
    day = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    query = {
        "securityToken": key,
        "documentType": "A44",
        "in_Domain": source.area,
        "out_Domain": source.area,
        "periodStart": f"{day - timedelta(days=1):%Y%m%d%H%M}",
        "periodEnd": f"{day + timedelta(days=2):%Y%m%d%H%M}",
    }
    timeout = aiohttp.ClientTimeout(total=source.timeout_s)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, trust_env=False) as session,
            session.get(
                source.url, params=query, ssl=ssl.create_default_context(), allow_redirects=False
            ) as response,
        ):
            body = bytearray()
            async for chunk in response.content.iter_any():
                body += chunk
                if len(body) > _MAX_ANSWER:
                    raise Unavailable(f"answers more than {_MAX_ANSWER} bytes")
            status = response.status
    except TimeoutError as error:
        raise Unavailable(f"no answer within {source.timeout_s:g} s (timeout_s)") from error
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise Unavailable(f"{type(error).__name__}") from error  # its text may have the URL
    return await asyncio.to_thread(document_prices, bytes(body), status)


def document_prices(body: bytes, status: int = 200) -> list[PriceStep]:
    """Return the prices of a Publication_MarketDocument.

    Raises:
        Unavailable: It has none, or is something else.
    """
    try:
        root = root_of(body)
    except (ParseError, DefusedXmlException, ValueError) as error:
        raise Unavailable(f"its answer is not XML (HTTP status {status}): {error}") from None
    if root.tag.rpartition("}")[2] != "Publication_MarketDocument":
        said = text_at(root, "Reason/text")[:200]
        why = "no prices of that time" if _NO_DATA in said.casefold() else said
        raise Unavailable(f"answers HTTP status {status}: {why or 'no prices'}")
    try:
        found = list(islice(_steps(root), MOST_STEPS + 1))
    except (ValueError, KeyError, OverflowError) as error:
        raise Unavailable(f"cannot read its answer: {type(error).__name__}: {error}") from None
    if not found:
        raise Unavailable("its answer has no prices")
    if len(found) > MOST_STEPS:  # one position may stand for thousands
        raise Unavailable(f"its answer has more than {MOST_STEPS} prices")
    return found


def _steps(root: Element) -> Iterator[PriceStep]:
    for series in root.iterfind("{*}TimeSeries"):
        currency = text_at(series, "currency_Unit.name")
        unit = text_at(series, "price_Measure_Unit.name")
        if (currency, unit) != ("EUR", "MWH"):
            raise ValueError(f"prices must be in EUR per MWH, got {currency} per {unit}")
        holds = text_at(series, "curveType") == _VARIABLE_BLOCKS
        for period in series.iterfind("{*}Period"):
            yield from _points(period, holds=holds)


def _points(period: Element, *, holds: bool) -> Iterator[PriceStep]:
    """Yield the prices of a period; `holds`: a position that is left out repeats the one before."""
    step = _RESOLUTIONS[text_at(period, "resolution")]
    start, end = (
        datetime.fromisoformat(text_at(period, f"timeInterval/{edge}")).astimezone(UTC)
        for edge in ("start", "end")
    )
    given = {
        int(text_at(point, "position")): 1e-3 * float(text_at(point, "price.amount"))
        for point in period.iterfind("{*}Point")
    }
    eur = float("nan")
    for position in range(1, min((end - start) // step, MOST_STEPS) + 1):
        eur = given.get(position, eur if holds else float("nan"))
        if eur == eur and (problem := wrong_price(eur)):  # noqa: PLR0124 - not a number: left out
            raise ValueError(f"price.amount: {problem}")
        if eur == eur:  # noqa: PLR0124
            at_s = (start + (position - 1) * step).timestamp()
            yield PriceStep(at_s, at_s + step.total_seconds(), eur)


def key_of(path: Path) -> str:
    """Return the key in a file.

    Raises:
        Unavailable: The file cannot be read.
    """
    try:
        with path.open(encoding="utf-8") as file:
            return file.read(_MAX_KEY).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise Unavailable(f"key_file: {error}") from error
