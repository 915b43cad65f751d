"""`benchmarks.muserve`: the mix is Table 1's, and figures obey the physics that they rest on."""

import numpy as np
import pytest

from benchmarks.miad.setting import FLOOR
from benchmarks.muserve import arrivals, mix
from benchmarks.muserve.planning.clocking import V100
from benchmarks.muserve.replay import ACTIVE_W, IDLE_W, POLICIES, Span
from benchmarks.muserve.study import Setting, rows_of
from services.kit.config.models import DECODE_SENSITIVITY
from tests.support.paths import PUBLISHED

SPAN = Span(settle_s=20.0, length_s=80.0)


def test_the_mix_fits_onto_four_v100s_as_in_the_paper() -> None:
    """Section 4.2 says so of 62.5 GB; the published sizes alone sum to 60.6 GB."""
    models = mix.served(3.0, dict.fromkeys((row.name for row in mix.TABLE), 1.0), 0.5)
    total_bytes = sum(model.memory_bytes for model in models)
    assert total_bytes == pytest.approx(60.6e9)
    assert total_bytes <= sum(device.memory_bytes for device in mix.devices(4))


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_the_share_of_insensitive_work_is_as_requested(share: float) -> None:
    models = mix.served(3.0, dict.fromkeys((row.name for row in mix.TABLE), 1.0), 0.5)
    for model in mix.insensitive(models, share):
        found = np.mean([each.sensitivity for each in model.partitions])
        assert found == pytest.approx(1.0 - share * (1.0 - mix.INSENSITIVE))


def test_lengths_are_predicted_as_well_as_the_papers_predictor_does() -> None:
    """Table 2: 43 % of the classes right; a prediction is a class's mean."""
    rng = np.random.default_rng(0)
    sizes = rng.uniform(0.1, 1.0, 4000)
    predicted = arrivals.predict(sizes, rng)
    edges = np.quantile(sizes, arrivals.RANKS)
    right = np.searchsorted(edges, sizes) == np.searchsorted(edges, predicted)
    assert right.mean() == pytest.approx(arrivals.ACCURACY, abs=0.15)  # at the ends more are
    assert len(np.unique(predicted)) == len(arrivals.RANKS) + 1


def test_no_policy_saves_more_than_the_published_curve_allows() -> None:
    """Power is between idle and all; without the loop, power while serving stays."""
    if not (PUBLISHED / "requests").is_dir():
        pytest.skip("no data set requests: `cinquefoil data fetch requests`")
    rows = rows_of(Setting(devices=4, slo_scale=5.0, rate_rps=3.0), SPAN)
    assert [row["policy"] for row in rows] == [policy.name for policy in POLICIES]
    bound = 1.0 / V100.energy_ratio(DECODE_SENSITIVITY, FLOOR)
    for row in rows:
        assert IDLE_W < row["power_w"] < row["serving_power_w"] <= IDLE_W + ACTIVE_W + 1e-6
        assert row["active_saving"] <= bound * 1.05  # what begins in the span may end after it
        assert row["p99_over_slo"] <= row["worst_p99_over_slo"]
        assert (row["models_over_slo"] > 0) == (row["worst_p99_over_slo"] > 1)
    assert rows[0]["serving_power_w"] == pytest.approx(IDLE_W + ACTIVE_W)
    assert rows[1]["power_w"] == pytest.approx(rows[0]["power_w"], rel=0.02)
