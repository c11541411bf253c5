"""Whether two greedy outputs are the same text: equal ids, or parted where the reference itself is undecided.

A verify pass of another width adds up in another order. In bfloat16 that turns the order of two tokens that are as good as
equally likely, so there a difference proves nothing; everything after it is another text for both arms.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from orchestrator.bench.prompts import Prompt

Gap = Callable[[Prompt, Sequence[int], int, int], float | None]


def first_difference(wanted: Sequence[int], got: Sequence[int]) -> int | None:
    """Index of the first token in which the outputs differ; None for equal ones."""
    if list(wanted) == list(got):
        return None
    pairs = zip(wanted, got, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(wanted), len(got)))


def ties(
    gap: Gap, group: Sequence[Prompt], wanted: Sequence[Sequence[int]], got: Sequence[Sequence[int]], bound: float
) -> int | None:
    """How many outputs part at a tie of the reference; None when one parts where it is no tie, or is shorter.

    gap(prompt, prefix, a, b): by how many nats the reference prefers token a to b after prompt and prefix (None: not
    told). bound: the largest gap that counts as a tie; 0 = every difference counts.
    """
    found = 0
    for prompt, mine, theirs in zip(group, wanted, got, strict=True):
        at = first_difference(mine, theirs)
        if at is None:
            continue
        if bound <= 0 or at >= min(len(mine), len(theirs)):
            return None
        preferred = gap(prompt, mine[:at], mine[at], theirs[at])
        if preferred is None or abs(preferred) > bound:
            return None
        found += 1
    return found
