"""HTTP requests to providers of the grid's intensity: retries, and the key that is shown."""

import math
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from services.carbon.sources.live.error_text import error_text
from services.carbon.sources.live.factory import provider
from services.carbon.sources.live.http import Http, _is_safe, _retry_after_s
from services.carbon.sources.live.provider import pause
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
        ("1000000000", 1e9),
        ("9" * 5000, math.inf),
        ("soon", None),
        ("-5", None),
        ("", None),
    ],
)
def test_retry_after_is_seconds_or_a_date(text: str, wait_s: float | None) -> None:
    assert _retry_after_s(httpx.Headers({"retry-after": text}), NOW) == wait_s


@pytest.mark.parametrize("retry_after_s", [0.0, 60.0, 1e9, math.inf])
def test_a_retry_after_is_heeded_for_a_day_at_most(retry_after_s: float) -> None:
    """31 years, or more than a time can be, do not silence a source for good."""
    assert pause(retry_after_s) == timedelta(seconds=min(retry_after_s, 86_400))


@pytest.mark.parametrize(
    ("url", "target", "safe"),
    [
        ("https://a.example/v3", "https://a.example/v4", True),
        ("http://127.0.0.1:80/v3", "https://127.0.0.1/v4", True),
        ("http://a.example/x", "http://a.example/y", True),
        ("https://a.example/x", "http://a.example/x", False),
        ("https://a.example/x", "https://b.example/x", False),
        ("https://a.example/x", "https://a.example.evil/x", False),
        ("https://a.example/x", "https://a.example:8443/x", False),
        ("http://127.0.0.1:8080/x", "https://127.0.0.1/x", False),
        ("https://a.example/x", "https://u:p@a.example/x", False),
        ("https://a.example/x", "ftp://a.example/x", False),
    ],
)
def test_a_redirect_is_followed_only_where_the_key_is_as_safe(
    url: str, target: str, *, safe: bool
) -> None:
    """The same host, and HTTPS or the same port."""
    assert _is_safe(httpx.URL(url), httpx.URL(target)) is safe


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"error": "Invalid scope", "message": "no access"}', "Invalid scope: no access"),
        (b'{"error": {"code": 7, "message": "wrong"}}', "wrong"),
        (b'{"errors": [{"detail": "a"}, {"detail": "b"}]}', "a: b"),
        (b'[{"message": "in a list"}]', "in a list"),
        (b'{"error": "cut off', '{"error": "cut off'),
        (b"<html><head><title>Down\n for a while</title></head>", "Down for a while"),
        (b"<p>no title</p>", ""),
        (b"<D xmlns='x'><Reason><code>999</code><text>No data</text></Reason></D>", "999 No data"),
        (b"plain\r\n\x1b[31mtext\xff", "plain [31mtext\N{REPLACEMENT CHARACTER}"),
        (b"", ""),
    ],
)
def test_an_error_has_the_words_of_its_provider(body: bytes, said: str) -> None:
    """JSON, XML, HTML or text, on one line."""
    assert error_text(body) == said


@given(st.binary(max_size=300))
def test_no_error_is_too_odd_to_be_shown(body: bytes) -> None:
    """Any bytes give one printable line."""
    assert error_text(body).isprintable()
    assert error_text(b'{"error": ' + body).isprintable()
    assert error_text(b"<a>" + body).isprintable()


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
