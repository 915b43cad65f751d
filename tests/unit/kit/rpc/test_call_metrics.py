"""The counts of served calls, as a scrape sees them."""

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from services.kit.rpc.call_metrics import Calls

SECONDS = "cinquefoil_rpc_server_duration_seconds"
TOTAL = "cinquefoil_rpc_server_calls_total"

ended = st.lists(
    st.tuples(
        st.sampled_from(["/a.A/X", "/a.A/Y"]),
        st.sampled_from(["OK", "UNAVAILABLE"]),
        st.one_of(st.floats(0, 20), st.sampled_from([0.001, 5.0])),
    ),
    max_size=30,
)


@given(ended)
def test_a_scrape_shows_every_call_once_in_each_metric(calls: list[tuple[str, str, float]]) -> None:
    """Buckets hold what is at most their bound; counts by status add up to the histogram's."""
    counted = Calls()
    registry = CollectorRegistry()
    registry.register(counted)
    for method, status, duration_s in calls:
        counted.of(method).end(status, duration_s)

    scraped = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for sample in family.samples
    }

    for method in {method for method, _, _ in calls}:
        of_it = [(status, duration_s) for name, status, duration_s in calls if name == method]
        assert scraped[f"{SECONDS}_count", method] == len(of_it)
        for bound, label in ((0.001, "0.001"), (0.25, "0.25"), (5.0, "5.0")):
            found = scraped[f"{SECONDS}_bucket", *sorted((method, label))]
            assert found == sum(duration_s <= bound for _, duration_s in of_it)
        for status in {status for status, _ in of_it}:
            found = scraped[TOTAL, *sorted((method, status))]
            assert found == sum(word == status for word, _ in of_it)
