"""HTTP requests to providers of the grid's intensity: retries, and the key that is shown."""

import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import TypeAdapter

from services.carbon.sources.live.factory import provider
from services.carbon.sources.live.http import Http, _retry_after_s
from services.kit.config import carbon_sources as settings
from services.kit.config.loader import ConfigError
from tests.support.carbon.provider_answers import ELECTRICITY_MAPS, NOW
from tests.support.fake_provider import Answer, HttpRequest, serving_http


async def test_a_retry_waits_for_as_long_as_the_server_says() -> None:
    requests: list[HttpRequest] = []

    def route(request: HttpRequest) -> Answer:
        requests.append(request)
        early = len(requests) < 2
        return Answer(status=429, headers={"retry-after": "1"}) if early else Answer("fine")

    async with serving_http(route) as server, httpx.AsyncClient() as client:
        began_s = time.monotonic()
        body = await Http(client, 20.0).get(server.url, bytes)

    assert body == b"fine"
    assert time.monotonic() - began_s >= 0.95


@pytest.mark.parametrize(
    ("text", "wait_s"),
    [
        ("120", 120.0),
        ("0", 0.0),
        ("Wed, 06 Mar 2024 19:12:00 GMT", 120.0),
        ("Wed, 06 Mar 2024 19:00:00 GMT", 0.0),
        ("soon", None),
        ("-5", None),
        ("", None),
    ],
)
def test_retry_after_is_seconds_or_a_date(text: str, wait_s: float | None) -> None:
    assert _retry_after_s(httpx.Headers({"retry-after": text}), NOW) == wait_s


@pytest.mark.parametrize(
    ("content", "why"), [(None, "cannot be read"), ("", "one key"), ("a\nb\n", "one key")]
)
def test_a_key_file_that_holds_no_key_is_reported(
    tmp_path: Path, content: str | None, why: str
) -> None:
    path = tmp_path / "key"
    if content is not None:
        path.write_text(content)
    source = TypeAdapter[Any](settings.Source).validate_python(
        {**ELECTRICITY_MAPS.settings, "key_file": path}
    )
    with pytest.raises(ConfigError, match=why):
        provider(source, httpx.AsyncClient())
