"""What requests ask of the target's logits before a token is chosen from them, exact for every row of a tree."""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.layers.sampler import apply_custom_logit_processor

from .compat.base import Line
from .penalties import PathPenalties, penalized
from .tables import TreeTables


class RowLogits:
    """Custom processors, penalties, logit bias, grammar masks, in this order; and log-probabilities of what was said."""

    def __init__(self, line: Line) -> None:
        self.line = line
        self.penalties = PathPenalties()
        self._grammar_tree: Any = None

    def begin(self, batch: Any, tables: TreeTables) -> None:
        """Before the verify pass is queued: the tree starts on its way to the host, where grammars live."""
        self._grammar_tree = self.line.grammar_tree(tables) if batch.has_grammar else None

    def adjust(self, logits: torch.Tensor, batch: Any, tables: TreeTables, barrier: Any = None) -> None:
        """Change logits [bs * T, V] in place."""
        sampling, width = batch.sampling_info, tables.width
        if sampling is not None and sampling.has_custom_logit_processor:
            apply_custom_logit_processor(logits, sampling, num_tokens_in_batch=width)
        self.penalties.apply(logits, batch.reqs, tables, self._said_before)
        if sampling is not None and sampling.logit_bias is not None:
            rows = logits.view(-1, width, logits.shape[1])
            rows += sampling.logit_bias[:, None].to(rows.dtype)
        if self._grammar_tree is not None:
            mask = self.line.grammar_mask(batch, self._grammar_tree, logits.device, barrier)
            if mask is not None:
                mask.apply(logits)

    def note(self, batch: Any, logits_output: Any, chosen: torch.Tensor, walked: Any) -> None:
        """After the walk; chosen [bs, T] target tokens, walked = (path, commit_lens, out_tokens)."""
        path, commit_lens, out_tokens = walked
        if any(penalized(req) for req in batch.reqs):
            self.penalties.note(batch.reqs, out_tokens, commit_lens)
        if batch.return_logprob:
            bs, width = chosen.shape
            rows = path + torch.arange(bs, device=path.device)[:, None] * width
            self.line.add_logprobs(batch, logits_output, chosen.reshape(-1), rows)

    def _said_before(self, req: Any) -> int:
        """How many tokens a request had said before the newest one, in the first step after its prefill."""
        return self.line.committed_tokens(req) - len(req.origin_input_ids)
