"""SGLang 0.5.23: slots travel as a KVLocPlan, the draft has a layout of its own, logits may be sharded."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, ClassVar

import torch

from .base import Line


class Line0523(Line):
    version = "0.5.23"
    hook_parameters: ClassVar[dict[str, tuple[str, ...] | None]] = {
        "sglang.srt.speculative.dflash_worker_v2:DFlashWorkerV2.__init__": (
            "self", "server_args", "gpu_id", "nccl_port", "target_worker",
        ),
    }  # fmt: skip

    def draft_context(self, worker: Any) -> AbstractContextManager[Any]:
        from sglang.srt.speculative.dflash_worker_v2 import draft_tp_context

        return draft_tp_context(worker.draft_parallel_layout)

    def kv_plan(self, worker: Any, batch: Any, loc: torch.Tensor, draft_input: Any) -> Any:
        host = batch.seq_lens_cpu if batch.seq_lens_cpu is not None else draft_input.nxt_kv_lens_cpu
        return worker.target_worker.model_runner.kv_index_translator.plan(
            req_pool_indices=batch.req_pool_indices,
            seq_lens=batch.seq_lens,
            seq_lens_cpu=host,
            write_virtual=loc.reshape(-1),
            read_extent=loc.shape[1],
        )

    def bind_draft(self, worker: Any, plan: Any, forward_batch: Any, block: int) -> None:
        plan.bind(forward_batch, worker.draft_model_runner.kv_index_translator, cols=slice(0, block))

    def bind_verify(self, plan: Any, verify_input: Any) -> None:
        verify_input.kv_loc_plan = plan

    def draft_slots(self, worker: Any, plan: Any, loc_block: torch.Tensor) -> torch.Tensor:
        translator = worker.draft_model_runner.kv_index_translator
        return plan.write_ids(translator, cols=slice(0, loc_block.shape[1])).view(loc_block.shape)

    def full_logits(self, worker: Any, logits_output: Any) -> torch.Tensor:
        processor, logits = worker._target_logits_processor, logits_output.next_token_logits
        if processor is not None and processor.is_deferred_shard(logits):
            logits_output.next_token_logits = processor.finish_deferred_gather(logits)
        return logits_output.next_token_logits


LINE = Line0523()
