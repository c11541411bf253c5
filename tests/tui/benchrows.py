"""Benchmark rows with known ratios, made with the product's own types."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.bench.rows import LINEAR, TREE, Finding, RequestFacts, Row

RATIOS = {16: 1.04, 32: 1.11, 64: 0.97}
ACCEPT = {16: 4.9, 32: 5.4, 64: 5.9}
PAIRS = 7


def rows() -> Iterator[Row]:
    for budget, ratio in RATIOS.items():
        for pair in range(PAIRS):
            wobble = 1 + 0.012 * ((pair * 7 + budget) % 5 - 2)
            findings = (Finding("repetition-loop", "the output repeats itself"),) if (budget, pair) == (64, 3) else ()
            yield _row(LINEAR, budget, pair, 2.0, 4.3, ())
            yield _row(TREE, budget, pair, 2.0 / (ratio * wobble), ACCEPT[budget], findings)


def _row(arm: str, budget: int, pair: int, wall_s: float, accept: float, findings: tuple[Finding, ...]) -> Row:
    tokens = 384
    steps = round((tokens - 1) / accept)
    request = RequestFacts(
        prompt_id=f"p{pair}", asked_tokens=tokens, tokens=tokens, prompt_tokens=120, cached_tokens=0, status=200,
        error="", finish_reason="length", terminated=True, ttft_s=0.05 + 0.004 * pair, itl_s=wall_s / tokens,
        e2e_s=wall_s, verify_steps=steps, correct_drafts=tokens - 1 - steps, ids_sha=f"{pair:016x}", loop_share=0.0,
    )  # fmt: skip
    return Row(
        arm=arm, budget=budget, concurrency=1, pair=pair, block=2 * pair + (arm == TREE), requests=(request,),
        wall_s=wall_s, max_tokens=tokens, prompt_hashes=(f"h{pair}",), findings=findings,
        measured_at="2026-01-02T03:10:00Z",
    )  # fmt: skip
