"""DDTreeWorker: linear DFLASH's worker with a tree in its decode step.

Prefill, draft KV injection, memory pools and the scheduler's result format are inherited; a step is
slots -> draft -> tree -> verify -> walk -> publish -> compact KV -> commit states -> draft KV.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from sglang.kernels.ops.speculative.cache_locs import assign_extend_cache_locs_func
from sglang.srt.distributed import get_tp_group
from sglang.srt.managers.scheduler import GenerationBatchResult
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardBatch, ForwardMode
from sglang.srt.speculative.dflash_worker_v2 import DFlashWorkerV2
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

from . import compat, ops
from .config import DDTreeConfig
from .entry_order import entry_order
from .hybrid import StateFreeVerify, tracked_steps
from .metrics import Metrics, PrometheusExport, Trace
from .row_logits import RowLogits
from .tables import TreeTables
from .verify_input import DDTreeVerifyInput
from .width_policy import control_for
from .widths import Width

logger = logging.getLogger(__name__)
NO_TREE = "draft_nan"  # the reason under which steps are counted whose draft had nothing but NaN to offer


class DDTreeWorker(DFlashWorkerV2):
    """Speculative worker of ``--speculative-algorithm DDTREE``."""

    def __init__(self, server_args: Any, *args: Any, **kwargs: Any) -> None:
        self.line = compat.line()
        block = self.line.block_size()
        self.config = DDTreeConfig.read(block, int(self.line.spec().speculative_num_draft_tokens))
        self.metrics = Metrics(self.config.widths)
        self.widths = control_for(self.config)
        self.row_logits = RowLogits(self.line)
        with self.line.draft_settings(block):
            super().__init__(self.line.draft_server_args(server_args, block), *args, **kwargs)
        self.server_args = server_args
        self._refuse_unknown_drafts()
        self.state_free: StateFreeVerify | None = None
        self.group = get_tp_group()
        first = int(self.group.rank_in_group) == 0  # the ranks of one server take the same steps: one of them tells
        self._trace = Trace(self.config.trace, self.config.trace_bytes) if self.config.trace and first else None
        self._prometheus = PrometheusExport() if getattr(server_args, "enable_metrics", False) and first else None
        logger.info("DDTREE: %s", self.config)

    def _refuse_unknown_drafts(self) -> None:
        if self.block_size != self.config.block:
            raise ValueError(f"The draft was built with block {self.block_size}, not {self.config.block}.")
        heads = ("_is_domino", "selector", "lilicorr")
        special = [name for name in heads if getattr(self, name, None)]
        if special:
            raise ValueError(
                f"DDTREE needs a plain DFlash draft, and this one has a head of its own ({special[0].strip('_')}): "
                "serve it with DFLASH."
            )
        if self.use_compact_draft_cache:
            raise ValueError("DDTREE does not support a draft window yet: drop --speculative-draft-window-size.")

    def init_attention_backends(self) -> None:
        with self.line.draft_settings(self.config.block):
            super().init_attention_backends()
        if self._need_mamba_verify_commit and self.config.state_free:
            self.state_free = StateFreeVerify(self._gdn_backend())

    def _gdn_backend(self) -> Any:
        from sglang.srt.layers.attention.linear.gdn_backend import GDNAttnBackend

        backend = self.target_worker.model_runner.attn_backend
        linear = getattr(backend, "linear_attn_backend", None)
        if not isinstance(linear, GDNAttnBackend):
            raise ValueError(
                f"DDTREE supports hybrids with Gated DeltaNet only, and this target uses {type(linear).__name__}."
            )
        return backend

    def init_cuda_graphs(self) -> None:
        with self.line.draft_settings(self.config.block):
            super().init_cuda_graphs()

    def _maybe_build_draft_sampler(self) -> None:
        return None  # the stock sampler keeps the arg-max only

    def forward_batch_generation(self, batch: Any, on_publish: Any = None, **kwargs: Any) -> Any:
        mode = batch.forward_mode
        if mode.is_extend() or batch.is_extend_in_batch or mode.is_idle() or batch.spec_info is None:
            self.widths.pause()
            return super().forward_batch_generation(batch, on_publish=on_publish, **kwargs)
        return self._decode(batch, on_publish, kwargs.get("grammar_barrier"))

    # -- the decode step ---------------------------------------------------------------------------------
    def _decode(self, batch: Any, on_publish: Any, barrier: Any = None) -> Any:
        self.metrics.start_step()
        self._note_sampling(batch)
        draft_input, prefix = batch.spec_info, batch.seq_lens
        chosen = self.widths.choose(len(prefix))
        width = chosen.rows
        loc = self._row_slots(batch, width)
        plan = self.line.kv_plan(self, batch, loc, draft_input)
        hidden, head, positions = self._draft(batch, draft_input, loc, plan)
        self.metrics.stage_done("draft")
        tables = self._tree(hidden, head, draft_input.bonus_tokens.view(-1), chosen)
        if empty := int((tables.count == 1).sum()):
            self.metrics.fallbacks[NO_TREE] += empty
        self.metrics.stage_done("tree")
        self.row_logits.begin(batch, tables)
        output = self._verify(batch, draft_input, tables, loc, plan)
        logits = self.line.full_logits(self, output.logits_output)
        self.row_logits.adjust(logits, batch, tables, barrier)
        self.metrics.stage_done("verify")
        target_tok = torch.argmax(logits, dim=-1).view(len(prefix), width)
        path, commit_lens, bonus, out_tokens = ops.walk(target_tok, tables)
        self.row_logits.note(batch, output.logits_output, target_tok, (path, commit_lens, out_tokens))
        new_seq_lens = prefix + commit_lens.to(prefix.dtype)
        if on_publish is not None:
            on_publish(new_seq_lens)
        self.metrics.stage_done("walk")
        moved = ops.compact_kv(self._kv_buffers(), loc, path, commit_lens)
        self._commit_states(batch, prefix, new_seq_lens, path, commit_lens)
        self._inject_draft_kv(output.logits_output, loc, plan, positions, path, commit_lens)
        self.metrics.stage_done("commit")
        self._record(batch, chosen, tables, path, commit_lens, moved, logits)
        return GenerationBatchResult(
            logits_output=output.logits_output,
            next_token_ids=out_tokens.reshape(-1),
            accept_lens=commit_lens,
            can_run_cuda_graph=output.can_run_cuda_graph,
            next_draft_input=self._make_next_draft_input_decode(bonus_tokens=bonus, new_seq_lens=new_seq_lens),
            speculative_num_draft_tokens=self.config.block,
            new_seq_lens=new_seq_lens,
            **self.line.result_fields(output),
        )

    def _note_sampling(self, batch: Any) -> None:
        """Sampling falls back to the arg-max, with the warning linear DFLASH gives on such a device."""
        info = batch.sampling_info
        if info is not None and not info.is_all_greedy:
            self._validate_phase1_sampling_support(batch)
            self.metrics.fallbacks["sampling"] += 1

    def _row_slots(self, batch: Any, width: int) -> torch.Tensor:
        """KV slots of the T rows, [bs, T]; the first block of them is also where the accepted path ends up."""
        bs, prefix = len(batch.seq_lens), batch.seq_lens
        return assign_extend_cache_locs_func(
            req_pool_indices=batch.req_pool_indices,
            req_to_token=self.model_runner.req_to_token_pool.req_to_token,
            start_offset=prefix,
            end_offset=prefix + width,
            batch_size=bs,
            draft_token_num=width,
            device=self.device,
        ).view(bs, width)

    def _draft(
        self, batch: Any, draft_input: Any, loc: torch.Tensor, plan: Any
    ) -> tuple[torch.Tensor, Any, torch.Tensor]:
        """One forward of the drafter over [bonus, mask, ...]: hidden states of the masks [bs, L, H], the target's
        output head, and the block's positions [bs, block]."""
        prefix, block = batch.seq_lens, self.config.block
        bs = len(prefix)
        embed, head = self.line.embedding_and_head(self)
        ids = torch.full((bs, block), int(self._mask_token_id), dtype=torch.long, device=self.device)
        ids[:, 0] = draft_input.bonus_tokens.view(-1)
        positions = prefix[:, None] + self._block_pos_offsets
        embedded = embed(ids) * self.line.embedding_scale(self)
        host_lens = (batch.seq_lens_cpu if batch.seq_lens_cpu is not None else prefix.cpu()) + block
        forward_batch = ForwardBatch(
            forward_mode=ForwardMode.TARGET_VERIFY,
            batch_size=bs,
            input_ids=ids.flatten(),
            req_pool_indices=batch.req_pool_indices,
            seq_lens=prefix,
            out_cache_loc=loc[:, :block].reshape(-1),
            seq_lens_sum=int(host_lens.sum()),
            seq_lens_cpu=host_lens.to(torch.int32),
            positions=positions.reshape(-1),
            input_embeds=embedded.view(bs * block, -1),
            spec_algorithm=SpeculativeAlgorithm.DFLASH,
            spec_info=self._draft_block_spec_info,
            capture_hidden_mode=CaptureHiddenMode.NULL,
            global_num_token_non_padded_cpu=bs * block,
        )
        self.line.bind_draft(self, plan, forward_batch, block)
        with torch.inference_mode(), self.line.draft_context(self):
            output = self.draft_model_runner.forward(forward_batch).logits_output
        return output.hidden_states.view(bs, block, -1)[:, 1:], head, positions

    def _tree(self, hidden: torch.Tensor, head: Any, root: torch.Tensor, width: Width) -> TreeTables:
        """hidden [bs, L, H], root [bs] -> the best-first trees of their marginals."""
        bs, depth, size = hidden.shape
        weight = head.weight
        shard = getattr(head, "shard_indices", None)
        vocabulary = int(shard.num_org_elements) if shard is not None else int(weight.shape[0])
        logits = torch.matmul(hidden.reshape(-1, size).to(weight.dtype), weight[:vocabulary].T)
        logp, ids = ops.topk_lse(logits, min(self.config.topk, vocabulary))
        tables = ops.tree_build(
            logp.view(bs, depth, -1),
            ids.view(bs, depth, -1),
            width.nodes,
            width.spine,
            self.config.off_spine_penalty,
        )
        tables.tok[:, 0] = root
        return tables

    def _verify(self, batch: Any, draft_input: Any, tables: TreeTables, loc: torch.Tensor, plan: Any) -> Any:
        """One target forward over all rows."""
        verify_input = DDTreeVerifyInput.from_tables(tables, batch.seq_lens)
        self.line.bind_verify(plan, verify_input)
        batch.out_cache_loc = loc.reshape(-1)
        host_lens, host_sum = batch.seq_lens_cpu, batch.seq_lens_sum
        reserved, reserved_sum = self.line.reserved_lengths(draft_input)
        if host_lens is not None:
            batch.seq_lens_cpu = host_lens + tables.width
            batch.seq_lens_sum = int(batch.seq_lens_cpu.sum())
        elif reserved is not None:
            batch.seq_lens_cpu, batch.seq_lens_sum = reserved, int(reserved_sum)
        forward_batch, _ = verify_input.prepare_for_verify(batch, self.target_worker)
        batch.seq_lens_cpu, batch.seq_lens_sum = host_lens, host_sum
        return self.target_worker.forward_batch_generation(
            batch=None, forward_batch=forward_batch, is_verify=True, skip_attn_backend_init=True
        )

    def _kv_buffers(self) -> list[torch.Tensor]:
        pool = self.model_runner.token_to_kv_pool
        pool = getattr(pool, "full_kv_pool", pool)
        return [*pool.k_buffer, *pool.v_buffer]

    def _commit_states(
        self, batch: Any, pre: torch.Tensor, post: torch.Tensor, path: torch.Tensor, commit_lens: torch.Tensor
    ) -> None:
        """Hybrids: bring the recurrent states to the end of the accepted path."""
        if not self._need_mamba_verify_commit:
            return
        track_slots = batch.mamba_track_indices
        steps = None if track_slots is None else tracked_steps(pre, post, self.line.track_grid(batch))
        if self.state_free is not None:
            self.state_free.commit(path, commit_lens, track_slots, steps)
            return
        last = path.gather(1, (commit_lens.long() - 1)[:, None]).view(-1)
        nodes = None if steps is None else torch.where(
            steps >= 0, path.gather(1, steps.long().clamp(min=0)[:, None]).view(-1), -1
        )  # fmt: skip
        self.line.commit_by_node(
            self,
            batch,
            last_correct_step_indices=last,
            mamba_track_indices=track_slots,
            mamba_steps_to_track=nodes,
        )

    def _inject_draft_kv(
        self,
        logits_output: Any,
        loc: torch.Tensor,
        plan: Any,
        positions: torch.Tensor,
        path: torch.Tensor,
        commit_lens: torch.Tensor,
    ) -> None:
        """Draft KV of the accepted path, from the target's hidden states at its rows."""
        bs, block = path.shape
        hidden = logits_output.hidden_states.view(bs, loc.shape[1], -1)
        along_path = hidden.gather(1, path[:, :, None].expand(-1, -1, hidden.shape[-1]))
        slots = self.line.draft_slots(self, plan, loc[:, :block].contiguous())
        self._append_target_hidden_to_draft_kv_by_loc(
            target_hidden=along_path.reshape(bs * block, -1),
            cache_loc=slots.reshape(-1),
            cache_loc_2d=slots,
            positions=positions.reshape(-1),
            commit_lens=commit_lens,
        )
        logits_output.hidden_states = None  # large, and nobody needs it after this step

    def _record(
        self,
        batch: Any,
        width: Width,
        tables: TreeTables,
        path: torch.Tensor,
        commit_lens: torch.Tensor,
        moved: int,
        logits: torch.Tensor,
    ) -> None:
        chain = self.metrics.add(width, tables, path, commit_lens, moved)
        if self.widths.wants_walks:
            self.widths.note_walks(width, entry_order(tables, path, commit_lens, width.spine).tolist())
        if self._trace is not None:
            rows = logits.view(*tables.tok.shape, -1)
            self._trace.write([req.rid for req in batch.reqs], tables, path, commit_lens, chain, rows)
        if self._prometheus is not None:
            self._prometheus.publish(self.metrics)
