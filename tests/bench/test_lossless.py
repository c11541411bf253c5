"""Equal outputs, ties and real differences."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from orchestrator.bench.lossless import first_difference, ties
from orchestrator.bench.prompts import Prompt

PROMPTS = [Prompt(id="a", text="a"), Prompt(id="b", text="b")]


@pytest.mark.parametrize(
    ("wanted", "got", "at"),
    [([1, 2], [1, 2], None), ([1, 2], [1, 3], 1), ([1, 2], [1], 1), ([1], [1, 2], 1), ([], [5], 0), ([], [], None)],
)
def test_the_first_difference(wanted: list[int], got: list[int], at: int | None) -> None:
    assert first_difference(wanted, got) == at


@pytest.mark.parametrize(
    ("got", "nats", "bound", "found"),
    [
        ([[1, 2], [3, 4]], None, 0.1, 0),
        ([[1, 9], [3, 4]], 0.05, 0.1, 1),
        ([[1, 9], [8, 4]], 0.05, 0.1, 2),
        ([[1, 9], [3, 4]], -0.2, 0.1, None),
        ([[1, 9], [3, 4]], -0.05, 0.1, 1),
        ([[1, 9], [3, 4]], 0.11, 0.1, None),
        ([[1, 9], [3, 4]], None, 0.1, None),
        ([[1, 9], [3, 4]], 0.0, 0.0, None),
        ([[1], [3, 4]], 0.0, 0.1, None),
    ],
)
def test_only_differences_at_ties_are_explained(
    got: list[list[int]], nats: float | None, bound: float, found: int | None
) -> None:
    asked: list[tuple[str, tuple[int, ...], int, int]] = []

    def gap(prompt: Prompt, prefix: Sequence[int], a: int, b: int) -> float | None:
        asked.append((prompt.id, tuple(prefix), a, b))
        return nats

    assert ties(gap, PROMPTS, [[1, 2], [3, 4]], got, bound) == found
    if got[0] == [1, 9] and bound:
        assert asked[0] == ("a", (1,), 2, 9)
