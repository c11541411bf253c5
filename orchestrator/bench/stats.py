"""Statistics of paired ratios: bootstrap interval of the median, exact sign test, pairs that would decide."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

RESAMPLES = 10_000
SEED = 20_240_601  # fixed, so that the same rows always give the same interval


def median(values: Sequence[float]) -> float:
    """Raises ValueError for no values."""
    if not values:
        raise ValueError("the median of no values is not defined")
    return float(np.median(np.asarray(values, dtype=np.float64)))


def bootstrap_ci(values: Sequence[float], level: float = 0.95) -> tuple[float, float]:
    """Percentile bootstrap interval of the median; one value gives that value twice."""
    if not values:
        raise ValueError("an interval of no values is not defined")
    data = np.asarray(values, dtype=np.float64)
    picks = np.random.default_rng(SEED).integers(0, len(data), size=(RESAMPLES, len(data)))
    medians = np.median(data[picks], axis=1)
    tail = (1 - level) / 2 * 100
    low, high = np.percentile(medians, [tail, 100 - tail])
    return float(low), float(high)


def bootstrap_ratio_ci(above: Sequence[float], below: Sequence[float], level: float = 0.95) -> tuple[float, float]:
    """Percentile bootstrap interval of median(above) / median(below), two independent samples of positive values."""
    rng = np.random.default_rng(SEED)
    tops, bottoms = (
        np.median(data[rng.integers(0, len(data), size=(RESAMPLES, len(data)))], axis=1)
        for data in (np.asarray(values, dtype=np.float64) for values in (above, below))
    )
    tail = (1 - level) / 2 * 100
    low, high = np.percentile(tops / bottoms, [tail, 100 - tail])
    return float(low), float(high)


def bootstrap_pooled_ci(above: Sequence[float], below: Sequence[float], level: float = 0.95) -> tuple[float, float]:
    """Percentile bootstrap interval of sum(above) / sum(below) over observations that belong together."""
    tops, bottoms = np.asarray(above, dtype=np.float64), np.asarray(below, dtype=np.float64)
    picks = np.random.default_rng(SEED).integers(0, len(tops), size=(RESAMPLES, len(tops)))
    ratios = tops[picks].sum(axis=1) / bottoms[picks].sum(axis=1)
    tail = (1 - level) / 2 * 100
    low, high = np.percentile(ratios, [tail, 100 - tail])
    return float(low), float(high)


def sign_test(values: Sequence[float], against: float = 1.0) -> float:
    """Two-sided exact p of as many values on one side of `against` as seen; ties are left out; 1.0 for none."""
    above = sum(v > against for v in values)
    below = sum(v < against for v in values)
    n = above + below
    if n == 0:
        return 1.0
    tail = sum(math.comb(n, k) for k in range(min(above, below) + 1))
    return min(1.0, float(tail) / float(2 ** (n - 1)))


def noise_sd(values: Sequence[float]) -> float:
    """Standard deviation of the logarithms of the ratios; 0 for fewer than two."""
    if len(values) < 2:
        return 0.0
    return float(np.std(np.log(np.asarray(values, dtype=np.float64)), ddof=1))


def pairs_needed(values: Sequence[float], threshold: float, alpha: float = 0.05, power: float = 0.8) -> int | None:
    """Pairs in all that would tell the median seen from `threshold`; None when they coincide or n is below 2.

    Normal approximation on log ratios; the median needs pi/2 times the pairs that the mean would need.
    """
    if len(values) < 2:
        return None
    effect = abs(math.log(median(values)) - math.log(threshold))
    if effect < 1e-9:
        return None
    z = NormalDist().inv_cdf(1 - alpha / 2) + NormalDist().inv_cdf(power)
    needed = math.pi / 2 * (z * noise_sd(values) / effect) ** 2
    return max(_fewest_for_sign_test(alpha), math.ceil(needed))


def _fewest_for_sign_test(alpha: float) -> int:
    """Pairs below which even a unanimous sign test can't reach alpha."""
    return math.ceil(1 - math.log2(alpha))
