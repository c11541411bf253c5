"""Statistics against their definitions."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.bench import stats

RATIOS = st.lists(st.floats(0.2, 5.0), min_size=1, max_size=40)


@settings(deadline=None, max_examples=50)
@given(RATIOS)
def test_the_interval_holds_the_median_and_stays_in_range(values: list[float]) -> None:
    low, high = stats.bootstrap_ci(values)
    assert min(values) - 1e-9 <= low <= stats.median(values) + 1e-9
    assert stats.median(values) - 1e-9 <= high <= max(values) + 1e-9
    wide = stats.bootstrap_ci(values, 0.995)
    assert wide[0] <= low + 1e-12
    assert wide[1] >= high - 1e-12


@settings(deadline=None, max_examples=50)
@given(RATIOS)
def test_intervals_repeat_and_the_sign_test_is_a_probability(values: list[float]) -> None:
    assert stats.bootstrap_ci(values) == stats.bootstrap_ci(values)
    assert 0 < stats.sign_test(values) <= 1
    assert stats.sign_test(values, 1.0) == pytest.approx(stats.sign_test([1 / v for v in values], 1.0))


def test_sign_test_by_hand() -> None:
    assert stats.sign_test([2.0] * 10) == pytest.approx(2 / 1024)
    assert stats.sign_test([2.0] * 9 + [0.5]) == pytest.approx(2 * 11 / 1024)
    assert stats.sign_test([2.0, 0.5]) == 1.0
    assert stats.sign_test([1.0, 1.0]) == 1.0
    assert stats.sign_test([1.5] * 6, against=2.0) == pytest.approx(2 / 64)


def test_the_interval_covers_as_often_as_it_says() -> None:
    import numpy as np

    rng = np.random.default_rng(1)
    hits = sum(
        low <= 1.1 <= high
        for low, high in (stats.bootstrap_ci(list(1.1 * np.exp(rng.normal(0, 0.1, 15)))) for _ in range(200))
    )
    assert hits >= 180


def test_pairs_needed_grows_with_noise_and_shrinks_with_effect() -> None:
    quiet = stats.pairs_needed([1.10, 1.11, 1.09, 1.12], 1.02)
    noisy = stats.pairs_needed([0.8, 1.5, 1.0, 1.2], 1.02)
    assert quiet == 6
    assert noisy is not None
    assert noisy > 50
    assert stats.pairs_needed([1.2], 1.02) is None
    assert stats.pairs_needed([1.02, 1.02], 1.02) is None


def test_noise_and_empty_input() -> None:
    assert stats.noise_sd([1.0]) == 0.0
    assert stats.noise_sd([1.0, math.e]) == pytest.approx(math.sqrt(0.5))
    for empty in (stats.median, stats.bootstrap_ci):
        with pytest.raises(ValueError):
            empty([])


def test_pooled_intervals_weigh_observations_by_their_size() -> None:
    assert stats.bootstrap_pooled_ci([4.0] * 5, [2.0] * 5) == (2.0, 2.0)
    low, high = stats.bootstrap_pooled_ci([100.0, 2.0, 2.0, 2.0], [50.0, 2.0, 2.0, 2.0])
    assert 1.0 <= low < 106 / 56 < high <= 2.0
