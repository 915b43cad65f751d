"""The contract of every provider, over real HTTP, with answers as recorded."""

import json
import re
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, timedelta
from itertools import pairwise
from typing import Any

import httpx
import pytest
import stamina
from pydantic import TypeAdapter

from services.carbon.core.sources.feed import Feed, SourceFailed
from services.carbon.sources.live.factory import provider
from services.carbon.sources.live.provider import HttpProvider
from services.kit.config import carbon_sources as settings
from tests.support.carbon.provider_answers import (
    CASES,
    ELECTRICITY_MAPS,
    ENTSOE,
    KEY,
    NESO,
    NOW,
    OPENADR,
    WATTTIME,
    Case,
)
from tests.support.fake_provider import Answer, HttpRequest, ProviderServer, Route, serving_http
from tests.support.vtn import CLIENT_ID, CLIENT_SECRET, vtn

ALL = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())


@pytest.fixture
async def server() -> AsyncIterator[ProviderServer]:
    """A server without answers yet."""
    async with serving_http(lambda _: Answer(status=500)) as found:
        yield found


@pytest.fixture(scope="module")
def trusted() -> ssl.SSLContext:
    """Whom the service trusts: read once, as that takes longer than most tests here."""
    return httpx.create_ssl_context()


@pytest.fixture
async def client(trusted: ssl.SSLContext) -> AsyncIterator[httpx.AsyncClient]:
    """The HTTP client of the service."""
    async with httpx.AsyncClient(verify=trusted) as found:
        yield found


@pytest.fixture(autouse=True)
def at_once() -> Iterator[None]:
    """Retries do not wait; how long they would is tested by itself."""
    with stamina.set_testing(True, attempts=3):
        yield


@pytest.fixture
def make(
    server: ProviderServer, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., HttpProvider[Any]]:
    """Return a function that makes the provider of a case, with the key in the environment."""
    monkeypatch.setenv("THE_KEY", KEY)

    def made(case: Case, **more: Any) -> HttpProvider[Any]:
        path = "/api" if case is ENTSOE else ""
        given = {**case.settings, "url": server.url + path, **more}
        if case.token:
            given["key_env"] = "THE_KEY"
        source = TypeAdapter[Any](settings.Source).validate_python(given)
        found = provider(source, client)
        assert found is not None
        return found

    return made


@ALL
async def test_what_was_recorded_becomes_samples_in_grams_and_utc(
    case: Case, make: Callable[..., HttpProvider[Any]], server: ProviderServer
) -> None:
    server.route = case.answer
    provider, feed = make(case), Feed("x")
    reading = await provider.read(NOW, None)
    feed.add(reading, NOW)
    newest = feed.known[-1]

    assert (newest.since, newest.provenance) == (case.newest[0], case.newest[2])
    assert newest.intensity_gco2e_per_kwh == pytest.approx(case.newest[1])
    assert len(feed.known) == case.count
    assert all(sample.since.tzinfo is UTC for sample in feed.known)
    ahead = () if reading.outlook is None else reading.outlook.samples
    assert [each.intensity_gco2e_per_kwh for each in ahead] == pytest.approx(list(case.ahead))
    assert all(earlier.since < later.since for earlier, later in pairwise(ahead))


@ALL
async def test_read_again_with_what_is_known_it_changes_nothing(
    case: Case, make: Callable[..., HttpProvider[Any]], server: ProviderServer
) -> None:
    server.route = case.answer
    provider, feed = make(case), Feed("x")
    feed.add(await provider.read(NOW, None), NOW)
    later = NOW + timedelta(minutes=2)

    assert feed.add(await provider.read(later, feed.known_until), later).since is None


@ALL
async def test_what_has_not_changed_is_not_sent_again(
    case: Case, make: Callable[..., HttpProvider[Any]], server: ProviderServer
) -> None:
    """The ETag goes along with the next question of the same URL; 304 is no failure."""

    def route(request: HttpRequest) -> Answer:
        if request.headers.get("if-none-match") == '"v1"':
            return Answer(status=304)
        good = case.answer(request)
        return Answer(good.body, good.status, {"etag": '"v1"'})

    server.route = route
    provider = make(case)
    await provider.read(NOW, NOW)
    before = len(server.requests)
    reading = await provider.read(NOW, NOW)

    again = server.requests[before:]
    assert again
    assert all(request.headers.get("if-none-match") == '"v1"' for request in again)
    assert reading.samples == ()


def only_data(case: Case, answer: Answer) -> Route:
    """Answer with `answer`, but let a login succeed, so that the data itself is what fails."""
    return lambda request: case.answer(request) if request.path == "/login" else answer


@ALL
@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (Answer(status=400), ("unknown", 1)),
        (Answer(status=404), ("unknown", 1)),
        (Answer(status=429), ("limited", 3)),
        (Answer(status=429, headers={"retry-after": "3600"}), ("limited", 1)),
        (Answer(status=500), ("unreachable", 3)),
        (Answer(status=503, headers={"retry-after": "120"}), ("unreachable", 1)),
        (Answer(status=302, headers={"location": "http://127.0.0.1:1/"}), ("moved", 1)),
        (Answer("<html>maintenance"), ("garbled", 1)),
        (Answer(b"\xff\xfe\x00"), ("garbled", 1)),
        (Answer('{"data": 7, "history": {}}'), ("garbled", 1)),
        (Answer(""), ("empty", 1)),
    ],
    ids=[
        "400", "404", "429", "429-in-an-hour", "500", "503-in-2-min", "redirect", "html",
        "not-text", "other-json", "empty",
    ],
)  # fmt: skip
async def test_a_failure_has_a_kind_and_only_what_may_pass_is_tried_again(
    case: Case,
    make: Callable[..., HttpProvider[Any]],
    server: ProviderServer,
    answer: Answer,
    outcome: tuple[str, int],
) -> None:
    """Each part is requested as often as its status allows."""
    kind, count = outcome
    server.route = only_data(case, answer)
    with pytest.raises(SourceFailed) as caught:
        await make(case).read(NOW, None)

    assert caught.value.kind == kind
    sent = Counter(request.path for request in server.requests if request.path != "/login")
    assert set(sent.values()) == {count}
    wanted = answer.headers.get("retry-after")
    assert caught.value.retry_after_s == (None if wanted is None else float(wanted))


@ALL
@pytest.mark.parametrize("status", [401, 403])
async def test_a_refusal_is_reported_and_its_message_holds_no_key(
    case: Case, make: Callable[..., HttpProvider[Any]], server: ProviderServer, status: int
) -> None:
    """Where the plan may cover less, what it does cover is used: an index needs no history."""
    server.route = lambda _: Answer('{"error": "Invalid scope"}', status=status)
    with pytest.raises(SourceFailed) as caught:
        await make(case).read(NOW, None)

    assert caught.value.kind == "refused"
    assert KEY not in f"{caught.value!r} {caught.value.__context__!r}"
    assert set(Counter(request.path for request in server.requests).values()) == {1}


@ALL
async def test_two_errors_of_the_server_are_borne(
    case: Case, make: Callable[..., HttpProvider[Any]], server: ProviderServer
) -> None:
    def route(request: HttpRequest) -> Answer:
        seen = [each for each in server.requests if each.path == request.path]
        return Answer(status=502) if len(seen) <= 2 else case.answer(request)

    server.route = route
    reading = await make(case).read(NOW, None)

    assert reading.samples


@ALL
async def test_a_server_that_does_not_answer_in_time_is_given_up(
    case: Case, make: Callable[..., HttpProvider[Any]], server: ProviderServer
) -> None:
    server.route = only_data(case, Answer(delay_s=30))
    with pytest.raises(SourceFailed, match="no answer within") as caught:
        await make(case, timeout_s=0.1).read(NOW, None)

    assert caught.value.kind == "unreachable"


@ALL
async def test_a_port_without_a_server_is_unreachable(
    case: Case, make: Callable[..., HttpProvider[Any]]
) -> None:
    with pytest.raises(SourceFailed) as caught:
        await make(case, url="http://127.0.0.1:1").read(NOW, None)

    assert caught.value.kind == "unreachable"


@ALL
async def test_the_key_is_shown_to_the_provider_and_to_no_other(
    case: Case,
    make: Callable[..., HttpProvider[Any]],
    server: ProviderServer,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The key is in no log and no failure, though httpx would log the URL that ENTSO-E's is in."""
    caplog.set_level("INFO")
    server.route = case.answer
    provider = make(case)
    await provider.read(NOW, None)
    sent = [*server.requests[-1].headers.values(), *server.requests[-1].query.values()]
    server.route = lambda _: Answer(status=500)
    with pytest.raises(SourceFailed) as caught:
        await provider.read(NOW + timedelta(hours=1), None)

    assert not case.token or case.token in sent
    said = capsys.readouterr()
    assert KEY not in said.out + said.err + caplog.text + repr(caught.value) + repr(vars(provider))


async def test_a_login_that_has_run_out_is_renewed_once(
    make: Callable[..., HttpProvider[Any]], server: ProviderServer
) -> None:
    provider = make(WATTTIME)
    server.route = WATTTIME.answer
    await provider.read(NOW, None)
    refusals = iter([Answer(status=401)])

    def route(request: HttpRequest) -> Answer:
        expired = request.path != "/login" and next(refusals, None)
        return expired or WATTTIME.answer(request)

    server.route, server.requests = route, []
    reading = await provider.read(NOW + timedelta(minutes=5), NOW)

    assert reading.samples
    assert [request.path for request in server.requests].count("/login") == 1


async def test_a_server_of_openadr_gives_tokens_for_a_secret(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values come from a real server by client credentials; a revoked token is renewed."""
    monkeypatch.setenv("THE_KEY", CLIENT_SECRET)
    async with vtn() as server:
        server.events["e1"] = json.loads(OPENADR.bodies["/events"])[0]
        given = {**OPENADR.settings, "url": server.url, "client_id": CLIENT_ID}
        source = settings.OpenAdrSource.model_validate({**given, "key_env": "THE_KEY"})
        found = provider(source, client)
        assert found is not None
        assert (await found.read(NOW, None)).samples[-1].intensity_gco2e_per_kwh == 320.5
        server.revoke()
        server.events["e1"]["intervals"][1]["payloads"][0]["values"] = [400]
        assert (await found.read(NOW, None)).samples[-1].intensity_gco2e_per_kwh == 400


@pytest.mark.parametrize("wrong", [float("nan"), "high", True, None, 1e300])
async def test_values_of_openadr_without_a_number_are_garbled(
    make: Callable[..., HttpProvider[Any]], server: ProviderServer, wrong: object
) -> None:
    """Their payload is named; in another unit, the unit is."""
    event = json.loads(OPENADR.bodies["/events"])[0]
    event["intervals"][0]["payloads"][0]["values"] = [wrong]
    server.route = lambda _: Answer(json.dumps([event]))
    with pytest.raises(SourceFailed, match="GHG: values must have a finite number"):
        await make(OPENADR).read(NOW, None)
    event["intervals"][0]["payloads"][0]["values"] = [300]
    event["payloadDescriptors"][0]["units"] = "KWH"
    server.route = lambda _: Answer(json.dumps([event]))
    with pytest.raises(SourceFailed, match="GHG: units must be GHG"):
        await make(OPENADR).read(NOW, None)


async def test_a_token_that_no_header_may_carry_is_garbled_and_not_said(
    make: Callable[..., HttpProvider[Any]], server: ProviderServer
) -> None:
    """The token is the provider's, so that the source fails and the service keeps serving."""
    server.route = lambda _: Answer(body='{"token": "\\u0080s3cr3t"}')
    with pytest.raises(SourceFailed, match="printable ASCII") as raised:
        await make(WATTTIME).read(NOW, None)
    assert raised.value.kind == "garbled"
    assert "s3cr3t" not in str(raised.value)


async def test_a_plan_without_forecast_is_queried_for_it_once_a_day(
    make: Callable[..., HttpProvider[Any]], server: ProviderServer
) -> None:
    """The values that the plan does cover are used all the same."""

    def route(request: HttpRequest) -> Answer:
        if request.path.endswith("forecast"):
            return Answer(status=403)
        return ELECTRICITY_MAPS.answer(request)

    server.route = route
    provider = make(ELECTRICITY_MAPS)
    for hour in range(30):
        reading = await provider.read(NOW + timedelta(hours=hour), NOW)
        assert reading.samples
        assert reading.outlook is None

    paths = [request.path for request in server.requests]
    assert paths.count("/carbon-intensity/forecast") == 2


async def test_a_step_in_which_a_type_is_still_missing_is_left_for_later(
    make: Callable[..., HttpProvider[Any]], server: ProviderServer
) -> None:
    """Without its coal the last hour would look clean."""
    late = ENTSOE.bodies["/api"].replace(
        "<Point><position>3</position><quantity>3000</quantity></Point>", ""
    ).replace("2024-03-06T19:00Z", "2024-03-06T18:00Z", 1)  # fmt: skip
    server.route = lambda _: Answer(late)
    reading = await make(ENTSOE).read(NOW, None)

    assert [sample.since.hour for sample in reading.samples] == [16, 17]


async def test_no_data_may_come_as_a_success(
    make: Callable[..., HttpProvider[Any]], server: ProviderServer
) -> None:
    server.route = lambda _: Answer(
        '<Acknowledgement_MarketDocument xmlns="urn:x"><Reason><code>999</code>'
        "<text>No matching data found</text></Reason></Acknowledgement_MarketDocument>"
    )
    with pytest.raises(SourceFailed, match="No matching data found") as caught:
        await make(ENTSOE).read(NOW, None)

    assert caught.value.kind == "empty"


@ALL
async def test_an_impossible_year_is_refused(
    case: Case, make: Callable[..., HttpProvider[Any]], server: ProviderServer
) -> None:
    """A time that has no instant in UTC makes the whole answer garbled, in whichever format."""

    def route(request: HttpRequest) -> Answer:
        return Answer(re.sub(case.times, case.impossible, str(case.answer(request).body)))

    server.route = route
    with pytest.raises(SourceFailed) as caught:
        await make(case).read(NOW, None)

    assert caught.value.kind == "garbled"


async def test_an_xml_bomb_is_refused(
    make: Callable[..., HttpProvider[Any]], server: ProviderServer
) -> None:
    server.route = lambda _: Answer(
        '<!DOCTYPE x [<!ENTITY a "ha"><!ENTITY b "&a;&a;">]><GL_MarketDocument>&b;'
        "</GL_MarketDocument>"
    )
    with pytest.raises(SourceFailed) as caught:
        await make(ENTSOE).read(NOW, None)

    assert caught.value.kind == "garbled"


async def test_an_endless_answer_is_refused(
    make: Callable[..., HttpProvider[Any]], server: ProviderServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.carbon.sources.live.http._MAX_BYTES", 1000)
    server.route = lambda _: Answer("x" * 100_000)
    with pytest.raises(SourceFailed, match="more than 1000 bytes"):
        await make(NESO).read(NOW, None)


async def test_a_unit_that_was_not_expected_is_refused(
    make: Callable[..., HttpProvider[Any]], server: ProviderServer
) -> None:
    """Pounds for kilograms, or a rank for a mass, would be wrong without anybody seeing it."""
    kilograms = {path: body.replace("lbs_", "kg_") for path, body in WATTTIME.bodies.items()}
    server.route = Case(WATTTIME.settings, kilograms, WATTTIME.newest, 3).answer
    with pytest.raises(SourceFailed, match="must be lbs_co2_per_mwh, got 'kg_co2_per_mwh'"):
        await make(WATTTIME).read(NOW, None)
