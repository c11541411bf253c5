"""What differs between SGLang lines, with the behaviour of 0.5.20 as the default."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import torch

from ..tables import TreeTables


class Line:
    """Adapter to one SGLang line.  Imports of sglang stay inside methods: the class loads without it."""

    version = "0.5.20"
    # Parameters a hook relies on, where they differ from hooks.HOOKS; None: this line has no such function.
    hook_parameters: ClassVar[dict[str, tuple[str, ...] | None]] = {}

    # -- arguments -----------------------------------------------------------------------------------------
    def watch_arguments(self, before_hybrid_check: Callable[[Any], None]) -> None:
        """Call ``before_hybrid_check(server_args)`` before SGLang compares a hybrid's arguments with T.

        Lines that run on a GPU need it where that is earlier than the algorithm is asked; the others never compare.
        """

    def spec(self) -> Any:
        """The speculative settings in force in this process."""
        from sglang.srt.runtime_context import get_spec

        return get_spec()

    def block_size(self) -> int:
        return int(self.spec().speculative_dflash_block_size)

    def draft_server_args(self, server_args: Any, block: int) -> Any:
        """The arguments to build the draft worker from."""
        return server_args

    def draft_settings(self, block: int) -> AbstractContextManager[Any]:
        """Within it everything the draft builds sees a chain of ``block`` tokens."""
        return self.spec().override(speculative_num_draft_tokens=block, speculative_eagle_topk=1)

    def without_spec_reserve(self) -> AbstractContextManager[Any]:
        """Within it the state pool reserves nothing for draft tokens."""
        return self.spec().override(speculative_num_draft_tokens=0)

    def seeded(self) -> bool:
        """Whether requests are sampled with their seeds in this server."""
        return False  # DFLASH is greedy on the devices that the other lines run on

    # -- one decode step -----------------------------------------------------------------------------------
    def embedding_and_head(self, worker: Any) -> tuple[Callable[[torch.Tensor], torch.Tensor], Any]:
        """The target's embedding of the draft block, and its output head."""
        from sglang.srt.lora.layers import unwrap_lora_layer
        from sglang.srt.speculative.dflash_worker_v2 import _resolve_dflash_embedding_module

        model = worker.target_worker.model_runner.model
        return unwrap_lora_layer(_resolve_dflash_embedding_module(worker.draft_model, model)), unwrap_lora_layer(
            model.lm_head
        )

    def embedding_scale(self, worker: Any) -> float:
        return float(worker._noise_embed_scale)

    def reserved_lengths(self, draft_input: Any) -> tuple[torch.Tensor | None, Any]:
        """Upper bounds of the sequence lengths on the host and their sum, (None, None) without them."""
        return draft_input.nxt_kv_lens_cpu, draft_input.nxt_kv_lens_sum

    def draft_context(self, worker: Any) -> AbstractContextManager[Any]:
        return worker.draft_tp_context(worker.draft_model_runner.tp_group)

    def kv_plan(self, worker: Any, batch: Any, loc: torch.Tensor, draft_input: Any) -> Any:
        """The plan of this step's KV slots (loc [bs, T]); None on lines that have none."""
        return None

    def bind_draft(self, worker: Any, plan: Any, forward_batch: Any, block: int) -> None:
        """Give the draft's forward its columns of the plan."""

    def bind_verify(self, plan: Any, verify_input: Any) -> None:
        """Give the target's verify pass the plan."""

    def draft_slots(self, worker: Any, plan: Any, loc_block: torch.Tensor) -> torch.Tensor:
        """Slots of the block in the draft's own pool, [bs, block]."""
        return loc_block

    def full_logits(self, worker: Any, logits_output: Any) -> torch.Tensor:
        """Target logits [bs * T, V]."""
        return logits_output.next_token_logits

    def committed_tokens(self, req: Any) -> int:
        """Tokens of a request whose KV was written when the scheduler last looked."""
        return int(req.kv.kv_committed_len)

    def grammar_tree(self, tables: TreeTables) -> Any:
        """The tree as SGLang's grammars walk it; starts the copy to the host."""
        from sglang.srt.speculative.spec_utils import GrammarTree

        return GrammarTree.from_device(tables.first_child, tables.next_sibling, tables.tok)

    def grammar_mask(self, batch: Any, tree: Any, device: torch.device, barrier: Any) -> Any:
        """What the requests' grammars allow after every row; None where no request has one."""
        from sglang.srt.speculative.spec_utils import build_grammar_vocab_mask

        return build_grammar_vocab_mask(
            reqs=batch.reqs, tree=tree, sampling_info=batch.sampling_info, device=device, barrier=barrier
        )

    def add_logprobs(self, batch: Any, logits_output: Any, chosen: torch.Tensor, rows: torch.Tensor) -> None:
        """Log-probabilities of the accepted tokens, from rows [bs, block] of the target's logits, into its output."""
        from sglang.srt.layers.logprob_processor import compute_spec_logprobs

        compute_spec_logprobs(batch, logits_output, chosen, accept_index=rows)

    def result_fields(self, target_output: Any) -> dict[str, Any]:
        """Fields of GenerationBatchResult that only pass through from the target's output."""
        return {
            "routed_experts_output": target_output.routed_experts_output,
            "indexer_topk_output": target_output.indexer_topk_output,
        }

    # -- graphs ---------------------------------------------------------------------------------------------
    def capture_graphs(self, runner: Any, rows: int | None) -> Any:
        """One more decode graph runner for a model runner that has one: of ``rows`` tokens per request (None: its own).

        The attention backend keeps the buffers of the first capture, so that the graphs which use them stay valid.
        """
        from sglang.srt.model_executor.runner.decode_cuda_graph_runner import DecodeCudaGraphRunner

        backend = runner.attn_backend
        backend.init_cuda_graph_state = lambda *args, **kwargs: None
        try:
            return DecodeCudaGraphRunner(runner, attn_backend=backend, speculative_num_draft_tokens=rows)
        finally:
            del backend.init_cuda_graph_state

    # -- hybrids -------------------------------------------------------------------------------------------
    def track_grid(self, batch: Any) -> int:
        """Every how many tokens the radix cache wants a copy of the recurrent state."""
        from sglang.srt.runtime_context import mamba_track_grid

        return int(mamba_track_grid(batch.tree_cache.page_size))

    def commit_by_node(self, worker: Any, batch: Any, **steps: Any) -> None:
        """SGLang's own commit from per-node states."""
        runner = worker.target_worker.model_runner
        runner.attn_backend.update_mamba_state_after_mtp_verify(
            model=runner.model, req_pool_indices=batch.req_pool_indices, **steps
        )

    # -- patches -------------------------------------------------------------------------------------------
    def wrap_extra_context(self, original: Callable[..., int], extra: Callable[[], int]) -> Callable[..., int]:
        """``get_req_to_token_extra_context_len`` with at least ``extra()`` columns beyond the context."""

        def get_req_to_token_extra_context_len(*args: Any) -> int:
            return max(original(*args), extra())

        return get_req_to_token_extra_context_len
