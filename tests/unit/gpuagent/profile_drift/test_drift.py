"""When a profile counts as wrong."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gpuagent.profile_drift.core.drift import LEAST_BATCHES, BatchTotals, DriftTrack


def seen(batches: float, latency: float = 1.0, energy: float = 1.0) -> BatchTotals:
    """Return batches that the profile says take 10 ms and 2 J each."""
    return BatchTotals(
        batches, 0.01 * batches * latency, 0.01 * batches, 2 * batches * energy, 2.0 * batches
    )


def after(*looks: BatchTotals) -> DriftTrack:
    track = DriftTrack()
    for look in looks:
        track = track.after(look)
    return track


@given(st.lists(st.tuples(st.integers(1, 500), st.floats(0.85, 1.19), st.floats(0.78, 1.29))))
def test_within_the_band_no_profile_is_ever_wrong(
    looks: list[tuple[int, float, float]],
) -> None:
    assert not after(*(seen(*look) for look in looks)).wrong


@given(
    st.floats(0.1, 10.0).filter(lambda ratio: not 1 / 1.2 <= ratio <= 1.2),
    st.integers(1, 40),
)
def test_beyond_it_every_profile_is_found_wrong_and_never_too_early(
    ratio: float, batches: int
) -> None:
    """Slower or faster alike, however the batches are cut into looks."""
    track, total = DriftTrack(), 0
    while not track.wrong:
        track = track.after(seen(batches, latency=ratio))
        total += batches
        assert total < 200
    assert track.seen.batches >= LEAST_BATCHES
    assert track.seen.latency_ratio == pytest.approx(ratio)


def test_a_single_outlier_is_forgotten() -> None:
    """A batch of 2 s among batches of 10 ms tips the scale, and fades."""
    outlier = BatchTotals(1, 2.0, 0.01, 2.0, 2.0)
    assert after(seen(60), outlier).wrong
    assert not after(seen(60), outlier, *[seen(50)] * 20).wrong


def test_a_profile_at_the_edge_does_not_flap() -> None:
    """Wrong at 21 %; at 15 % it still is, at 5 % not any more."""
    wrong = after(seen(100, latency=1.21))
    assert wrong.wrong
    for _ in range(20):
        wrong = wrong.after(seen(100, latency=1.15))
    assert wrong.wrong
    for _ in range(20):
        wrong = wrong.after(seen(100, latency=1.05))
    assert not wrong.wrong


def test_energy_alone_is_enough() -> None:
    track = after(seen(100, energy=1.5))
    assert track.wrong
    assert (track.seen.latency_ratio, track.seen.energy_ratio) == pytest.approx((1.0, 1.5))


def test_energy_that_is_not_known_says_nothing() -> None:
    track = after(BatchTotals(100, 1.0, 1.0, 0.0, 200.0), BatchTotals(100, 1.0, 1.0, 5.0, 0.0))
    assert not after(BatchTotals(100, 1.0, 1.0, 0.0, 0.0)).wrong
    assert after(BatchTotals(100, 1.0, 1.0, 0.0, 0.0)).seen.energy_ratio == 1.0
    assert track.seen.latency_ratio == 1.0


@given(
    st.lists(st.tuples(st.integers(1, 200), st.floats(0.2, 5.0)), min_size=1),
)
def test_the_ratio_is_a_mean_of_what_was_seen(looks: list[tuple[int, float]]) -> None:
    ratios = [ratio for _, ratio in looks]
    found = after(*(seen(batches, ratio) for batches, ratio in looks)).seen.latency_ratio
    assert min(ratios) * (1 - 1e-9) <= found <= max(ratios) * (1 + 1e-9)
