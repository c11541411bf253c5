"""Whether two sets of sampled texts come from the same distribution."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence

import torch

LEAST_EXPECTED = 5.0


def homogeneity(first: Sequence[Hashable], second: Sequence[Hashable]) -> tuple[float, int, float]:
    """Pearson's two-sample chi-squared test of outcomes: (statistic, degrees of freedom, p-value).

    Outcomes too rare for the test (expected fewer than 5 times in one of the samples) are counted as one.
    """
    a, b = Counter(first), Counter(second)
    share = len(first) / (len(first) + len(second))
    smaller = min(share, 1 - share)
    common = [x for x in a.keys() | b.keys() if (a[x] + b[x]) * smaller >= LEAST_EXPECTED]
    cells = [(a[x], b[x]) for x in common]
    rest = (len(first) - sum(x for x, _ in cells), len(second) - sum(y for _, y in cells))
    if sum(rest) * smaller >= LEAST_EXPECTED:
        cells.append(rest)
    if len(cells) < 2:
        return 0.0, 0, 1.0
    statistic = 0.0
    for x, y in cells:
        expected = ((x + y) * share, (x + y) * (1 - share))
        statistic += (x - expected[0]) ** 2 / expected[0] + (y - expected[1]) ** 2 / expected[1]
    freedom = len(cells) - 1
    half = torch.tensor([freedom / 2, statistic / 2], dtype=torch.float64)
    return statistic, freedom, float(torch.special.gammaincc(half[0], half[1]))
