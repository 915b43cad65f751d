"""No granted energy is lost: it is on an answer, or it is counted as unclaimed."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference import grpc_service_pb2 as pb
from services.kit.request_cost import Cost, Usage
from services.router.core.accounting.account import Account, Outcome
from services.router.core.accounting.receipts import Trailers
from services.router.core.model import Instance, ModelRoutes, Request
from services.router.core.pending_request import PendingRequest
from services.router.core.worker_port import Result

INSTANCES = (
    Instance("h:1", "s1", "m", "small", 0.8, 0.7, 4, zone="US-CAL", pue=1.2),
    Instance("h:2", "s2", "m", "large", 0.9, 0.2, 4, zone="US-CAL", pue=1.2),
    Instance("h:3", "s3", "m", "large", 0.9, 0.1, 4, zone="unknown"),
)
ROUTES = ModelRoutes("m", 0.1, 95.0, "shares", INSTANCES)
INTENSITY = {"US-CAL": 300.0}.get

grants = st.tuples(
    st.sampled_from(INSTANCES),
    st.sampled_from(["answer", "error", "gone"]),
    st.floats(0, 100),
    st.floats(0, 10),
)


def request(number: int) -> PendingRequest:
    return PendingRequest(Request(number, "m", b"", 1.0, deadline_s=31.0), assigned_s=1.25)


def granted(energy_j: float, idle_j: float = 0.0) -> Cost:
    return Cost(energy_j, idle_j, "model", queue_s=0.5, compute_s=0.25, batch_size=1)


def trailer(trailers: Trailers, key: str) -> float:
    return float(dict(trailers).get(key, 0.0))


@given(st.lists(grants, max_size=40))
def test_receipts_and_unclaimed_energy_add_up_to_what_workers_granted(
    work: list[tuple[Instance, str, float, float]],
) -> None:
    account = Account(ROUTES, INTENSITY)
    receipts_j = trailers_j = receipts_g = gone_j = 0.0
    for number, (instance, end, energy_j, idle_j) in enumerate(work):
        result = Result(number, cost=granted(energy_j, idle_j))
        account.stats.arrivals += 1
        if end == "answer":
            answer = account.answer(request(number), Outcome(instance, result, 2.0))
            parameters = pb.ModelInferResponse.FromString(answer.body).parameters
            receipts_j += parameters["energy_j"].double_param
            receipts_g += parameters["carbon_gco2e"].double_param
            trailers_j += trailer(answer.trailers, "cinquefoil-energy-j")
        elif end == "error":
            trailers_j += trailer(
                account.count_unclaimed(instance, result.cost), "cinquefoil-energy-j"
            )
            account.failure(request(number), "INTERNAL", 2.0)
        else:
            account.count_unclaimed(instance, result.cost)
            account.failure(request(number), "CANCELLED", 2.0)
            gone_j += energy_j

    stats, total = account.stats, account.stats.total
    total_j = sum(energy_j for _, _, energy_j, _ in work)
    assert total.energy_j == pytest.approx(receipts_j)
    assert total.carbon_gco2e == pytest.approx(receipts_g)
    assert total.energy_j + stats.unclaimed_j == pytest.approx(total_j)
    assert trailers_j + gone_j == pytest.approx(total_j, rel=1e-6)
    cancelled = sum(end not in ("answer", "error") for _, end, _, _ in work)
    assert total.answered + stats.fail.count + cancelled == len(work)
    assert stats.pending == 0


def test_times_are_those_of_the_router_and_of_the_worker() -> None:
    account = Account(ROUTES, INTENSITY)

    account.answer(request(1), Outcome(INSTANCES[0], Result(1, cost=granted(1.0)), 3.0))

    total = account.stats.total
    assert total.latency.total_s == pytest.approx(2.0)
    assert total.queue.total_s == pytest.approx(0.25 + 0.5)
    assert total.compute.total_s == pytest.approx(0.25)
    assert account.stats.last_answer_s == 3.0


def test_work_that_says_no_cost_spends_nothing() -> None:
    account = Account(ROUTES, INTENSITY)

    assert account.count_unclaimed(INSTANCES[0], None) == ()
    answer = account.answer(request(1), Outcome(INSTANCES[0], Result(1, response=b""), 2.0))

    assert answer.trailers == (("cinquefoil-variant", "small"),)
    assert (account.stats.total.energy_j, account.stats.unclaimed_j) == (0.0, 0.0)


def test_a_new_table_changes_what_is_late_and_keeps_the_counts() -> None:
    account = Account(ROUTES, INTENSITY)
    account.answer(request(1), Outcome(INSTANCES[0], Result(1), 2.0))

    account.routes = ModelRoutes("m", 5.0, 99.0, "shares")
    account.answer(request(2), Outcome(INSTANCES[0], Result(2), 2.0))

    assert account.stats.good_and_bad == (1, 1)


def test_an_accuracy_that_a_plan_corrects_is_reported_from_then_on() -> None:
    account = Account(ROUTES, INTENSITY)
    corrected = Instance("h:1", "s1", "m", "small", 0.85, 0.7, 4)

    bodies = [
        account.answer(request(1), Outcome(instance, Result(1), 2.0)).body
        for instance in (INSTANCES[0], corrected)
    ]

    stated = [pb.ModelInferResponse.FromString(body).parameters["accuracy"] for body in bodies]
    assert [parameter.double_param for parameter in stated] == [0.8, 0.85]
    assert account.stats.total.accuracy == pytest.approx(0.825)


@pytest.mark.parametrize(
    ("first_token_s", "token_s", "late"),
    [(0.5, 0.04, 0), (0.51, 0.04, 1), (0.5, 0.05, 1), (0.0, 0.05, 0)],
)
def test_a_text_is_late_where_its_first_token_or_the_pace_of_the_others_is(
    first_token_s: float, token_s: float, late: int
) -> None:
    """The end of the text is in time in all three."""
    routes = replace(ROUTES, slo_latency_s=60.0, slo_first_token_s=0.5, slo_token_s=0.04)
    account = Account(routes, INTENSITY)
    cost = Cost(1.0, 0.0, "model", 0.0, 1.0, 1, usage=Usage(5, 20, first_token_s, token_s))

    account.answer(request(1), Outcome(INSTANCES[0], Result(1, cost=cost), 3.0))

    assert account.stats.since_start().late == late
