"""The language model's profile against measured power, and its two phases against the clock."""

import csv
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from services.gpuagent.core import gpu_types
from services.kit import config
from services.kit.profiles.core.clock_curve import V100
from services.kit.profiles.core.language import (
    BANDWIDTH_GB_PER_S,
    DECODE_SENSITIVITY,
    LanguageProfile,
)
from services.kit.profiles.core.profile import BatchCost
from services.kit.profiles.factory import clock_sensitivity, load_profile
from tests.unit.kit.profiles.test_analytic import shape

MEASURED = Path(__file__).parents[4] / "../shared/data/gpu_power/ml_energy_llm.csv"
WHOLE_H100 = replace(shape("h100-80gb", "7g.80gb"), sm_count=132, gpu_sm_count=132)
EIGHT_B = LanguageProfile(8.0)


def cost(profile: LanguageProfile, slots: int, ratio: float = 1.0) -> BatchCost:
    found = profile.batch(WHOLE_H100, slots, 1, clock_ratio=ratio)
    assert found is not None
    return found


@pytest.mark.parametrize(("slots", "least_w"), [(8, 400.0), (32, 450.0), (256, 600.0)])
def test_few_sequences_draw_most_of_an_h100s_power(slots: int, least_w: float) -> None:
    """Total power of eight billion parameters: 411 to 486 W at 8, not the 130 W of arithmetic."""
    total_w = WHOLE_H100.idle_power_w + cost(EIGHT_B, slots).power_w
    assert least_w <= total_w <= WHOLE_H100.max_power_w


def test_power_and_time_of_dense_models_are_within_the_stated_error_on_an_h100() -> None:
    """57 rows: idle + active power within 19 %, time between tokens within 41 %."""
    if not MEASURED.is_file():
        pytest.skip(f"no {MEASURED.name} in {MEASURED.parent}")
    with MEASURED.open(newline="") as lines:
        rows = [
            row
            for row in csv.DictReader(lines)
            if (row["gpu_model"], row["num_gpus"]) == ("H100", "1")
            and row["architecture"].startswith("Dense")
        ]
    power_errors = []
    for row in rows:
        profile = LanguageProfile(float(row["activated_params_billions"]))
        sequences = round(float(row["avg_batch_size"]))
        total_w = WHOLE_H100.idle_power_w + profile.power_w(WHOLE_H100, sequences)
        token_ms = 1e3 * profile.token_s(WHOLE_H100, sequences)
        power_errors.append(abs(total_w / float(row["avg_power_watts"]) - 1))
        assert token_ms == pytest.approx(float(row["median_itl_ms"]), rel=0.41)
    assert len(rows) == 57
    assert max(power_errors) < 0.19
    assert sorted(power_errors)[len(rows) // 2] < 0.07


@given(ratio=st.floats(0.3, 1.0), slots=st.integers(1, 64))
def test_each_phase_follows_the_clock_by_its_own_sensitivity(ratio: float, slots: int) -> None:
    """Only the prompt stretches where decoding does not follow; power falls for both."""
    prompts = replace(EIGHT_B, answer_tokens=0.0)
    answers = replace(EIGHT_B, prompt_tokens=0.0)
    for profile, sensitivity in ((prompts, 1.0), (answers, DECODE_SENSITIVITY)):
        full, low = cost(profile, slots), cost(profile, slots, ratio)
        assert low.latency_s == pytest.approx(full.latency_s * V100.stretch(sensitivity, ratio))
        assert low.power_w == pytest.approx(full.power_w * V100.power_ratio(ratio))
    both = cost(EIGHT_B, slots, ratio).latency_s
    apart = cost(prompts, slots, ratio).latency_s + cost(answers, slots, ratio).latency_s
    assert both == pytest.approx(apart)


@given(slots=st.integers(1, 63), processes=st.integers(1, 2))
def test_more_answers_at_a_time_take_more_power_and_less_energy_each(
    slots: int, processes: int
) -> None:
    """And no slice draws more than it can."""
    profile = replace(EIGHT_B, memory_mib_per_item=1.0)

    def at(size: int) -> BatchCost:
        found = profile.batch(WHOLE_H100, size, processes)
        assert found is not None
        return found

    one, more = at(slots), at(slots + 1)
    assert one.power_w < more.power_w
    assert one.latency_s < more.latency_s
    assert one.energy_j / slots > more.energy_j / (slots + 1)
    range_w = WHOLE_H100.max_power_w - WHOLE_H100.idle_power_w
    assert processes * more.power_w <= range_w * (1 + 1e-9)


def test_what_does_not_fit_and_unknown_gpus_have_no_cost() -> None:
    assert EIGHT_B.batch(shape("a100-40gb", "1g.5gb"), 1, 1) is None
    assert EIGHT_B.batch(replace(WHOLE_H100, gpu="x9000"), 1, 1) is None


def test_bandwidths_are_those_of_the_agents_tables() -> None:
    for name, gb_per_s in BANDWIDTH_GB_PER_S.items():
        assert gpu_types.load(name).peak.memory_gb_per_s == gb_per_s


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
