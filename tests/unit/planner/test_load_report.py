"""A router's report is taken in only within the bounds of what can be true."""

import math

from hypothesis import given
from hypothesis import strategies as st

from services.planner.core.accounting.account import Tokens
from services.planner.core.load_report import MOST_RPS, MOST_WINDOW_S, LoadReport, bounded
from tests.support.examples import examples

VARIANTS = {"digits": {"small", "large"}}
COUNTS = st.integers(0, 2**64 - 1)
NAMES = st.sampled_from(["digits", "small", "large", "evil"])
REPORTS = st.builds(
    LoadReport,
    router_id=st.just("r"),
    revision=st.just(1),
    window_s=st.floats(),
    arrivals=st.dictionaries(NAMES, COUNTS),
    answered=COUNTS,
    latency_s=st.dictionaries(NAMES, st.floats()),
    late=st.dictionaries(NAMES, COUNTS),
    by_variant=st.dictionaries(NAMES, st.dictionaries(NAMES, COUNTS)),
    refused=st.dictionaries(NAMES, COUNTS),
    tokens=st.dictionaries(NAMES, st.builds(Tokens, COUNTS, COUNTS)),
    first_second=COUNTS,
    arrivals_per_s=st.dictionaries(NAMES, st.lists(COUNTS, max_size=200)),
)


@examples(0.4)
@given(report=REPORTS, elapsed_s=st.floats(0, 1e4))
def test_every_figure_is_finite_and_within_window_and_capacity(
    report: LoadReport, elapsed_s: float
) -> None:
    """13 million requests a second, 2^64 - 1 answers, NaN: nothing of it reaches the planner."""
    found, _ = bounded(report, VARIANTS, elapsed_s, {"digits": Tokens(5, 5)})

    assert 0 <= found.window_s <= min(elapsed_s + 1, MOST_WINDOW_S)
    most = math.ceil(MOST_RPS * found.window_s)
    counts = [found.arrivals, found.late, found.refused, *found.by_variant.values()]
    assert all(0 <= count <= most for each in counts for count in each.values())
    assert found.answered <= most
    assert all(math.isfinite(value) and value >= 0 for value in found.latency_s.values())
    assert {*found.arrivals, *found.by_variant, *found.tokens, *found.latency_s} <= {"digits"}
    assert {*found.by_variant.get("digits", {})} <= VARIANTS["digits"]
    assert found.arrivals_per_s.keys() <= {"digits"}
    assert all(len(each) <= MOST_WINDOW_S for each in found.arrivals_per_s.values())
    assert all(count <= MOST_RPS for each in found.arrivals_per_s.values() for count in each)


def test_what_can_be_true_stays_as_it_is_reported() -> None:
    report = LoadReport(
        "r", 3, 1.0, {"digits": 900}, 890, {"digits": 0.02}, {"digits": 4},
        {"digits": {"small": 890}}, {"digits": 2}, {"digits": Tokens(1000, 2000)},
    )  # fmt: skip

    assert bounded(report, VARIANTS, 1.0, {}) == (report, ())


def test_what_was_cut_is_named() -> None:
    wrong = LoadReport("r", 3, 1.0, {"digits": 10**9}, 1, {"digits": math.nan})

    assert bounded(wrong, VARIANTS, 1.0, {})[1] == ("latency_s", "arrivals")
