"""Metrics for Prometheus, read back from the text that a scrape gets."""

import itertools
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from services.kit.clock import RealClock
from services.kit.request_cost import Cost, Usage
from services.router.adapters.prometheus import RouterCollector, collectors_registry
from services.router.core.accounting.account import Account, Outcome
from services.router.core.dispatch.overload import Overload
from services.router.core.model import Instance, ModelRoutes, Request
from services.router.core.pending_request import PendingRequest
from services.router.core.worker_port import Result
from tests.support.examples import examples

SMALL = Instance("h:1", "s1", "m", "small", 0.8, 0.75, 4, zone="z")
LARGE = Instance("h:2", "s2", "m", "large", 0.9, 0.25, 4, zone="z")
ROUTES = ModelRoutes("m", 0.1, 95.0, "shares", (SMALL, LARGE))

Samples = dict[tuple[str, tuple[str, ...]], float]
events = st.lists(
    st.one_of(
        st.tuples(st.sampled_from([SMALL, LARGE]), st.floats(0.0, 20.0)),
        st.sampled_from(["UNAVAILABLE", "INVALID_ARGUMENT"]),
    ),
    max_size=30,
)


def open_account() -> Account:
    return Account(ROUTES, {"z": 300.0}.get, (300.0, 3600.0))


def play(account: Account, happened: list[tuple[Instance, float] | str]) -> None:
    """Record requests that arrive at 0 and end; 2 J, 1 ms of queue and 4 ms of compute each."""
    for event in happened:
        account.stats.arrivals += 1
        request = PendingRequest(Request(1, "m", b"", arrived_s=0.0, deadline_s=30.0))
        if isinstance(event, str):
            account.failure(request, event, 0.5)
        else:
            cost = Cost(2.0, 1.0, "model", 0.001, 0.004, batch_size=2, items=2)
            account.answer(request, Outcome(event[0], Result(1, cost=cost), event[1]))


def scrape(account: Account, *, overload: Overload | None = None) -> Samples:
    """Return samples by name and label values in the order of their names, "le" included."""
    accounts = {"m": account}
    overloads = {"m": overload} if overload else {}
    collector = RouterCollector(accounts, RealClock(), lambda: overloads)
    text = generate_latest(collectors_registry(collector)).decode()
    return {
        (sample.name, tuple(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith(("cinquefoil_", "gen_ai_")) and "_rpc_" not in sample.name
    }


@examples(0.15)
@given(events)
def test_every_histogram_counts_every_answer_once(
    happened: list[tuple[Instance, float] | str],
) -> None:
    account = open_account()
    play(account, happened)

    found = scrape(account)

    for variant in ("small", "large"):
        latencies_s = [e[1] for e in happened if not isinstance(e, str) and e[0].variant == variant]
        for name in ("request", "queue", "compute") if latencies_s else ():
            prefix = f"cinquefoil_{name}_duration_seconds"
            assert found[f"{prefix}_count", ("m", variant)] == len(latencies_s)
            assert found[f"{prefix}_bucket", ("+Inf", "m", variant)] == len(latencies_s)
        if latencies_s:
            for bound in ("0.001", "0.1", "10.0"):
                bucket = ("cinquefoil_request_duration_seconds_bucket", (bound, "m", variant))
                assert found[bucket] == sum(latency_s <= float(bound) for latency_s in latencies_s)
            assert found["cinquefoil_request_energy_joules_total", ("m", variant)] == 2 * len(
                latencies_s
            )
    ended = [name for name in found if name[0] == "cinquefoil_requests_total"]
    assert sum(found[name] for name in ended) == len(happened)
    assert found["cinquefoil_pending_requests", ("m",)] == 0


@examples(0.15)
@given(events, events)
def test_counters_only_grow(
    first: list[tuple[Instance, float] | str], then: list[tuple[Instance, float] | str]
) -> None:
    account = open_account()
    play(account, first)
    before = scrape(account)
    play(account, then)
    after = scrape(account)

    counters = [name for name in before if name[0].endswith(("_total", "_bucket", "_sum"))]
    assert counters
    assert all(after[name] >= before[name] for name in counters)


@pytest.mark.parametrize("name", ["cinquefoil_requests_total", "process_cpu_seconds_total"])
def test_a_scrape_of_one_metric_finds_the_routers_and_the_processs(name: str) -> None:
    collector = RouterCollector({"m": open_account()}, RealClock(), dict)

    found = collectors_registry(collector).restricted_registry([name]).collect()

    assert [sample.name for family in found for sample in family.samples] == [name]


def test_shares_wanted_come_from_the_plan_and_shares_served_from_the_answers() -> None:
    account = open_account()
    now_s = RealClock().monotonic()
    for instance in (SMALL, SMALL, SMALL, SMALL, LARGE):
        request = PendingRequest(Request(1, "m", b"", arrived_s=now_s, deadline_s=now_s + 1))
        account.answer(request, Outcome(instance, Result(1), now_s))

    found = scrape(account)

    wanted = [found["cinquefoil_share_wanted_ratio", ("m", v)] for v in ("small", "large")]
    served = [found["cinquefoil_share_served_ratio", ("m", v)] for v in ("small", "large")]
    assert wanted == [0.75, 0.25]
    assert served == [0.8, 0.2]


def test_the_objective_is_judged_over_windows_with_prometheus_names() -> None:
    account = open_account()
    now_s = RealClock().monotonic()
    for latency_s in (0.01,) * 9 + (0.2,):
        request = PendingRequest(
            Request(1, "m", b"", arrived_s=now_s - latency_s, deadline_s=now_s + 1)
        )
        account.answer(request, Outcome(SMALL, Result(1), now_s))

    found = scrape(account)

    for window in ("5m", "1h"):
        assert found["cinquefoil_slo_attainment_ratio", ("m", window)] == 0.9
        assert round(found["cinquefoil_slo_burn_rate", ("m", window)], 9) == 2.0
    assert found["cinquefoil_slo_requests_total", ("m", "good")] == 9
    assert found["cinquefoil_slo_requests_total", ("m", "bad")] == 1
    assert found["cinquefoil_slo_latency_seconds", ("m",)] == 0.1
    assert found["cinquefoil_slo_objective_ratio", ("m",)] == 0.95


def test_items_and_batches_are_counted_beside_requests() -> None:
    """Two answers of two items each, which shared one batch of two."""
    account = open_account()
    play(account, [(SMALL, 0.01), (LARGE, 0.03), "UNAVAILABLE"])

    found = scrape(account)

    assert found["cinquefoil_items_total", ("m",)] == 4
    assert found["cinquefoil_batches_total", ("m",)] == 2


def test_tokens_and_their_times_are_counted_by_variant() -> None:
    """Answers of 20 tokens, of a single one and of none: one without text has no token times."""
    account = open_account()
    play(account, [(LARGE, 0.03)])
    for usage in (Usage(7, 20, 0.2, 0.03), Usage(5, 1, 0.4, 0.0), Usage(3, 0, 0.0, 0.0)):
        request = PendingRequest(Request(1, "m", b"", arrived_s=0.0, deadline_s=30.0))
        cost = Cost(2.0, 1.0, "model", 0.001, 0.9, batch_size=1, usage=usage)
        account.answer(request, Outcome(SMALL, Result(1, cost=cost), 1.0))
    for source in ("exact", "semantic", "model"):
        account.stats.predictions[source].add(0.002)

    found = scrape(account)

    small = ("m", "small")
    assert found["cinquefoil_input_tokens_total", small] == 15
    assert found["cinquefoil_output_tokens_total", small] == 21
    text = ("text_completion", "cinquefoil", *small)  # operation, provider, models
    assert found["gen_ai_server_time_to_first_token_seconds_count", text] == 2
    assert found["gen_ai_server_time_to_first_token_seconds_bucket", (*text, "0.25")] == 1
    assert found["gen_ai_server_time_per_output_token_seconds_count", text] == 1
    assert found["gen_ai_server_time_per_output_token_seconds_sum", text] == 0.03
    assert not [name for name, labels in found if "token" in name and "large" in labels]


def test_overload_is_reported_while_it_lasts_and_its_time_stays() -> None:
    now_s = RealClock().monotonic()
    overload = Overload(refused=3)
    overload.begin(now_s - 10.0)

    during = scrape(open_account(), overload=overload)
    overload.end(now_s - 6.0)
    after = scrape(open_account(), overload=overload)

    assert during["cinquefoil_under_pressure", ("m",)] == 1
    assert during["cinquefoil_pressure_seconds_total", ("m",)] >= 10
    assert after["cinquefoil_under_pressure", ("m",)] == 0
    assert after["cinquefoil_pressure_seconds_total", ("m",)] == pytest.approx(4)
    assert after["cinquefoil_overload_refusals_total", ("m",)] == 3


def test_a_scrape_while_requests_are_counted_shows_no_counter_that_fell() -> None:
    """The scrape has a thread of its own; new variants and statuses join meanwhile."""
    account = open_account()
    stop = threading.Event()

    def count() -> None:
        for number in itertools.count():
            if stop.is_set():
                return
            instance = Instance("h:1", "s1", "m", f"v{number // 40 % 12}", 0.8, 0.5, 4, zone="z")
            play(account, [(instance, number % 3 / 10), f"STATUS_{number // 40 % 8}"])

    counting = threading.Thread(target=count)
    counting.start()
    try:
        scrapes = [scrape(account) for _ in range(8)]
    finally:
        stop.set()
        counting.join()

    for before, after in itertools.pairwise(scrapes):
        counters = [name for name in before if name[0].endswith(("_total", "_bucket", "_sum"))]
        assert all(after[name] >= before[name] for name in counters)
        for name in after:
            if name[0].endswith("_count"):
                total = (name[0].replace("_count", "_bucket"), ("+Inf", *name[1]))
                assert after[name] == after[total]
