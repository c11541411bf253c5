"""The pairs of one budget at one load, boiled down to a ratio with its interval and where that stands."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from orchestrator.bench import stats
from orchestrator.bench.rows import LINEAR, TREE, Row
from orchestrator.bench.validity import SET_TOO_SMALL
from orchestrator.openai.spec_metrics import SpecCounts

MIN_PAIRS = 10
MIN_BLOCKS = 4
MIN_PROMPTS = 4
ALPHA = 0.05
HOPELESS_PAIRS = 6
OWN_FAULTS = ("request-failed", "output-short", "no-speculation", "not-lossless")


class Standing(StrEnum):
    """What the pairs of one budget show."""

    BETTER = "better"
    NOT_BETTER = "not better"
    OPEN = "open"
    NO_DATA = "no valid pair"


@dataclass(frozen=True)
class ArmSummary:
    """One budget against linear at one concurrency. ratio = tree speed / linear speed, median over pairs.

    ci95: bootstrap interval of that median. ci_decision: the same, widened for the number of budgets tried.
    noise_sd: standard deviation of the log ratios. *_tokens_per_step: delivered tokens per verify step, pooled over
    the rows, with a bootstrap interval over rows (*_ci95).
    findings: rule id -> how many rows broke it. faults: rule id -> in how many pairs the tree alone broke it.
    """

    budget: int
    concurrency: int
    n: int
    invalid_pairs: int
    blocks: int
    prompts: int
    ratio: float | None
    ci95: tuple[float, float] | None
    ci_decision: tuple[float, float] | None
    sign_p: float | None
    noise_sd: float | None
    linear_tok_s: float | None
    tree_tok_s: float | None
    linear_tokens_per_step: float | None
    tree_tokens_per_step: float | None
    chain_tokens_per_step: float | None
    linear_ms_per_step: float | None
    tree_ms_per_step: float | None
    standing: Standing
    pairs_needed: int | None
    reason: str
    ratios: tuple[float, ...] = ()
    findings: dict[str, int] = field(default_factory=dict)
    linear_tokens_per_step_ci95: tuple[float, float] | None = None
    tree_tokens_per_step_ci95: tuple[float, float] | None = None
    faults: dict[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Pair:
    """Two adjacent rows of the same prompts."""

    linear: Row
    tree: Row

    @property
    def valid(self) -> bool:
        return self.linear.valid and self.tree.valid

    @property
    def ratio(self) -> float:
        return self.tree.tok_s / self.linear.tok_s if self.linear.tok_s > 0 else 0.0

    @property
    def faults(self) -> tuple[str, ...]:
        """Rules that the tree's row broke and the linear one did not, where nothing but the tree can be why.

        Loops, a full context, clocks and neighbours are not among them, or strike both rows: such pairs are replaced.
        A single `not-lossless` counts, since the rule leaves out what parts at a tie of the model, but not beside a
        linear text that is cut off itself; and of a server that tells neither steps nor token ids nobody can say
        whether a text that differs or ends early is wrong.
        """
        linear, tree = ({f.rule for f in row.findings} for row in (self.linear, self.tree))
        excused = set(linear)
        if linear & {"request-failed", "output-short"}:
            excused.add("not-lossless")
        if not self.tree.speculative and all(r.received is None for r in self.tree.requests):
            excused |= {"output-short", "not-lossless"}
        return tuple(rule for rule in OWN_FAULTS if rule in tree - excused)


def pairs_of(rows: Iterable[Row]) -> list[Pair]:
    """Each tree row with the linear row of its pair; a linear row with budget 0 serves every budget."""
    table = {row.key: row for row in rows}
    pairs = []
    for row in table.values():
        if row.arm == TREE:
            own = table.get((row.concurrency, row.budget, row.pair, LINEAR))
            linear = own or table.get((row.concurrency, 0, row.pair, LINEAR))
            if linear is not None:
                pairs.append(Pair(linear, row))
    return sorted(pairs, key=lambda p: p.tree.key)


def hopeless(pairs: Sequence[Pair]) -> bool:
    """Whether more pairs of this budget can be spared: it is slower than linear beyond doubt already."""
    ratios = [p.ratio for p in pairs if p.valid]
    if len(ratios) < HOPELESS_PAIRS or stats.sign_test(ratios) > ALPHA:
        return False
    return stats.bootstrap_ci(ratios)[1] < 1.0


def summarise_arm(pairs: Sequence[Pair], margin: float, budgets_tried: int, min_pairs: int = MIN_PAIRS) -> ArmSummary:
    """All pairs of one budget at one concurrency; `pairs` must not be empty."""
    valid = [p for p in pairs if p.valid]
    findings: dict[str, int] = {}
    for row in {id(r): r for p in pairs for r in (p.linear, p.tree)}.values():
        for finding in row.findings:
            findings[finding.rule] = findings.get(finding.rule, 0) + 1
    ratios = tuple(p.ratio for p in valid)
    linear, tree = [p.linear for p in valid], [p.tree for p in valid]
    counts = {LINEAR: _counts(linear), TREE: _counts(tree)}
    blocks = len({r.block for r in linear + tree})
    prompts = len({h for r in tree for h in r.prompt_hashes})
    if valid and prompts < MIN_PROMPTS:
        findings[SET_TOO_SMALL] = 1
    alpha = ALPHA / max(1, budgets_tried)
    ci_decision = stats.bootstrap_ci(ratios, 1 - alpha) if ratios else None
    sign_p = stats.sign_test(ratios, 1 + margin) if ratios else None
    faults = _faults(pairs)
    standing, reason = _standing(
        ratios, ci_decision, sign_p, 1 + margin, alpha, min_pairs, blocks, prompts, hopeless(pairs)
    )
    # With a fault of its own a tree can be slower, never better.
    if faults and standing in (Standing.BETTER, Standing.OPEN):
        standing, reason = Standing.OPEN, fault_words(faults, len(pairs))
    if standing is Standing.BETTER and "not-lossless" in findings:
        reason += f"; left out: {findings['not-lossless']} pairs with another text that can't be held against the tree"
    decidable = standing is Standing.OPEN and not faults
    needed = stats.pairs_needed(ratios, 1 + margin, alpha) if decidable else None
    if needed is not None:
        needed = max(needed, min_pairs, len(ratios) + 2)
    return ArmSummary(
        budget=pairs[0].tree.budget,
        concurrency=pairs[0].tree.concurrency,
        n=len(valid),
        invalid_pairs=len(pairs) - len(valid),
        blocks=blocks,
        prompts=prompts,
        ratio=stats.median(ratios) if ratios else None,
        ci95=stats.bootstrap_ci(ratios) if ratios else None,
        ci_decision=ci_decision,
        sign_p=sign_p,
        noise_sd=stats.noise_sd(ratios) if ratios else None,
        linear_tok_s=stats.median([r.tok_s for r in linear]) if linear else None,
        tree_tok_s=stats.median([r.tok_s for r in tree]) if tree else None,
        linear_tokens_per_step=counts[LINEAR].tokens_per_step,
        tree_tokens_per_step=counts[TREE].tokens_per_step,
        chain_tokens_per_step=_chain(tree),
        linear_ms_per_step=_ms_per_step(linear),
        tree_ms_per_step=_ms_per_step(tree),
        standing=standing,
        pairs_needed=needed,
        reason=reason,
        ratios=ratios,
        findings=findings,
        linear_tokens_per_step_ci95=_tokens_per_step_ci(linear),
        tree_tokens_per_step_ci95=_tokens_per_step_ci(tree),
        faults=faults,
    )


def _faults(pairs: Sequence[Pair]) -> dict[str, int]:
    found = [rule for pair in pairs for rule in pair.faults]
    return {rule: found.count(rule) for rule in OWN_FAULTS if rule in found}


def fault_words(faults: Mapping[str, int], pairs: int) -> str:
    """Which rules the tree alone broke, and how often; "" for none."""
    told = ", ".join(f"{rule} in {times} of {pairs} pairs" for rule, times in faults.items())
    return f"the tree's own fault is {told}" if told else ""


def _counts(rows: Sequence[Row]) -> SpecCounts:
    return SpecCounts.total([r.counts for r in rows])


def _tokens_per_step_ci(rows: Sequence[Row]) -> tuple[float, float] | None:
    counts = [row.counts for row in rows if row.counts.verify_steps]
    if not counts:
        return None
    return stats.bootstrap_pooled_ci([c.decoded for c in counts], [c.verify_steps for c in counts])


def _chain(rows: Sequence[Row]) -> float | None:
    """The rows' chain length, weighted by their steps."""
    known = [(r.chain_accept_length, r.counts.verify_steps) for r in rows if r.chain_accept_length is not None]
    steps = sum(n for _, n in known)
    return sum(length * n for length, n in known) / steps if steps else None


def _ms_per_step(rows: Sequence[Row]) -> float | None:
    """Mean time of a verify step: decode time (first to last token) of all requests over their steps."""
    steps = sum(r.verify_steps for row in rows for r in row.requests)
    busy = sum((r.itl_s or 0.0) * max(0, (r.tokens or 0) - 1) for row in rows for r in row.requests)
    return busy / steps * 1e3 if steps else None


def _standing(
    ratios: Sequence[float],
    ci: tuple[float, float] | None,
    sign_p: float | None,
    threshold: float,
    alpha: float,
    min_pairs: int,
    blocks: int,
    prompts: int,
    stopped: bool,
) -> tuple[Standing, str]:
    """Where one budget stands by its speed, and why, in one clause."""
    if ci is None or sign_p is None:
        return Standing.NO_DATA, "no valid pair"
    if stopped:
        return Standing.NOT_BETTER, f"slower than linear in {sum(r < 1 for r in ratios)} of {len(ratios)} pairs"
    if len(ratios) < min_pairs:
        return Standing.OPEN, f"only {len(ratios)} of {min_pairs} valid pairs"
    if blocks < MIN_BLOCKS:
        return Standing.OPEN, f"only {blocks} of {MIN_BLOCKS} blocks"
    if prompts < MIN_PROMPTS:
        return Standing.OPEN, f"prompt set too small for the claim: {prompts} of {MIN_PROMPTS} different prompts"
    if ci[0] > threshold and sign_p <= alpha:
        return Standing.BETTER, f"its interval lies above {threshold:.3f}"
    if ci[1] < threshold:
        return Standing.NOT_BETTER, f"its interval lies below {threshold:.3f}"
    if ci[0] > threshold:
        wins = sum(r > threshold for r in ratios)
        return (
            Standing.OPEN,
            f"above {threshold:.3f} in only {wins} of {len(ratios)} pairs (sign test p = {sign_p:.3f})",
        )
    return Standing.OPEN, f"its interval {ci[0]:.3f}–{ci[1]:.3f} (widened for all budgets tried) holds {threshold:.3f}"
