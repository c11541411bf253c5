"""Penalties that count tokens, exact for every row of a tree: each row counts the tokens of its own path.

SGLang's own speculative paths add what the committed tokens cost, and only the last token of each step counts.  Here a
request's committed tokens are counted on the device, and the tokens between the root and a row are added for that row,
so that a greedy answer with penalties is the one that decoding token by token gives.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from .tables import TreeTables


def penalized(request: Any) -> bool:
    """Whether what a request may say depends on what it has said."""
    sampling = request.sampling_params
    return (
        sampling.frequency_penalty != 0.0
        or sampling.presence_penalty != 0.0
        or sampling.repetition_penalty != 1.0
        or sampling.min_new_tokens > 0
    )


@dataclass
class Strengths:
    """The penalties of n requests, each [n, 1, 1] float32: frequency, presence, repetition."""

    frequency: torch.Tensor
    presence: torch.Tensor
    repetition: torch.Tensor

    @classmethod
    def of(cls, requests: list[Any], device: torch.device) -> Strengths:
        names = ("frequency_penalty", "presence_penalty", "repetition_penalty")
        values = [[float(getattr(req.sampling_params, name)) for req in requests] for name in names]
        table = _to_device(torch.tensor(values, dtype=torch.float32), device)
        return cls(*(row[:, None, None] for row in table))

    def apply(self, logits: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """logits and the number of times each token was said before, both [n, .., ..] -> penalized logits, float32.

        Additive penalties come first, as in SGLang's speculative sampling.
        """
        seen = counts > 0
        lowered = logits.float() - self.frequency * counts - self.presence * seen
        scaled = torch.where(lowered < 0, lowered * self.repetition, lowered / self.repetition)
        return torch.where(seen, scaled, lowered)


@dataclass
class _Counted:
    """How often one request has said each token, [V] float32, its newest verified token included."""

    counts: torch.Tensor
    generation: int


class PathPenalties:
    """Keeps the counts of the running requests that have penalties."""

    def __init__(self) -> None:
        self._known: dict[str, _Counted] = {}

    def apply(
        self, logits: torch.Tensor, requests: list[Any], tables: TreeTables, said_before: Callable[[Any], int]
    ) -> None:
        """Change logits [bs*T, V] in place; said_before: how many tokens a request new here said before its root."""
        active = [i for i, req in enumerate(requests) if penalized(req)]
        self._forget({requests[i].rid for i in active})
        if not active:
            return
        width, vocabulary = tables.width, logits.shape[1]
        asking = [requests[i] for i in active]
        picked = _to_device(torch.tensor(active), logits.device)
        trees = tables.tok[picked]
        counts = torch.stack([
            self._counts(req, said_before, trees[n, 0], vocabulary) for n, req in enumerate(asking)
        ])  # fmt: skip
        rows = logits.view(-1, width, vocabulary)
        mine = rows[picked]
        strengths = Strengths.of(asking, logits.device)
        tokens, extra = path_tokens(trees, tables.anc[picked])
        before = counts.gather(1, tokens.flatten(1)).view(tokens.shape)
        exact = strengths.apply(mine.gather(2, tokens), before + extra)
        result = strengths.apply(mine, counts[:, None]).scatter_(2, tokens, exact)
        said = counts.sum(1, keepdim=True) + tables.dep[picked]
        _hold_back_stops(result, asking, said)
        rows[picked] = result.to(rows.dtype)

    def note(self, requests: list[Any], out_tokens: torch.Tensor, commit_lens: torch.Tensor) -> None:
        """Count what a step produced: out_tokens [bs, block], of which the first commit_lens [bs] count."""
        for i, req in enumerate(requests):
            known = self._known.get(req.rid) if self._known else None
            if known is not None:
                produced = torch.arange(out_tokens.shape[1], device=out_tokens.device) < commit_lens[i]
                known.counts.scatter_add_(0, out_tokens[i], produced.float())

    def _counts(self, req: Any, said_before: Callable[[Any], int], root: torch.Tensor, vocabulary: int) -> torch.Tensor:
        known = self._known.get(req.rid)
        # A request that was retracted is prefilled again, which says a token that no step has counted.
        if known is None or known.generation != req.retraction_count:
            said = torch.tensor(list(req.output_ids)[: said_before(req)], dtype=torch.int64)
            counts = _to_device(torch.bincount(said, minlength=vocabulary).float(), root.device)
            counts.scatter_add_(0, root.view(1), torch.ones(1, device=root.device))
            known = self._known[req.rid] = _Counted(counts, req.retraction_count)
        return known.counts

    def _forget(self, running: set[str]) -> None:
        for rid in [rid for rid in self._known if rid not in running]:
            del self._known[rid]


def path_tokens(tok: torch.Tensor, anc: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """tok [n, T], anc [n, T, L] -> (tokens [n, T, L + 1] on each row's path below the root, how often each is there).

    Free places repeat the row's own token (at the root: its token, none below it), with its own count.
    """
    n, width, _ = anc.shape
    own = torch.arange(width, device=tok.device)[None, :, None].expand(n, -1, 1)
    rows = torch.cat([own, anc.long()], dim=2)
    below = rows > 0
    rows = torch.where(below, rows, own)
    tokens = tok.gather(1, rows.flatten(1)).view(rows.shape)
    extra = ((tokens[..., :, None] == tokens[..., None, :]) & below[..., None, :]).sum(-1)
    return tokens, extra.float()


def _hold_back_stops(logits: torch.Tensor, requests: list[Any], said: torch.Tensor) -> None:
    """-inf for stop tokens in the rows of requests that have not yet said enough; said [n, T] counts up to the row."""
    for n, req in enumerate(requests):
        least = req.sampling_params.min_new_tokens
        if least <= 0:
            continue
        tokenizer = req.tokenizer
        stops = {
            *(req.sampling_params.stop_token_ids or ()), *(req.eos_token_ids or ()),
            *(getattr(tokenizer, "additional_stop_token_ids", None) or ()), getattr(tokenizer, "eos_token_id", None),
        } - {None}  # fmt: skip
        ids = _to_device(torch.tensor(sorted(stops), dtype=torch.int64), logits.device)
        held = torch.where(said[n] < least, -torch.inf, 0.0)[:, None].expand(-1, len(ids))
        logits[n].scatter_add_(1, ids[None].expand(logits.shape[1], -1), held)


def _to_device(values: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Without waiting for the device."""
    if device.type != "cuda":
        return values.to(device)
    return values.pin_memory().to(device, non_blocking=True)
