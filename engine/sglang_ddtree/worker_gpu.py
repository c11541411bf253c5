"""The worker on a GPU: the same step as on the CPU, over static buffers, inside CUDA graphs, without a host sync."""

from __future__ import annotations

import logging
from typing import Any

import torch
from sglang.kernels.ops.speculative.dflash import _prepare_dflash_draft_block_unchecked
from sglang.srt.managers.scheduler import GenerationBatchResult
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardBatch, ForwardMode
from sglang.srt.speculative.dflash_info import DFlashVerifyInput
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

from .device_clock import EventClock, WalkReader
from .draft_tree import TreeSampler
from .hybrid import tracked_steps
from .hybrid_gpu import GraphStateFreeVerify
from .kernels.compact_kv import KvMover
from .kernels.entry_order import entry_order
from .kernels.walk import walk
from .metrics import WidthCounts
from .static_tree import StaticTree
from .target_tokens import agree_on_samples, target_tokens
from .verify_attention import TreeVerifyAttention, prefix_kernel, refusal, widen_page_table
from .width_graphs import WidthGraphs
from .width_policy import control_for
from .widths import Width
from .worker import NO_TREE, DDTreeWorker

logger = logging.getLogger(__name__)
COUNTERS_EVERY = 64
WALKS_EVERY = 4  # steps between two looks at what narrower trees would have accepted


class GraphDDTreeWorker(DDTreeWorker):
    """Speculative worker of ``--speculative-algorithm DDTREE`` on CUDA devices."""

    def __init__(self, server_args: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(server_args, *args, **kwargs)
        config = self.config
        runner = self.target_worker.model_runner
        rows = [width.rows for width in config.widths]
        self.tree = StaticTree(int(server_args.max_running_requests), rows, config.max_depth, self.device)
        self._sampler = TreeSampler(runner.model.lm_head, config, self.tree, self.group)
        self._refuse_layers(runner.model)
        # Allocated here, so that SGLang sizes the KV pool with what is left.
        self._states = self._build_states(runner)
        self._movers: list[KvMover] | None = None
        self.widths = control_for(config, EventClock(), WALKS_EVERY, self._agree)
        self._walks = WalkReader(self.tree.max_bs, config.max_depth + 2)
        self._graphs: WidthGraphs | None = None
        self._host_counters = torch.zeros_like(self.tree.all_counters, device="cpu").pin_memory()
        self._counters_ready = torch.cuda.Event()
        self._steps = 0

    def _refuse_layers(self, model: Any) -> None:
        from sglang.srt.layers.radix_attention import RadixAttention

        for layer in model.modules():
            if isinstance(layer, RadixAttention) and (sentence := refusal(layer)):
                raise ValueError(sentence)

    def _build_states(self, runner: Any) -> GraphStateFreeVerify | None:
        from sglang.srt.configs.hybrid_arch import mambaish_config

        if mambaish_config(runner.model_config) is None:
            return None
        states = GraphStateFreeVerify(runner.model, self.tree, runner.dtype, self.device)
        logger.info(
            "DDTREE: records of %d recurrent layers take %.2f GB", len(states.layers), states.records.nbytes() / 1e9
        )
        return states

    def init_attention_backends(self) -> None:
        with self.line.draft_settings(self.config.block):
            super(DDTreeWorker, self).init_attention_backends()
        backend = self.target_worker.model_runner.attn_backend
        full = getattr(backend, "full_attn_backend", backend)
        for attention in (full, self.draft_model_runner.attn_backend):
            widen_page_table(attention, 2 * self.config.width)
        deterministic = bool(getattr(self.server_args, "enable_deterministic_inference", False))
        TreeVerifyAttention(full, self.tree, prefix_kernel(self.config.prefix, full, deterministic))
        if self._states is not None:
            self._states.attach(self._gdn_backend().linear_attn_backend)

    def init_cuda_graphs(self) -> None:
        super().init_cuda_graphs()
        widths = self.config.widths
        self._graphs = WidthGraphs(self.target_worker.model_runner, self.draft_model_runner, self.line, widths)
        with self.line.draft_settings(self.config.block):
            self._graphs.capture(widths, self._use_tables)

    def _maybe_build_draft_sampler(self) -> Any:
        return self._sampler

    def _agree(self, index: int) -> int:
        """The first rank's choice of a width: each rank times its own device, and all must run the same graphs."""
        if int(self.group.world_size) == 1:
            return index
        choice = torch.tensor([index])
        torch.distributed.broadcast(choice, src=self.group.ranks[0], group=self.group.cpu_group)
        return int(choice)

    def _use_tables(self, width: Width) -> None:
        self.tree.use(self.widths.index(width))
        self._sampler.width = width

    def _next_width(self, batch_size: int) -> Width:
        """The width of the step that starts now, put in force."""
        width = self.widths.choose(batch_size)
        self._use_tables(width)
        if self._graphs is not None:
            self._graphs.use(width)
        self.metrics.width = width
        return width

    def _decode(self, batch: Any, on_publish: Any, barrier: Any = None) -> Any:
        self.metrics.start_step()
        batch.seq_lens.record_stream(torch.cuda.current_stream())
        draft_input, prefix = batch.spec_info, batch.seq_lens
        bs, block = len(prefix), int(self.block_size)
        in_force = self._next_width(bs)
        width = in_force.rows
        self.tree.begin(prefix)
        # The only reads of req_to_token in a step: after the verify graph starts, the next batch may write it.
        loc = self._row_slots(batch, width)
        positions, loc_block = self._run_draft(batch, draft_input)
        tables = self.tree.view(bs)
        tables.tok[:, 0].copy_(draft_input.bonus_tokens.view(-1))
        torch.add(prefix[:, None], tables.dep, out=self.tree.positions[:bs])
        self.metrics.stage_done("draft")
        self.row_logits.begin(batch, tables)
        output = self._run_verify(batch, draft_input, loc)
        logits = self.line.full_logits(self, output.logits_output)
        self.row_logits.adjust(logits, batch, tables, barrier)
        self.metrics.stage_done("verify")
        chosen = target_tokens(logits, batch.sampling_info, width, self.tree.positions[:bs])
        agree_on_samples(chosen, batch.sampling_info, self.group)
        result = self.tree.next_output(bs)
        walk(
            chosen, tables, out=(result.path, result.commit_lens, result.bonus, result.out_tokens),
            prefix_lens=prefix, new_lens=result.new_lens, counters=self.tree.counters,
        )  # fmt: skip
        if on_publish is not None:
            on_publish(result.new_lens)
        self.row_logits.note(batch, output.logits_output, chosen, (result.path, result.commit_lens, result.out_tokens))
        self._commit(batch, prefix, result, loc)
        self._inject(output.logits_output, positions, loc_block, result)
        self.metrics.stage_done("commit")
        self._count(batch, in_force, tables, result, logits)
        return GenerationBatchResult(
            logits_output=output.logits_output,
            next_token_ids=result.out_tokens.reshape(-1),
            accept_lens=result.commit_lens,
            can_run_cuda_graph=output.can_run_cuda_graph,
            next_draft_input=self._make_next_draft_input_decode(
                bonus_tokens=result.bonus, new_seq_lens=result.new_lens
            ),
            speculative_num_draft_tokens=block,
            new_seq_lens=result.new_lens,
            **self.line.result_fields(output),
        )

    def _run_draft(self, batch: Any, draft_input: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """One forward of the drafter, which ends in new tree tables: block positions and slots, [bs, block]."""
        bs, block = len(batch.seq_lens), int(self.block_size)
        self._ensure_draft_block_buffers(bs)
        ids, positions = self._draft_block_ids_buf[:bs], self._draft_block_positions_buf[:bs]
        slots, host_lens = self._draft_verify_out_cache_loc_buf[:bs], self._draft_seq_lens_cpu_buf[:bs]
        _prepare_dflash_draft_block_unchecked(
            bonus_tokens=draft_input.bonus_tokens.view(-1), prefix_lens=batch.seq_lens.view(-1),
            req_pool_indices=batch.req_pool_indices.view(-1), req_to_token=self.model_runner.req_to_token_pool.req_to_token,
            block_ids_out=ids, positions_out=positions, cache_loc_out=slots, mask_token_id=int(self._mask_token_id),
        )  # fmt: skip
        embed, _ = self.line.embedding_and_head(self)
        embedded = embed(ids).view(bs * block, -1)
        reserved, reserved_sum = self.line.reserved_lengths(draft_input)
        if batch.seq_lens_cpu is not None:
            host_lens.copy_(batch.seq_lens_cpu).add_(block)
            host_sum = int(host_lens.sum())
        elif reserved is not None:
            host_lens.copy_(reserved)
            host_sum = int(reserved_sum)
        else:
            host_lens.copy_(batch.seq_lens.to("cpu", dtype=torch.int32)).add_(block)
            host_sum = int(host_lens.sum())
        forward_batch = ForwardBatch(
            forward_mode=ForwardMode.TARGET_VERIFY, batch_size=bs, input_ids=ids.flatten(),
            req_pool_indices=batch.req_pool_indices, seq_lens=batch.seq_lens, out_cache_loc=slots.reshape(-1),
            seq_lens_sum=host_sum, seq_lens_cpu=host_lens, positions=positions.reshape(-1), input_embeds=embedded,
            spec_algorithm=SpeculativeAlgorithm.DFLASH, spec_info=self._draft_block_spec_info,
            capture_hidden_mode=CaptureHiddenMode.NULL,
        )  # fmt: skip
        with torch.inference_mode(), self.line.draft_context(self):
            output = self.draft_model_runner.forward(forward_batch)
            if not output.can_run_graph or self._draft_sampler is None:
                self._sampler(output.logits_output.hidden_states)
        return positions, slots

    def _run_verify(self, batch: Any, draft_input: Any, loc: torch.Tensor) -> Any:
        """One target forward over all rows; the tree reaches its layers through the static tables."""
        bs, width = loc.shape
        verify_input = DFlashVerifyInput(
            draft_token=self.tree.view(bs).tok.view(-1), positions=self.tree.positions[:bs].view(-1),
            draft_token_num=width, custom_mask=None, capture_hidden_mode=CaptureHiddenMode.FULL,
        )  # fmt: skip
        batch.out_cache_loc = loc.reshape(-1)
        host_lens, host_sum = batch.seq_lens_cpu, batch.seq_lens_sum
        reserved, reserved_sum = self.line.reserved_lengths(draft_input)
        if host_lens is not None:
            batch.seq_lens_cpu = host_lens + width
            batch.seq_lens_sum = int(batch.seq_lens_cpu.sum())
        elif reserved is not None:
            batch.seq_lens_cpu, batch.seq_lens_sum = reserved, int(reserved_sum)
        forward_batch, _ = verify_input.prepare_for_verify(batch, self.target_worker)
        batch.seq_lens_cpu, batch.seq_lens_sum = host_lens, host_sum
        return self.target_worker.forward_batch_generation(
            batch=None, forward_batch=forward_batch, is_verify=True, skip_attn_backend_init=True
        )

    def _commit(self, batch: Any, prefix: torch.Tensor, result: Any, loc: torch.Tensor) -> None:
        """Bring the KV rows and the recurrent states to the end of the accepted path."""
        if self._movers is None:
            groups: dict[Any, list[torch.Tensor]] = {}
            for buffer in self._kv_buffers():
                groups.setdefault((buffer.shape, buffer.dtype), []).append(buffer)
            self._movers = [KvMover(group) for group in groups.values()]
        for mover in self._movers:
            mover.move(loc, result.path, result.commit_lens)
        if self._states is not None:
            track, steps = batch.mamba_track_indices, None
            if track is not None:
                steps = tracked_steps(prefix, result.new_lens, self.line.track_grid(batch))
            self._states.commit(result.path, result.commit_lens, track, steps)

    def _inject(self, logits_output: Any, positions: torch.Tensor, loc_block: torch.Tensor, result: Any) -> None:
        """Draft KV of the accepted path, from the target's hidden states at its rows."""
        bs = result.path.shape[0]
        hidden = logits_output.hidden_states
        rows = result.path + self.tree.first_rows[:bs]
        self._append_target_hidden_to_draft_kv_by_loc(
            target_hidden=hidden.index_select(0, rows.view(-1)),
            cache_loc=loc_block.reshape(-1),
            cache_loc_2d=loc_block,
            positions=positions.reshape(-1),
            commit_lens=result.commit_lens,
        )
        logits_output.hidden_states = None  # large, and nobody needs it after this step

    def _count(self, batch: Any, width: Width, tables: Any, result: Any, logits: torch.Tensor) -> None:
        """The walk counts on the device; now and then the sums come over, without waiting for them."""
        if self._trace is not None:  # a debugging aid that may wait for the device
            from .metrics import chain_lengths

            rids = [req.rid for req in batch.reqs]
            chain = chain_lengths(result.path, result.commit_lens, tables)
            self._trace.write(
                rids, tables, result.path, result.commit_lens, chain, logits.view(len(rids), width.rows, -1)
            )
        if self.widths.wants_walks:
            self._walks.send(width, entry_order(tables, result.path, result.commit_lens, width.spine))
            for chosen, rows in self._walks.ready():
                self.widths.note_walks(chosen, rows)
        self._steps += 1
        if self._steps % COUNTERS_EVERY:
            return
        if self._steps > COUNTERS_EVERY and self._counters_ready.query():
            self._read_counters()
        self._host_counters.copy_(self.tree.all_counters, non_blocking=True)
        self._counters_ready.record()

    def _read_counters(self) -> None:
        by_width = self._host_counters.tolist()
        sums = [sum(column) for column in zip(*by_width, strict=True)]
        metrics = self.metrics
        metrics.steps, metrics.tokens, metrics.chain_tokens, metrics.nodes, metrics.truncated = sums[:5]
        metrics.depth_hits.clear()
        metrics.depth_hits.update({depth: n for depth, n in enumerate(sums[5:-1]) if n})
        for width, row in zip(self.config.widths, by_width, strict=True):
            metrics.by_width[width.label] = WidthCounts(*row[:3])
        if sums[-1]:
            metrics.fallbacks[NO_TREE] = sums[-1]
        if self._prometheus is not None:
            self._prometheus.publish(metrics)
