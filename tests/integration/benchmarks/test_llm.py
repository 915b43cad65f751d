"""The simulated fleet of language models: every request is answered, and no token is free."""

from dataclasses import replace

from benchmarks.llm import (
    PROFILE,
    Engine,
    Limits,
    Replica,
    Request,
    bound_j_per_token,
    least_requests,
    run,
    serve,
)

TRACE = [
    Request(0.05 * number, 100 + number % 7 * 300, 20 + number % 5 * 30) for number in range(60)
]
LIMITS = Limits(2.0, 0.05)


def test_every_request_has_its_tokens_in_order() -> None:
    """A single request takes its prompt and its steps; with others, it takes no less."""
    requests = [replace(request) for request in TRACE]
    replicas = [Replica(Engine(PROFILE, 1.0)) for _ in range(2)]
    serve(requests, replicas, least_requests)
    alone = replace(TRACE[0])
    serve([alone], [Replica(Engine(PROFILE, 1.0))], least_requests)

    assert all(each.arrived_s < each.first_s < each.ended_s for each in requests)
    assert all(not replica.requests and abs(replica.context) < 1e-6 for replica in replicas)
    assert alone.tpot_s <= min(each.tpot_s for each in requests) * (1 + 1e-9)


def test_no_policy_is_below_the_bound_and_a_lower_clock_saves_energy() -> None:
    fast, slow = (run(TRACE, LIMITS, 2, clock, least_requests) for clock in (1.0, 0.6))

    assert bound_j_per_token(TRACE, LIMITS) < slow["j_per_token"] < fast["j_per_token"]
    assert fast["attainment"] == 1.0
