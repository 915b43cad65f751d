"""Load in tokens: plans are made for texts as long as those that are seen."""

import math
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.kit.config import Objective, Triggers
from services.kit.profiles.core.language import LanguageProfile
from services.planner.change_event import ChangeEvent
from services.planner.core.accounting.account import Tokens
from services.planner.core.cycle.cluster_state import ClusterState
from services.planner.core.fleet import Fleet
from services.planner.core.forecast.demand import ConfiguredLoad, Demand
from services.planner.core.forecast.text_lengths import (
    CHANGE,
    CONTEXT_TOKENS,
    LEAST_ANSWERS,
    MOST_LONGER,
    TextLength,
    TextLengths,
    with_lengths,
)
from services.planner.core.load_report import LoadReport
from services.planner.core.model import Model, Variant
from services.planner.core.problem import catalog
from services.planner.core.service_level import ServiceLevel
from services.planner.core.triggers import Kind, Observation, cause
from tests.support.examples import examples
from tests.support.planner import fleets
from tests.support.virtual_clock import VirtualClock

H100 = fleets.pool("h100-80gb")
PROFILE = LanguageProfile.of(8.0, long_prompt_tokens=1000.0)
CHAT = Model("chat", 60.0, 95.0, 1.0, (Variant("8b", 1.0, PROFILE),), slo_token_s=0.03)
OTHER = fleets.model()


def reported(
    lengths: TextLengths, router_id: str, answers: int, length: TextLength, windows: int
) -> bool:
    """Report windows of so many answers of one length; return whether any changed the lengths."""
    changed = False
    for window in range(windows + 1):
        counted = (
            round(window * answers * length.prompt_tokens),
            round(window * answers * length.answer_tokens),
        )
        counts = {"chat": counted}
        changed |= lengths.observe(router_id, counts, {"chat": answers}, [CHAT, OTHER])
    return changed


@examples(1.0)
@given(
    prompt=st.floats(1, 5000) | st.floats(350, 750),  # often near the profile's 512 and 256
    answer=st.floats(2, 5000) | st.floats(175, 375),
    routers=st.integers(1, 3),
)
def test_lengths_are_the_mean_seen_or_the_profiles_where_they_hardly_differ(
    prompt: float, answer: float, routers: int
) -> None:
    lengths = TextLengths()
    for router in range(routers):
        reported(lengths, f"r{router}", 50, TextLength(prompt, answer), windows=10)

    stated = PROFILE.settings
    ratios = [prompt / stated.prompt_tokens, answer / stated.answer_tokens]
    farthest = max(math.exp(abs(math.log(ratio))) for ratio in ratios)
    if farthest > 1.02 * CHANGE:
        usual = lengths.usual["chat"]
        assert usual.prompt_tokens == pytest.approx(prompt, rel=0.02)
        assert usual.answer_tokens == pytest.approx(answer, rel=0.02)
    elif farthest < CHANGE / 1.02:
        assert lengths.usual == {}


@given(
    reports=st.lists(
        st.tuples(st.integers(0, 10**9), st.integers(0, 10**9), st.integers(0, 10**5)),
        min_size=1,
        max_size=30,
    ),
    contexts=st.lists(st.sampled_from([None, 64, 4096]), min_size=1, max_size=3),
)
def test_no_report_makes_texts_longer_than_the_longest_context_of_a_variant(
    reports: list[tuple[int, int, int]], contexts: list[int | None]
) -> None:
    variants = [replace(CHAT.variants[0], context_tokens=each) for each in contexts]
    chat, lengths = replace(CHAT, variants=tuple(variants)), TextLengths()
    counted = (0, 0)
    for prompts, answers, answered in [(0, 0, 0), *reports]:
        counted = (counted[0] + prompts, counted[1] + answers)
        lengths.observe("r", {"chat": counted}, {"chat": answered}, [chat])

    most = max(each or CONTEXT_TOKENS for each in contexts)
    usual = lengths.usual.get("chat")
    assert usual is None or max(usual.prompt_tokens, usual.answer_tokens) <= most * (1 + 1e-9)


def test_few_answers_and_a_router_that_started_again_say_nothing() -> None:
    lengths = TextLengths()
    assert not reported(lengths, "r", LEAST_ANSWERS - 1, TextLength(9000.0, 9000.0), windows=1)
    assert not lengths.observe("r", {"chat": (10, 10)}, {"chat": 500}, [CHAT])
    assert lengths.usual == {}


def test_longer_answers_take_more_replicas_and_smaller_objectives_smaller_batches() -> None:
    """By tokens: twice as many take half the requests per second from a segment."""

    def best_rps(model: Model) -> float:
        kinds = catalog.build([model], [H100], Objective(), (1, 8, 64), 1)
        return max(kind.throughput_rps for kind in kinds)

    (longer,) = with_lengths([CHAT], {"chat": TextLength(1024.0, 512.0)})

    assert best_rps(CHAT) / best_rps(longer) == pytest.approx(2.0, rel=0.15)
    assert best_rps(replace(CHAT, slo_token_s=0.012)) < best_rps(CHAT)


def test_only_language_models_have_lengths_and_long_prompts_stay_the_longest() -> None:
    usual = {"chat": TextLength(4000.0, 10.0), OTHER.name: TextLength(1.0, 1.0)}
    chat, other = with_lengths([CHAT, OTHER], usual)

    profile = chat.variants[0].profile
    assert isinstance(profile, LanguageProfile)
    its = profile.settings
    assert (its.prompt_tokens, its.answer_tokens) == (4000.0, 10.0)
    assert its.long_prompt_tokens == 4000.0
    assert other.variants == OTHER.variants


def test_objectives_are_for_the_promised_lengths_and_longer_texts_have_more_time() -> None:
    """Prompts count for the first token, all tokens for the end; shorter texts have no less."""
    promised = {"chat": TextLength(500.0, 250.0)}

    def limits(length: TextLength) -> tuple[float, float, float]:
        (chat,) = with_lengths([CHAT], {"chat": length}, promised)
        return chat.slo_latency_s, chat.slo_first_token_s, chat.slo_token_s

    assert limits(TextLength(500.0, 2500.0)) == pytest.approx((593.0, math.inf, 0.03), rel=0.01)
    assert limits(TextLength(50_000.0, 250.0))[2] == pytest.approx(0.03 * 2.3, rel=0.01)
    assert limits(TextLength(50.0, 25.0)) == (60.0, math.inf, 0.03)


def test_what_no_batch_serves_in_time_is_known_until_one_does() -> None:
    lengths, served, long = TextLengths(), TextLength(512.0, 400.0), TextLength(512.0, 9000.0)
    for length, in_time in ((served, {"chat"}), (long, set[str]())):
        lengths.usual = {"chat": length}
        promised = {} if in_time else lengths.last_served([CHAT, OTHER])
        assert lengths.settle(lengths.usual, promised, in_time) == (not in_time)

    assert lengths.promised == {"chat": served}
    assert lengths.settle(lengths.usual, {}, {"chat"})
    assert lengths.last_served([CHAT]) == {"chat": long}


def test_texts_that_are_not_in_time_count_as_much_longer_at_most_or_as_those_that_were() -> None:
    lengths, long = TextLengths(), TextLength(200.0, 90_000.0)
    lengths.usual = {"chat": long}
    promised = lengths.last_served([CHAT])
    (served,) = promised.values()

    assert lengths.settle(lengths.usual, promised, ())
    assert lengths.planned == {"chat": TextLength(200.0, MOST_LONGER * served.answer_tokens)}
    assert lengths.settle(lengths.usual, promised, (), ["chat"])
    assert lengths.planned == promised
    assert lengths.settle(lengths.usual, {}, ["chat"])
    assert lengths.planned == lengths.usual


def test_reports_of_longer_texts_change_the_models_and_cause_a_plan() -> None:
    """Other lengths, once; a reload of the deployment keeps what was seen."""
    clock = VirtualClock(datetime(2026, 6, 1, tzinfo=UTC))
    state = ClusterState(
        clock,
        ChangeEvent(),
        (CHAT,),
        Fleet({}, 0.0),
        Demand({"chat": ConfiguredLoad(1.0, 1.0)}, now_s=clock.monotonic),
        ServiceLevel({}),
        Objective(),
        "exact",
    )
    before = Observation({}, {"chat": 1.0}, {}, frozenset(), 0.5, strategy="exact")
    for window in range(5):
        tokens = {"chat": Tokens(window * 50 * 512, window * 50 * 1000)}
        by_variant = {"chat": {"8b": 50}}
        state.update_load(LoadReport("r", 1, 1.0, {}, 50, {}, by_variant=by_variant, tokens=tokens))

    (model,) = state.models
    assert model.variants[0].profile == PROFILE.changed(answer_tokens=1000.0)
    assert state.deployed == (CHAT,)
    now = replace(before, text_lengths=state.lengths.usual)
    found = cause(before, now, Triggers())
    assert found is not None
    assert (found.kind, found.reason, found.needed) == (
        Kind.DEMAND,
        "demand: chat 512 + 1000 tokens a request",
        True,
    )
    assert cause(now, now, Triggers()) is None


@pytest.mark.parametrize(("spread", "long"), [(0.0, 1500.0), (1.0, 9265.0)])
def test_long_prompts_are_learnt_from_how_much_prompts_differ(spread: float, long: float) -> None:
    """Equal prompts are all as long as the mean; of log-normal ones 1 in 100 is 6 times as long."""
    lengths, square = TextLengths(), 1500.0**2 * math.exp(spread**2)
    for window in range(20):
        counts, squares = (
            {"chat": (window * 150_000, window * 5_000)},
            {"chat": window * 100 * square},
        )
        lengths.observe("r", counts, {"chat": 100}, [CHAT], squares)

    usual = lengths.usual["chat"]

    assert usual.long_prompt_tokens == pytest.approx(long, rel=0.01)
    ((variant,),) = (model.variants for model in with_lengths([CHAT], lengths.usual))
    assert isinstance(variant.profile, LanguageProfile)
    assert variant.profile.settings.long_prompt_tokens == pytest.approx(max(long, 1500.0), rel=0.01)


def test_prompts_that_differ_more_than_before_are_a_change() -> None:
    """Means that stay are no reason to plan for short prompts alone."""
    lengths = TextLengths()
    for window in range(30):
        more = 1 + max(window - 15, 0) * 20
        counts = {"chat": (window * 150_000, window * 5_000)}
        squares = {"chat": 100 * 1500.0**2 * (window + more)}
        lengths.observe("r", counts, {"chat": 100}, [CHAT], squares)
        if window == 15:
            before = lengths.usual["chat"]

    assert lengths.usual["chat"].prompt_tokens == pytest.approx(before.prompt_tokens)
    assert lengths.usual["chat"].long_prompt_tokens > 1.5 * before.long_prompt_tokens
