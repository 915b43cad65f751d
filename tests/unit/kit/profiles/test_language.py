"""The language model's profile against measured power, and its two phases against the clock."""

from dataclasses import replace
from functools import partial
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from benchmarks.harness import Skipped
from benchmarks.token_profile import (
    _power,
    _prompt_s,
    _splitwise,
    _step_s,
    joules_per_token,
    samples,
)
from services.kit import config
from services.kit.config.models import DECODE_SENSITIVITY, MeasuredSteps
from services.kit.hardware import gpu_types
from services.kit.profiles.core.language import (
    CHUNK_TOKENS,
    FormulaSteps,
    LanguageProfile,
    step_s,
)
from services.kit.profiles.core.profile import BatchCost
from services.kit.profiles.factory import clock_sensitivity, load_profile
from tests.unit.kit.profiles.test_analytic import shape

V100 = gpu_types.load("v100").clock_curve

WHOLE_H100 = replace(shape("h100-80gb", "7g.80gb"), sm_count=132, gpu_sm_count=132)
EIGHT_B = LanguageProfile.of(8.0)


def cost(profile: LanguageProfile, slots: int, ratio: float = 1.0) -> BatchCost:
    found = profile.batch(WHOLE_H100, slots, 1, clock_ratio=ratio)
    assert found is not None
    return found


@pytest.mark.parametrize(("slots", "least_w"), [(8, 400.0), (32, 450.0), (256, 580.0)])
def test_few_sequences_draw_most_of_an_h100s_power(slots: int, least_w: float) -> None:
    """Total power of eight billion parameters: 411 to 486 W at 8, not the 130 W of arithmetic."""
    total_w = WHOLE_H100.context_power_w + cost(EIGHT_B, slots).power_w
    assert least_w <= total_w <= WHOLE_H100.max_power_w


@pytest.mark.parametrize("gpu", ["h100-80gb", "b200-180gb", "a100-80gb"])
def test_steps_and_power_are_near_measurements_that_the_factors_had_not_seen(gpu: str) -> None:
    """Every second row of dense models: median errors of time and power within 15 %."""
    try:
        rows = list(samples(gpu))[1::2]
    except Skipped as why:
        pytest.skip(str(why))
    times = [_step_s(each) / each.step_s - 1 for each in rows]
    powers = [_power(each) * limit_w(gpu) / each.power_w - 1 for each in rows if each.power_w]

    assert len(rows) >= 28
    assert median(map(abs, times)) <= 0.15
    assert median(map(abs, powers)) <= 0.15


@pytest.mark.parametrize("gpu", ["h100-80gb", "a100-80gb"])
def test_prompts_of_a_model_on_several_gpus_are_near_measurements(gpu: str) -> None:
    """Every second row that the factors had not seen: median error within 15 %."""
    try:
        rows = [each for each in _splitwise(gpu) if each.prompt_tokens][1::2]
    except Skipped as why:
        pytest.skip(str(why))

    assert {each.gpus for each in rows} == {2, 4, 8}
    assert median(abs(_prompt_s(each) / each.prompt_s - 1) for each in rows) <= 0.15


def test_gpus_that_share_a_model_are_faster_than_one_but_not_as_many_times() -> None:
    """GPUs exchange sums, of a larger model more; one GPU exchanges none."""

    def speedup(model: LanguageProfile, gpus: int) -> float:
        shapes = WHOLE_H100, replace(WHOLE_H100, sm_count=gpus * WHOLE_H100.sm_count)
        one_s, many_s = (model.steps(shape).prompt_token_s for shape in shapes)
        return one_s / many_s

    small, large = LanguageProfile.of(8.0), LanguageProfile.of(70.0)
    for gpus in (2, 4, 8):
        assert 1 < speedup(small, gpus) < speedup(large, gpus) < gpus
    assert speedup(large, 1) == 1.0


def limit_w(gpu: str) -> float:
    return gpu_types.load(gpu).max_power_w


@given(sequences=st.integers(0, 500), prompt=st.floats(0, 8192), context=st.floats(0, 8192))
def test_a_step_grows_with_everything_that_it_does(
    sequences: int, prompt: float, context: float
) -> None:
    """One more answer, a longer context or prompt never make a step shorter, on any type."""
    for gpu in map(gpu_types.load, gpu_types.names()):
        at = partial(step_s, EIGHT_B.steps(replace(WHOLE_H100, performance=gpu.performance)))
        least = at(sequences, context, prompt)
        assert least > 0
        assert at(sequences + 1, context, prompt) > least
        assert at(sequences, context + 100, prompt) >= least
        assert at(sequences, context, prompt + 100) > least


@given(slots=st.integers(1, 64), prompt=st.integers(1, 4000), answer=st.integers(1, 4000))
def test_measured_steps_count_where_they_were_measured_and_the_formula_elsewhere(
    slots: int, prompt: int, answer: int
) -> None:
    """Time and energy of a batch are the sums of its prompts and steps; also on CPU cores."""
    steps = MeasuredSteps(
        gpu="h100-80gb", slice="7g.80gb",
        fixed_s=0.01, sequence_s=1e-4, context_token_s=1e-8, prompt_token_s=3e-5,
        fixed_j=2.0, sequence_j=0.1, context_token_j=1e-6, prompt_token_j=0.02,
    )  # fmt: skip
    texts = EIGHT_B.changed(prompt_tokens=prompt, answer_tokens=answer)
    profile = texts.changed(
        measured=(steps, steps.model_copy(update={"gpu": "cpu-2", "slice": "2c"}))
    )
    cores = replace(WHOLE_H100, gpu="cpu-2", profile="2c", performance=None, core_gmacs_per_s=50.0)
    other = replace(WHOLE_H100, profile="3g.40gb", sm_count=60)

    context = prompt + answer / 2
    step_s = 0.01 + slots * (1e-4 + 1e-8 * context)
    found = cost(profile, slots)
    assert found.latency_s == pytest.approx(slots * prompt * 3e-5 + answer * step_s)
    step_j = 2.0 + slots * (0.1 + 1e-6 * context)
    assert found.energy_j == pytest.approx(slots * prompt * 0.02 + answer * step_j)
    for shape_ in (WHOLE_H100, cores):
        assert profile.batch(shape_, slots, 1) == found
        times = profile.token_times(shape_, slots, 1)
        assert times is not None
        most_s = step_s + CHUNK_TOKENS * 3e-5  # however many prompts wait
        assert times.token_s == pytest.approx(min(found.latency_s / answer, most_s))
    assert profile.batch(other, slots, 1) == texts.batch(other, slots, 1)


def test_measured_steps_count_on_as_many_gpus_as_held_the_model() -> None:
    """One GPU's steps are not those of four; the formula is, until they are measured."""
    one = MeasuredSteps(gpu="h100-80gb", slice="7g.80gb", fixed_s=0.01)
    four = one.model_copy(update={"gpus": 4, "fixed_s": 0.004})
    together = replace(WHOLE_H100, sm_count=4 * WHOLE_H100.sm_count)

    assert EIGHT_B.changed(measured=(one, four)).steps(together) == four
    assert EIGHT_B.changed(measured=(one, four)).steps(WHOLE_H100) == one
    assert isinstance(EIGHT_B.changed(measured=(one,)).steps(together), FormulaSteps)


@given(ratio=st.floats(0.3, 1.0), slots=st.integers(1, 64))
def test_each_phase_follows_the_clock_by_its_own_sensitivity(ratio: float, slots: int) -> None:
    """Only the prompt stretches where decoding does not follow; power falls for both."""
    bare = EIGHT_B.changed(kv_kib_per_token=0.0)  # or a context makes steps longer
    prompts = bare.changed(answer_tokens=0.0)
    answers = bare.changed(prompt_tokens=0.0)
    for profile, sensitivity in ((prompts, 1.0), (answers, DECODE_SENSITIVITY)):
        full, low = cost(profile, slots), cost(profile, slots, ratio)
        assert low.latency_s == pytest.approx(full.latency_s * V100.stretch(sensitivity, ratio))
        assert low.power_w == pytest.approx(full.power_w * V100.power_ratio(ratio))
    both = cost(bare, slots, ratio).latency_s
    apart = cost(prompts, slots, ratio).latency_s + cost(answers, slots, ratio).latency_s
    assert both == pytest.approx(apart)


@given(slots=st.integers(1, 63), processes=st.integers(1, 2))
def test_more_answers_at_a_time_take_more_power_and_less_energy_each(
    slots: int, processes: int
) -> None:
    """No slice draws more than it can."""
    profile = EIGHT_B.changed(memory_mib_per_item=1.0)

    def at(size: int) -> BatchCost:
        found = profile.batch(WHOLE_H100, size, processes)
        assert found is not None
        return found

    one, more = at(slots), at(slots + 1)
    assert one.power_w < more.power_w
    assert one.latency_s < more.latency_s
    assert one.energy_j / slots > more.energy_j / (slots + 1)
    range_w = WHOLE_H100.max_power_w - WHOLE_H100.context_power_w
    assert processes * more.power_w <= range_w * (1 + 1e-9)


def test_what_does_not_fit_and_unknown_gpus_have_no_cost() -> None:
    assert EIGHT_B.batch(shape("a100-40gb", "1g.5gb"), 1, 1) is None
    assert EIGHT_B.batch(replace(WHOLE_H100, performance=None), 1, 1) is None


def test_a_language_models_sensitivity_is_its_phases_by_their_time() -> None:
    """Mostly decoding's, unless the deployment file gives one for the variant."""
    profile = {"kind": "language", "parameters_b": 8.0}
    variant = {"file": "m.gguf", "accuracy": 1.0, "profile": profile}
    long_prompts = {**variant, "profile": {**profile, "prompt_tokens": 38400, "answer_tokens": 1}}

    usual = config.Variant.model_validate(variant)
    assert DECODE_SENSITIVITY < clock_sensitivity(usual) < 0.1
    assert clock_sensitivity(config.Variant.model_validate(long_prompts)) > 0.99
    given = config.Variant.model_validate({**variant, "clock_sensitivity": 0.3})
    assert clock_sensitivity(given) == 0.3
    assert load_profile(usual.profile) == EIGHT_B


def test_a_pipeline_has_no_language_profile() -> None:
    profile = {"kind": "language", "parameters_b": 8.0}
    with pytest.raises(ValidationError, match="must be analytic or table, got language"):
        config.Variant.model_validate(
            {"stages": ["a.onnx", "b.onnx"], "accuracy": 1.0, "profile": profile}
        )


@pytest.mark.parametrize(
    ("gpu", "family", "least_rows"),
    [
        ("h100-80gb", "experts", 50),
        ("b200-180gb", "experts", 40),
        ("h100-80gb", "experts, code", 16),
        ("b200-180gb", "experts, code", 18),
        ("h100-80gb", "hybrid", 3),
    ],
)
def test_joules_per_token_of_experts_and_hybrids_are_near_measurements(
    gpu: str, family: str, least_rows: int
) -> None:
    """Rows that the factors had not seen, code and the hybrid at all: median within 20 %."""
    try:
        rows = list(samples(gpu, family))
    except Skipped as why:
        pytest.skip(str(why))
    unseen = rows[1::2] if family == "experts" else rows
    pairs = [joules_per_token(each) for each in unseen]

    assert len(pairs) >= least_rows
    assert median(abs(modelled / measured - 1) for modelled, measured in pairs) <= 0.2


@pytest.mark.parametrize("gpu", ["h100-80gb", "b200-180gb"])
def test_joules_per_token_of_dense_models_are_near_measurements(gpu: str) -> None:
    """As before there were models of experts: 13 % and 11 % at most."""
    try:
        pairs = [joules_per_token(each) for each in list(samples(gpu))[1::2]]
    except Skipped as why:
        pytest.skip(str(why))

    assert median(abs(modelled / measured - 1) for modelled, measured in pairs) <= 0.11


MOE = LanguageProfile.of(235.0, active_parameters_b=22.0, bytes_per_parameter=1.0)
EIGHT_H100 = replace(
    WHOLE_H100, sm_count=8 * 132, memory_bytes=8 * WHOLE_H100.memory_bytes, profile="whole"
)


def weights_gb(profile: LanguageProfile, tokens: float) -> float:
    """Return the weights that a step of so many tokens reads on eight H100, GB."""
    steps = profile.steps(EIGHT_H100)
    assert isinstance(steps, FormulaSteps)
    return steps.weights_s(tokens) * 8 * 3350.0


@given(st.floats(1, 5000), st.floats(1.0, 4.0))
def test_a_step_touches_more_experts_the_more_tokens_it_has(tokens: float, more: float) -> None:
    """From those of one token to all of them; a dense model reads all of its weights always."""
    few, many = weights_gb(MOE, tokens), weights_gb(MOE, tokens * more)

    assert 22.0 - 1e-6 <= few <= many + 1e-9 <= 235.0 + 1e-6
    assert few <= 22.0 * tokens + 1e-6, "no token takes more than its own"
    assert weights_gb(MOE, 5000) == pytest.approx(235.0, rel=1e-3)
    assert weights_gb(LanguageProfile.of(70.0, bytes_per_parameter=1.0), tokens) == 70.0


def test_a_model_of_experts_is_between_the_dense_ones_of_its_active_and_all_parameters() -> None:
    """In the energy of an answer; in memory it is as large as the latter."""
    low, high = (LanguageProfile.of(size, bytes_per_parameter=1.0) for size in (22.0, 235.0))
    energy_j = [
        found.energy_j
        for profile in (low, MOE, high)
        if (found := profile.batch(EIGHT_H100, 64, 1)) is not None
    ]

    assert energy_j == sorted(energy_j)
    assert len(energy_j) == 3
    assert MOE.weights_bytes == high.weights_bytes == 235e9
    assert MOE.batch(replace(EIGHT_H100, memory_bytes=2 * 85 * 10**9), 1, 1) is None


@pytest.mark.parametrize(
    ("parallel", "weights"),
    [
        ({"tensor": 8}, 235e9),
        ({"tensor": 2, "pipeline": 4}, 235e9),
        ({"tensor": 4, "data": 2}, 470e9),
        ({"tensor": 1, "data": 8, "expert": 8}, (235 + 7 * 22) * 1e9),
    ],
)
def test_copies_hold_their_weights_and_stages_only_their_part(
    parallel: dict[str, int], weights: float
) -> None:
    """Experts that are spread over the copies are there once; the rest is in each."""
    assert replace(MOE, parallel=config.Parallel(**parallel)).weights_bytes == weights


def test_copies_and_stages_take_longer_for_a_token_and_exchange_nothing() -> None:
    """A full batch of a dense model: each group reads all of its weights for fewer answers."""
    dense = LanguageProfile.of(70.0, kv_kib_per_token=320)
    tensor, *others = (
        replace(dense, parallel=config.Parallel(**each))
        for each in ({"tensor": 8}, {"tensor": 4, "data": 2}, {"tensor": 4, "pipeline": 2})
    )
    one_s = step_s(tensor.steps(EIGHT_H100), 64, 600)

    for other in others:
        assert step_s(other.steps(EIGHT_H100), 64, 600) > one_s
        assert other.steps(EIGHT_H100).prompt_token_s < tensor.steps(EIGHT_H100).prompt_token_s
    assert dense.steps(EIGHT_H100) == tensor.steps(EIGHT_H100), "by default all GPUs divide layers"


def test_a_model_has_no_more_active_parameters_than_parameters() -> None:
    """Refused by name."""
    with pytest.raises(ValidationError, match="active_parameters_b: at most parameters_b, 8"):
        LanguageProfile.of(8.0, active_parameters_b=9.0)
