"""Lines of batches: any bytes are a request or a fault, and results are lines of JSON."""

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.batch.core.admission import Admission
from services.batch.core.lines import Fault, Usage, answered, failed, parsed
from tests.support.examples import examples

CHAT = "/v1/chat/completions"
_NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
_JSON = st.recursive(
    st.none() | st.booleans() | _NUMBERS | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def line(**given: Any) -> bytes:
    """Return a good line, changed."""
    good = {"custom_id": "1", "method": "POST", "url": CHAT, "body": {"model": "m"}}
    return json.dumps(good | given).encode()


@examples(0.25)
@given(st.binary() | _JSON.map(lambda each: json.dumps(each).encode()))
def test_any_bytes_are_a_request_or_a_fault(data: bytes) -> None:
    """Nothing else is raised, whatever the bytes."""
    with suppress(Fault):
        assert parsed(data, CHAT).model


@examples(0.4)
@given(st.dictionaries(st.text(), _JSON, max_size=4))
def test_a_body_is_passed_on_with_the_same_values(body: dict[str, Any]) -> None:
    """Numbers of any size and texts of any script keep their value."""
    body |= {"model": "m", "stream": False}
    request = parsed(line(body=body), CHAT)

    assert json.loads(request.body) == body


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (line(body={"model": "m", "x": float("nan")}), "invalid_json_line"),
        (b"[" * 300_000, "line_too_large"),
        (b"[" * 10_000, "invalid_json_line"),
        (b'{"a":[' + b"[]," * 300_000 + b"0]}", "line_too_large"),
        (b'{"a":["' + b'","' * 70_000 + b'"]}', "line_too_large"),
        (line(body={"model": "a\0b"}), "invalid_model"),
        (line(body={"model": "m" * 257}), "invalid_model"),
        (line(custom_id="x" * 513), "invalid_custom_id"),
        (line(body={"model": "m", "stream": True}), "invalid_body"),
    ],
)
def test_what_would_cost_too_much_or_cannot_be_stored_is_named(data: bytes, code: str) -> None:
    """Before it is read where reading it is what costs."""
    with pytest.raises(Fault) as found:
        parsed(data, CHAT)

    assert found.value.code == code


@given(st.text(), st.integers(100, 599), st.binary())
def test_a_result_is_one_line_of_json(custom_id: str, status: int, answer: bytes) -> None:
    """Whatever a server answers, the file's line can be read; what is not JSON is a failure."""
    content, bad, usage = answered(custom_id, "r", status, answer)
    found = json.loads(content)

    assert b"\n" not in content
    assert (found["custom_id"], found["response"]["status_code"]) == (custom_id, status)
    try:
        json.loads(answer)
        assert bad == (not 200 <= status < 300)
    except ValueError:
        assert bad
    assert usage == Usage()


@pytest.mark.parametrize("figure", [-1, "1", True, None, 1e300, [], 2**70])
def test_an_answer_s_own_figures_are_bounded(figure: object) -> None:
    """An implausible figure counts as not stated."""
    usage = {"prompt_tokens": figure, "cinquefoil": {"energy_j": figure, "carbon_gco2e": figure}}
    answer = json.dumps({"usage": usage}).encode()

    assert answered("1", "r", 200, answer)[2] == Usage()


def test_what_an_answer_added_is_known_beside_its_share_and_so_are_its_emissions() -> None:
    """Where it is not stated, the share counts: nothing else ran beside it."""
    receipt = {"energy_j": 8.0, "carbon_gco2e": 0.4, "energy_marginal_j": 2.0}
    usage = answered("1", "r", 200, json.dumps({"usage": {"cinquefoil": receipt}}).encode())[2]

    assert usage.energy_marginal_j == 2.0
    assert usage.carbon_marginal_gco2e == pytest.approx(0.1)
    del receipt["energy_marginal_j"]
    usage = answered("1", "r", 200, json.dumps({"usage": {"cinquefoil": receipt}}).encode())[2]
    assert (usage.energy_marginal_j, usage.carbon_marginal_gco2e) == (8.0, 0.4)


def test_a_fault_is_a_line_without_a_response() -> None:
    """As OpenAI's error files have it."""
    found = json.loads(failed(Fault("code", "why", "1"), "r"))

    assert found == {
        "id": "r",
        "custom_id": "1",
        "response": None,
        "error": {"code": "code", "message": "why"},
    }


def held_back(admission: Admission, room: int, rounds: int) -> None:
    """Answer requests as a router with room for so many at a time does: the others wait there."""
    for _ in range(rounds):
        with_router = int(admission.limit)
        waited = max(1.0 - room / with_router, 0.0)
        for _ in range(with_router):
            admission.answered(waited, 1.0)


@pytest.mark.parametrize("room", [20, 100, 700])
def test_about_as_many_requests_wait_at_the_router_as_run_there(room: int) -> None:
    """From few at first within some rounds, and back when the room shrinks."""
    admission = Admission(4096)
    held_back(admission, room, 20)
    assert 1.5 * room <= admission.limit <= 3 * room
    held_back(admission, 16, 20)
    assert admission.limit <= 48


@given(st.lists(st.one_of(st.none(), st.floats(0, 2)), max_size=200))
def test_admission_stays_within_its_bounds(answers: list[float | None]) -> None:
    """Between one and the most, whatever the router says; a burst of refusals counts once."""
    admission, now_s = Admission(16), 0.0
    for waited_s in answers:
        now_s += 1.0
        before = admission.limit
        if waited_s is None:
            admission.refused(now_s, 5.0)
            admission.refused(now_s, 5.0)
            assert admission.limit >= before / 2
            assert admission.free(now_s) == 0
        else:
            admission.answered(waited_s, 1.0)
        assert 1 <= admission.limit <= 16
