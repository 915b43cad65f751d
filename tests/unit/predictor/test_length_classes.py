"""A served model's classes follow its answers, and so does what the proxy's words mean."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.kit.errors import InvalidArgument
from services.predictor.core.estimate import CLASS_RANKS
from services.predictor.core.length_classes import SHARES, LengthClasses
from services.predictor.core.length_histogram import TOKENS, VALUES_TOKENS, LengthHistogram
from tests.support.examples import examples

PRIOR = np.ones(TOKENS.count)
LIKELY = st.lists(st.floats(0, 1), min_size=5, max_size=5)
LENGTHS = st.lists(st.integers(0, 2_000_000), max_size=60)


def taught(lengths: list[int], said: list[float] | None = None) -> LengthClasses:
    classes = LengthClasses(PRIOR)
    for tokens in lengths:
        classes.observe(tokens, said or ())
    return classes


@examples(0.4)
@given(LENGTHS, LIKELY)
def test_an_estimate_is_in_order_whatever_was_seen_and_said(
    lengths: list[int], said: list[float]
) -> None:
    """Low <= high, everything finite and positive, and classes that are."""
    found = taught(lengths, said).estimate(said)
    assert 0 < found.low_tokens <= found.high_tokens < 1.1e6
    assert 0 < found.expected_tokens < 1.1e6
    assert found.class_ in range(5)
    assert found.probabilities == tuple(said)


@given(LENGTHS)
def test_edges_ascend_and_classes_are_cut_at_them(lengths: list[int]) -> None:
    classes = taught(lengths)
    edges = classes.edges_tokens
    assert list(edges) == sorted(edges)
    found = [classes.class_of(tokens) for tokens in sorted(lengths)]
    assert found == sorted(found)
    assert all(classes.class_of(edge) <= place for place, edge in enumerate(edges))


def test_edges_become_the_percentiles_of_what_is_observed() -> None:
    """Within a bucket and what is left of the prior."""
    lengths = np.random.default_rng(0).lognormal(5, 1, 4000)
    classes = LengthClasses(PRIOR)
    for tokens in lengths:
        classes.observe(tokens)
    assert classes.edges_tokens == pytest.approx(np.quantile(lengths, CLASS_RANKS), rel=0.12)


def test_answers_that_were_cut_off_are_never_taken_for_lengths() -> None:
    """Of 3,000 answers every other one is cut off at 100 tokens: the edges are as without that."""
    random = np.random.default_rng(4)
    whole, cut = LengthClasses(PRIOR), LengthClasses(PRIOR)
    for number, tokens in enumerate(random.lognormal(5, 1, 3000).tolist()):
        whole.observe(tokens)
        limit = 100.0 if number % 2 else np.inf
        cut.observe(min(tokens, limit), truncated=tokens > limit)

    assert cut.edges_tokens == pytest.approx(whole.edges_tokens, rel=0.12)


def test_many_answers_of_one_token_change_nothing() -> None:
    """A request for one token carries no information on the lengths of answers."""
    classes = taught([300, 500, 700] * 100)
    before = classes.estimate()
    for _ in range(10_000):
        classes.observe(1, truncated=True)

    after = classes.estimate()
    assert after.expected_tokens == pytest.approx(before.expected_tokens, rel=0.05)
    assert after.class_ == before.class_


@examples(0.4)
@given(LENGTHS, LIKELY, st.integers(1, 10_000))
def test_no_estimate_is_above_the_requests_limit(
    lengths: list[int], said: list[float], limit: int
) -> None:
    classes = taught(lengths)
    free, limited = classes.estimate(said), classes.estimate(said, limit)
    assert 0 < limited.low_tokens <= limited.high_tokens <= limit
    assert limited.expected_tokens <= min(free.expected_tokens, limit) + 1e-6
    assert limited.class_ <= max(classes.class_of(limit), 0)
    assert limited.probabilities == free.probabilities


def test_a_cut_answer_teaches_the_proxy_that_it_was_no_shorter() -> None:
    """A proxy that says "shortest" of answers that are all cut off beyond that is corrected."""
    classes = taught(list(range(10, 500)))
    said = [0.9, 0.025, 0.025, 0.025, 0.025]
    for _ in range(300):
        classes.observe(400, said, truncated=True)

    assert classes.estimate(said).class_ >= 2


def test_edges_follow_a_model_that_changes() -> None:
    """A length seen 15,000 answers ago no longer counts."""
    classes = taught([100] * 300 + [1000] * 15_000)
    assert classes.edges_tokens[0] == pytest.approx(1000, rel=0.03)


def test_a_new_model_has_the_prior() -> None:
    prior = LengthHistogram()
    for tokens in (10, 100, 1000):
        prior.add(tokens)
    said = LengthClasses(prior.weights[0]).estimate()
    assert said.source == "prior"
    assert said.expected_tokens == pytest.approx(370, rel=0.02)
    assert said.class_ == 1


def test_a_proxy_that_knows_nothing_is_soon_not_believed() -> None:
    """For a proxy that is sure and always wrong, the classes' own shares are given instead."""
    random = np.random.default_rng(1)
    classes = LengthClasses(PRIOR)
    for _ in range(3000):
        said = np.full(5, 0.02)
        said[random.integers(0, 4)] = 0.92
        classes.observe(random.lognormal(5, 1), said.tolist())
    assert classes.calibrated([0.92, 0.02, 0.02, 0.02, 0.02]) == pytest.approx(SHARES, abs=0.12)


def test_a_proxy_that_is_one_class_off_is_put_right() -> None:
    """A shift is learned: it says "shorter" of every answer, and the classes come out right."""
    random = np.random.default_rng(2)
    classes, right = LengthClasses(PRIOR), []
    for number in range(2000):
        tokens = random.lognormal(5, 1)
        true = classes.class_of(tokens)
        weights = np.exp(-1.5 * np.abs(np.arange(5) - true) - 1.5 * np.arange(5))
        said = (weights / weights.sum()).tolist()
        if number >= 1500:
            right.append(classes.estimate(said).class_ == true)
        classes.observe(tokens, said)
    assert np.mean(right) > 0.9


def test_a_longer_class_means_more_tokens() -> None:
    classes = taught(list(range(10, 500)))
    expected = [classes.estimate(each).expected_tokens for each in np.eye(5).tolist()]
    assert expected == sorted(expected)


def test_ranks_are_uniform_whatever_is_expected_and_ascend_with_it() -> None:
    """Expectations crowd between 90 and 110 tokens; their ranks fill 0..1 evenly all the same."""
    classes, random = LengthClasses(PRIOR), np.random.default_rng(3)
    expected = random.lognormal(4.6, 0.1, 2000)
    ranks = [classes.rank(each) for each in expected]
    assert ranks[:49] == [None] * 49
    known = np.array(ranks[1000:], float)
    assert np.histogram(known, 5, (0, 1))[0] == pytest.approx(200, abs=60)
    ascending = [classes.rank(tokens) or 0.0 for tokens in (80, 100, 130)]
    assert ascending == sorted(set(ascending))


def test_equal_expectations_stand_in_the_middle() -> None:
    classes = LengthClasses(PRIOR)
    assert [classes.rank(100) for _ in range(60)][-1] == pytest.approx(0.5)


@examples(0.4)
@given(LENGTHS, LIKELY)
def test_what_was_learned_survives_being_written(lengths: list[int], said: list[float]) -> None:
    classes = taught(lengths, said)
    back = LengthClasses.from_bytes(classes.to_bytes(), PRIOR)
    assert back.answers == classes.answers
    assert back.edges_tokens == pytest.approx(classes.edges_tokens, rel=0.031)
    assert back.calibrated(said) == pytest.approx(classes.calibrated(said), abs=1e-4)


def test_what_the_first_version_wrote_is_read() -> None:
    """The first version knew no truncated answers."""
    classes = taught([100, 200, 300])
    values = np.frombuffer(classes.to_bytes(), "<f4").copy()[: 8 + TOKENS.count]
    values[0] = 1

    back = LengthClasses.from_bytes(values.tobytes(), PRIOR)

    assert back.edges_tokens == pytest.approx(classes.edges_tokens, rel=0.031)


@pytest.mark.parametrize("spoil", [b"", b"short", bytes(4 * (8 + 2 * TOKENS.count))], ids=len)
def test_what_was_not_written_here_is_refused(spoil: bytes) -> None:
    with pytest.raises(InvalidArgument, match="classes"):
        LengthClasses.from_bytes(spoil, PRIOR)


@given(st.floats(1, 1e6))
def test_a_bucket_stands_for_lengths_within_1_5_percent(tokens: float) -> None:
    assert VALUES_TOKENS[TOKENS.index(tokens)] == pytest.approx(tokens, rel=0.016)
