"""Acceptance of the chain and of trees of every budget, from the target's own greedy text and draft passes.

At temperature 0 a tree accepts exactly the longest prefix of the target's greedy continuation that lies in it,
so no tree engine is needed to know what one would accept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch

from .baseline import AnchorData, PromptRecord
from .draft import DraftModel
from .target import TargetModel
from .tree import Entry, TreePolicy, best_first, chain_length, entry_numbers

LOGIT_BYTES = 256 << 20
UNKNOWN_SLACK = 99.0


@dataclass(frozen=True)
class Proposals:
    """A draft's candidates behind each anchor: log_probs, ids [anchors, block - 1, k], best first.

    ``next_best``, ``wanted`` [anchors, block - 1]: log-probability of the best token that is no candidate, and of the
    target's own.
    """

    log_probs: np.ndarray
    ids: np.ndarray
    next_best: np.ndarray
    wanted: np.ndarray


def continuation_length(new_tokens: int, block: int) -> int:
    """Greedy tokens that must be known: the last step may reach beyond the asked-for text."""
    return new_tokens + block


@torch.no_grad()
def propose(
    target: TargetModel,
    draft: DraftModel,
    context: torch.Tensor,
    tokens: Sequence[int],
    positions: Sequence[int],
    k: int,
    continuations: Sequence[Sequence[int]],
) -> Proposals:
    """Run the draft for blocks whose newest token is ``tokens[i]`` at position ``positions[i]``.

    ``continuations[i]`` is what the target itself writes behind it.
    """
    width = draft.config.block_size
    chunk = max(1, LOGIT_BYTES // (4 * (width - 1) * target.vocab))
    parts = []
    for start in range(0, len(tokens), chunk):
        block = torch.full((len(tokens[start : start + chunk]), width), draft.config.mask_token_id)
        block[:, 0] = torch.tensor(list(tokens[start : start + chunk]))
        anchors = torch.tensor(list(positions[start : start + chunk]), device=context.device)
        hidden = draft.blocks(context, target.embed(block).to(context.dtype), anchors)
        logits = target.head(hidden[:, 1:])
        spread = logits - logits.logsumexp(-1, keepdim=True)
        own = torch.tensor(list(continuations[start : start + chunk]), device=spread.device)
        best, indices = torch.topk(spread, min(k + 1, spread.shape[-1]), dim=-1)
        beyond = best[..., k] if best.shape[-1] > k else torch.full_like(best[..., 0], -torch.inf)
        found = (best[..., :k], indices[..., :k], beyond, spread.gather(-1, own[..., None])[..., 0])
        parts.append([one.cpu().numpy() for one in found])
    return Proposals(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def measure(
    target: TargetModel,
    draft: DraftModel,
    prompt_id: str,
    category: str,
    prompt: Sequence[int],
    greedy: Sequence[int],
    new_tokens: int,
    budgets: Sequence[int],
    policy: TreePolicy,
) -> PromptRecord:
    """Everything a baseline says about one prompt; ``greedy`` is longer than ``new_tokens`` by the block."""
    ids = [*prompt, *greedy]
    features, logits = target.read(ids, draft.config.taps, len(prompt) - 1)
    anchors = range(new_tokens)
    context = draft.context(features.to(next(iter(draft.weights.values())).dtype))
    continuations = [list(greedy[j + 1 : j + draft.config.block_size]) for j in anchors]
    positions = [len(prompt) + j for j in anchors]
    proposals = propose(target, draft, context, greedy[:new_tokens], positions, policy.k, continuations)
    data = _anchor_data(proposals, continuations, budgets, policy)
    return PromptRecord(
        id=prompt_id,
        category=category,
        prompt_ids=list(prompt),
        greedy_ids=list(greedy[:new_tokens]),
        margins=_margins(logits[:-1], greedy),
        anchors=data,
        accept={mode: data.steps(mode, new_tokens) for mode in ("chain", *map(str, budgets))},
    )


def _margins(logits: torch.Tensor, greedy: Sequence[int]) -> list[float]:
    """How far each greedy token's logit is above the best other one; negative where one pass disagrees."""
    chosen = torch.tensor(list(greedy), device=logits.device)[:, None]
    mine = logits.gather(1, chosen)[:, 0]
    other = logits.scatter(1, chosen, float("-inf")).max(-1).values
    return [round(value, 5) for value in (mine - other).tolist()]


def _anchor_data(
    proposals: Proposals, continuations: list[list[int]], budgets: Sequence[int], policy: TreePolicy
) -> AnchorData:
    data = AnchorData([], [], [], [], {str(budget): [] for budget in budgets}, [], [])
    for row, wanted in enumerate(continuations):
        log_probs, ids = proposals.log_probs[row], proposals.ids[row]
        entries = best_first(log_probs, max(budgets, default=1), policy)
        path = entry_numbers(entries, ids, wanted)
        data.entered.append(path)
        data.scores.append([round(entries[number].score, 5) for number in path])
        data.chain.append(1 + chain_length(ids[:, 0].tolist(), wanted))
        data.chain_slack.append(_chain_slack(log_probs, ids, wanted, data.chain[-1] - 1))
        data.edges.append(_edges(proposals, row, wanted[: len(path) + 1]))
        data.missed.append(_missed(entries[path[-1] if path else 0], proposals.wanted[row], policy))
        lowest = list(accumulate((entry.score for entry in entries), min))
        for budget in budgets:
            data.cutoffs[str(budget)].append(round(lowest[min(budget, len(entries) - 1)], 5))
    return data


def _edges(proposals: Proposals, row: int, wanted: list[int]) -> list[float]:
    """By how much each token was a candidate, or (negative) was none."""
    found = []
    for depth, token in enumerate(wanted):
        candidate = token in proposals.ids[row, depth]
        rival = proposals.next_best[row, depth] if candidate else proposals.log_probs[row, depth, -1]
        found.append(round(min(UNKNOWN_SLACK, float(proposals.wanted[row, depth] - rival)), 5))
    return found


def _missed(last: Entry, wanted: np.ndarray, policy: TreePolicy) -> float | None:
    """The score that the token behind the path's last node would have; None where the block ends there."""
    if last.depth == len(wanted):
        return None
    penalty = 0.0 if last.on_spine else policy.off_spine_penalty
    return round(last.score + float(wanted[last.depth]) - penalty, 5)


def _chain_slack(log_probs: np.ndarray, ids: np.ndarray, wanted: list[int], confirmed: int) -> float:
    """The smallest log-probability gap that decided how long the chain was accepted."""
    gaps = [float(row[0] - row[1]) for row in log_probs[:confirmed] if len(row) > 1]
    if confirmed < len(wanted):
        ranks = np.flatnonzero(ids[confirmed] == wanted[confirmed])
        if len(ranks):
            gaps.append(float(log_probs[confirmed][0] - log_probs[confirmed][ranks[0]]))
    return round(min(gaps, default=UNKNOWN_SLACK), 5)
