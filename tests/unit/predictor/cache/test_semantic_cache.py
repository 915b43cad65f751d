"""The semantic cache: bounds, separation of models, correction, forgetting."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from services.kit.config import PromptCache
from services.predictor.core.cache.lru_index import ENTRY_BYTES
from services.predictor.core.cache.semantic_cache import SemanticCache
from services.predictor.core.cache.vector_index import Vector, coded, decoded
from tests.support.examples import examples

SIZE = 32
MODELS = ("a", "b")
ROOMY = PromptCache(max_entries=100, max_mib=1, max_unused_s=1000.0, similarity=0.8)


def vector(seed: int) -> Vector:
    made = np.random.default_rng(seed).normal(size=SIZE).astype(np.float32)
    return made / np.float32(np.linalg.norm(made))


def key(number: int) -> bytes:
    return number.to_bytes(16, "big")


def near(one: Vector, cosine: float) -> Vector:
    """Return a vector with this cosine to `one`."""
    other = vector(999)
    across = other - (other @ one) * one
    across /= np.linalg.norm(across)
    made: Vector = (cosine * one + np.sqrt(1 - cosine**2) * across).astype(np.float32)
    return made


def cache(bounds: PromptCache = ROOMY) -> SemanticCache:
    return SemanticCache(MODELS, bounds, SIZE)


def test_the_same_prompt_is_known_by_its_key_and_a_like_one_by_its_vector() -> None:
    known = cache()
    known.of["a"].learn(key(1), 100, 0.0, vector(1))

    exact, like = known.of["a"].exact(key(1), 1.0), known.of["a"].near(near(vector(1), 0.9), 1.0)
    assert exact is not None
    assert exact.lengths.mean_tokens == 100
    assert like is not None
    assert like.key == key(1)
    assert like.similarity == pytest.approx(0.9, abs=0.01)


@given(st.floats(-1, 0.78))
def test_a_prompt_less_like_than_the_threshold_is_not_taken_for_it(cosine: float) -> None:
    known = cache()
    known.of["a"].learn(key(1), 100, 0.0, vector(1))

    assert known.of["a"].near(near(vector(1), cosine), 1.0) is None


@given(st.integers(1, 40), st.integers(0, 2**31))
@examples(0.6)
def test_the_nearest_of_all_is_found(count: int, seed: int) -> None:
    """A search agrees with numpy's own cosines, within rounding."""
    known = cache(PromptCache(max_entries=100, max_mib=1, max_unused_s=1000.0, similarity=1e-6))
    vectors = [vector(seed + i) for i in range(count)]
    for i, each in enumerate(vectors):
        known.of["a"].learn(key(i), i, 0.0, each)
    sought = vector(seed - 1 if seed else 10**9)
    cosines = [float(each @ sought) for each in vectors]

    hit = known.of["a"].near(sought, 1.0)

    if max(cosines) > 0.01:
        assert hit is not None
        assert cosines[int.from_bytes(hit.key, "big")] >= max(cosines) - 1e-4


def test_a_like_prompt_answered_wrongly_three_times_in_net_loses_its_teller() -> None:
    known = cache()
    known.of["a"].learn(key(1), 100, 0.0, vector(1))
    for right in (True, False, False, False):
        known.of["a"].judge(key(1), right=right)

    assert known.of["a"].exact(key(1), 1.0) is None
    assert known.of["a"].near(vector(1), 1.0) is None


def test_memory_is_shared_out_among_the_models_whatever_the_bound_on_entries() -> None:
    known = cache(PromptCache(max_mib=6 * (ENTRY_BYTES + 4 * SIZE) / 2**20))
    for i in range(20):
        known.of["a"].learn(key(i), 1, float(i), vector(i))

    assert len(known.of["a"]) == 3
    assert known.of["a"].size_bytes <= 3 * (ENTRY_BYTES + 4 * SIZE)


def test_an_answer_that_was_cut_off_makes_no_entry() -> None:
    known = cache()
    known.of["a"].learn(key(1), 1, 0.0, vector(1), truncated=True)

    assert len(known.of["a"]) == 0
    assert known.of["a"].near(vector(1), 1.0) is None


def test_memory_is_bounded_to_the_byte_and_given_back() -> None:
    """Vectors take what the bound says at most, and nothing once they are forgotten."""
    bound = 2 * 1500 * (ENTRY_BYTES + 4 * SIZE)
    bounds = PromptCache(max_entries=10**6, max_mib=bound / 2**20)
    known = cache(bounds)
    for i in range(3000):
        known.of["a"].learn(key(i), 1, float(i), vector(i))
        assert known.of["a"].size_bytes <= bound // 2
    assert len(known.of["a"]) == 1500

    known.forget("a", 2300.0)
    assert len(known.of["a"]) == 700
    assert known.of["a"].size_bytes < bound // 2 * 0.7
    known.forget("a", float("inf"))
    assert known.of["a"].size_bytes == 0


@given(st.integers(0, 20), st.sampled_from([b"", b"tenant-1", b"tenant-2"]))
def test_a_tenant_hits_its_own_prompts_only(number: int, tenant: bytes) -> None:
    """Another tenant's prompt may be nearer, and entries may have moved to others' rows."""
    known = cache()
    for owner in (b"", b"tenant-1"):
        for i in range(20):
            known.of["a"].learn(key(i) + owner, i, float(i), vector(i))
    known.forget("a", 5.0)

    hit = known.of["a"].near(vector(number), 30.0, tenant)

    assert (hit is not None) == (5 <= number < 20 and tenant != b"tenant-2")
    assert hit is None or hit.key == key(number) + tenant


def test_entries_without_hits_expire_and_those_with_hits_stay() -> None:
    known = cache()
    for i in range(3):
        known.of["a"].learn(key(i), 1, 0.0, vector(i))
    known.of["a"].exact(key(1), 900.0)

    assert known.expire(1500.0) == 2
    assert known.of["a"].exact(key(1), 1500.0) is not None


def test_forgetting_a_model_leaves_the_others() -> None:
    known = cache()
    for model in MODELS:
        known.of[model].learn(key(1), 1, 0.0, vector(1))

    assert known.forget("a", float("inf")) == 1
    assert known.of["a"].near(vector(1), 1.0) is None
    assert known.of["b"].near(vector(1), 1.0) is not None


def test_changes_that_could_not_be_written_are_returned_again() -> None:
    known = cache()
    known.of["a"].learn(key(1), 1, 0.0)
    known.of["a"].learn(key(2), 1, 0.0)
    known.take_changes()
    known.of["a"].learn(key(1), 1, 0.0)
    known.forget("a", float("inf"))
    known.of["a"].learn(key(2), 1, 0.0)

    (changes,) = known.take_changes().values()
    assert known.take_changes() == {}
    known.of["a"].give_back(changes)

    (again,) = known.take_changes().values()
    assert ([*again.written], again.dropped) == ([key(2)], {key(1)})


class CacheMachine(RuleBasedStateMachine):
    """Whatever happens: bounds hold, and no model gets another's lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = cache(PromptCache(max_entries=5, max_mib=1, max_unused_s=50.0, similarity=0.8))
        self.now_s = 0.0

    @rule(model=st.sampled_from(MODELS), number=st.integers(0, 12), embedded=st.booleans())
    def learn(self, model: str, number: int, embedded: bool) -> None:
        """Lengths of model a are even, of model b odd, so that each shows its model."""
        self.now_s += 1
        tokens = 2 * number + (model == "b")
        made = vector(number) if embedded else None
        self.cache.of[model].learn(key(number), tokens, self.now_s, made)
        assert key(number) in self.cache.of[model]

    @rule(model=st.sampled_from(MODELS), number=st.integers(0, 12))
    def look_up(self, model: str, number: int) -> None:
        for hit in (
            self.cache.of[model].exact(key(number), self.now_s),
            self.cache.of[model].near(vector(number), self.now_s),
        ):
            if hit is not None:
                assert hit.lengths.mean_tokens % 2 == (model == "b")
                assert hit.similarity >= 0.8

    @rule(model=st.sampled_from(MODELS), number=st.integers(0, 12), right=st.booleans())
    def judge(self, model: str, number: int, right: bool) -> None:
        self.cache.of[model].judge(key(number), right=right)

    @rule(model=st.sampled_from((*MODELS, None)), age_s=st.integers(0, 20))
    def forget(self, model: str | None, age_s: int) -> None:
        self.cache.forget(model, self.now_s - age_s)

    @invariant()
    def bounded(self) -> None:
        assert all(len(self.cache.of[model]) <= 5 for model in MODELS)


TestCache = CacheMachine.TestCase
TestCache.settings = examples(0.8, stateful_step_count=40)


def test_a_vector_of_nothing_is_like_nothing() -> None:
    known = cache()
    known.of["a"].learn(key(1), 1, 0.0, vector(1))

    assert known.of["a"].near(np.zeros(SIZE, np.float32), 1.0) is None


@given(st.integers(0, 10_000))
def test_bytes_keep_a_vectors_direction_but_for_half_a_step_each(seed: int) -> None:
    """The sine of the angle is at most the error's length; a step is a 127th of the largest."""
    true = vector(seed)
    kept = decoded(coded(true))

    aside = np.linalg.norm(kept - (kept @ true) * true)

    assert aside <= np.sqrt(SIZE) * np.abs(true).max() / 254 + 1e-6
