"""SGLang 0.5.16: settings live on the server arguments, and the draft is built from a copy of them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, ClassVar

import torch

from .base import Line


class Line0516(Line):
    version = "0.5.16"
    hook_parameters: ClassVar[dict[str, tuple[str, ...] | None]] = {
        "sglang.srt.speculative.dflash_worker_v2:DFlashWorkerV2.forward_batch_generation": (
            "self", "batch", "on_publish",
        ),
        # Linear DFLASH of this line serves neither grammars nor log-probabilities, and SGLang refuses such requests.
        "sglang.srt.speculative.spec_utils:GrammarTree.from_device": None,
        "sglang.srt.speculative.spec_utils:build_grammar_vocab_mask": None,
        "sglang.srt.layers.logprob_processor:compute_spec_logprobs": None,
        "sglang.srt.mem_cache.kv_cache_configurator:get_req_to_token_extra_context_len": ("server_args",),
        "sglang.srt.layers.attention.hybrid_linear_attn_backend:HybridLinearAttnBackend"
        ".update_mamba_state_after_mtp_verify": (
            "self", "last_correct_step_indices", "mamba_track_indices", "mamba_steps_to_track", "model",
        ),
    }  # fmt: skip

    def watch_arguments(self, before_hybrid_check: Callable[[Any], None]) -> None:
        from sglang.srt.server_args import ServerArgs

        from ..patches import replace

        def wrap(original: Callable[..., None]) -> Callable[..., None]:
            def _handle_mamba_radix_cache(args: Any, *rest: Any, **more: Any) -> None:
                before_hybrid_check(args)
                original(args, *rest, **more)

            return _handle_mamba_radix_cache

        replace(ServerArgs, "_handle_mamba_radix_cache", wrap)

    def spec(self) -> Any:
        from sglang.srt.server_args import get_global_server_args

        return get_global_server_args()

    def seeded(self) -> bool:
        return bool(self.spec().enable_deterministic_inference)

    def draft_server_args(self, server_args: Any, block: int) -> Any:
        draft = copy.deepcopy(server_args)
        draft.override("ddtree.draft", speculative_num_draft_tokens=block, speculative_eagle_topk=1)
        return draft

    def draft_settings(self, block: int) -> AbstractContextManager[Any]:
        return nullcontext()

    @contextmanager
    def without_spec_reserve(self) -> Iterator[None]:
        args = self.spec()
        width = args.speculative_num_draft_tokens
        args.override("ddtree.state_pool", speculative_num_draft_tokens=0)
        try:
            yield
        finally:
            args.override("ddtree.state_pool", speculative_num_draft_tokens=width)

    def embedding_and_head(self, worker: Any) -> tuple[Callable[[torch.Tensor], torch.Tensor], Any]:
        model = worker.target_worker.model_runner.model
        return model.get_input_embeddings(), model.lm_head

    def embedding_scale(self, worker: Any) -> float:
        return 1.0

    def reserved_lengths(self, draft_input: Any) -> tuple[torch.Tensor | None, Any]:
        return draft_input.reserved_seq_lens_cpu, draft_input.reserved_seq_lens_sum

    def draft_context(self, worker: Any) -> AbstractContextManager[Any]:
        return nullcontext()

    def result_fields(self, target_output: Any) -> dict[str, Any]:
        return {}

    def committed_tokens(self, req: Any) -> int:
        return int(req.kv_committed_len)

    def track_grid(self, batch: Any) -> int:
        return int(self.spec().mamba_track_interval)

    def commit_by_node(self, worker: Any, batch: Any, **steps: Any) -> None:
        runner = worker.target_worker.model_runner
        runner.attn_backend.update_mamba_state_after_mtp_verify(model=runner.model, **steps)


LINE = Line0516()
