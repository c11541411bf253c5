"""Every upstream function this package touches, and whether the installed SGLang still has it as expected."""

from __future__ import annotations

import importlib
import inspect
from dataclasses import dataclass
from typing import Any

from . import compat
from .compat.base import Line

WORKER = "sglang.srt.speculative.dflash_worker_v2:DFlashWorkerV2"


@dataclass(frozen=True)
class Hook:
    """kind: 'subclass' (overridden in a subclass), 'patch' (replaced at run time), 'instance' (replaced on one
    object) or 'call' (called with arguments that must keep their names)."""

    target: str
    kind: str
    parameters: tuple[str, ...]
    why: str


HOOKS = (
    Hook("sglang.srt.speculative.spec_registry:CustomSpecAlgo", "subclass", (), "registers DDTREE"),
    Hook(
        "sglang.srt.speculative.spec_registry:CustomSpecAlgo.handle_server_args", "subclass", ("self", "server_args"),
        "checks and completes the arguments",
    ),
    Hook(
        "sglang.srt.speculative.spec_registry:CustomSpecAlgo.create_worker", "subclass", ("self", "server_args"),
        "installs the patches before pools exist",
    ),
    Hook(
        f"{WORKER}.__init__", "subclass", ("self", "server_args", "gpu_id", "ps", "nccl_port", "target_worker"),
        "builds the draft with its block instead of T",
    ),
    Hook(f"{WORKER}.init_attention_backends", "subclass", ("self",), "draft backend of block width; hybrid override"),
    Hook(f"{WORKER}.init_cuda_graphs", "subclass", ("self",), "draft graphs of block width"),
    Hook(f"{WORKER}._maybe_build_draft_sampler", "subclass", ("self",), "top-K replaces the arg-max"),
    Hook(
        f"{WORKER}.forward_batch_generation", "subclass",
        ("self", "batch", "on_publish", "grammar_barrier", "pp_proxy_tensors"), "the decode step",
    ),
    Hook(
        f"{WORKER}._append_target_hidden_to_draft_kv_by_loc", "call",
        ("self", "target_hidden", "cache_loc", "positions", "cache_loc_2d", "commit_lens"), "draft KV of the path",
    ),
    Hook(
        f"{WORKER}._make_next_draft_input_decode", "call", ("self", "bonus_tokens", "new_seq_lens"),
        "state for the next step",
    ),
    Hook(f"{WORKER}._validate_phase1_sampling_support", "call", ("self", "batch"), "warns about sampling"),
    Hook("sglang.srt.distributed.parallel_state:get_tp_group", "call", (), "which rank of a server tells what it did"),
    Hook(
        "sglang.srt.speculative.dflash_info:DFlashVerifyInput", "subclass", (), "verify input with a tree",
    ),
    Hook(
        "sglang.srt.speculative.dflash_info:DFlashVerifyInput.prepare_for_verify", "call",
        ("self", "batch", "target_worker"), "builds the verify batch",
    ),
    Hook(
        "sglang.srt.layers.sampler:apply_custom_logit_processor", "call",
        ("logits", "sampling_batch_info", "num_tokens_in_batch"), "custom logit processors of requests",
    ),
    Hook(
        "sglang.srt.speculative.spec_utils:GrammarTree.from_device", "call",
        ("retrieve_next_token", "retrieve_next_sibling", "draft_token"), "grammars see the tree",
    ),
    Hook(
        "sglang.srt.speculative.spec_utils:build_grammar_vocab_mask", "call",
        ("reqs", "tree", "sampling_info", "device", "barrier"), "what grammars allow after every row",
    ),
    Hook(
        "sglang.srt.layers.logprob_processor:compute_spec_logprobs", "call",
        ("batch", "logits_output", "predict", "accept_index"), "log-probabilities of the accepted tokens",
    ),
    Hook(
        "sglang.kernels.ops.speculative.cache_locs:assign_extend_cache_locs_func", "call",
        ("req_pool_indices", "req_to_token", "start_offset", "end_offset", "batch_size", "draft_token_num", "device"),
        "slots of the T rows",
    ),
    Hook(
        "sglang.srt.layers.attention.linear.gdn_backend:GDNAttnBackend.forward_extend", "instance",
        ("self", "layer", "forward_batch", "mixed_qkv", "a", "b"), "tree verify without a state per node",
    ),
    Hook(
        "sglang.srt.layers.attention.hybrid_linear_attn_backend:HybridLinearAttnBackend"
        ".update_mamba_state_after_mtp_verify", "call",
        ("self", "last_correct_step_indices", "mamba_track_indices", "mamba_steps_to_track", "model",
         "req_pool_indices"), "commit with SGLANG_DDTREE_STATE_FREE=0",
    ),
    Hook(
        "sglang.srt.mem_cache.kv_cache_configurator:get_req_to_token_extra_context_len", "patch", (),
        "room for two widths at the end of a request's row",
    ),
    Hook(
        "sglang.srt.mem_cache.memory_pool:MambaPool.__init__", "patch", ("self", "speculative_num_draft_tokens"),
        "no state per node",
    ),
    Hook(
        "sglang.srt.mem_cache.kv_cache_configurator:KVCacheConfigurator._handle_max_mamba_cache", "patch",
        ("self", "total_rest_memory"), "no memory reserved for states per node",
    ),
    Hook(
        "sglang.srt.managers.scheduler:validate_dflash_request", "patch", ("req", "enable_overlap"),
        "refuses what only linear DFLASH supports",
    ),
    Hook(
        "sglang.srt.managers.scheduler:Scheduler.set_internal_state", "patch", ("self", "recv_req"),
        "switches the width",
    ),
    Hook(
        "sglang.srt.managers.scheduler:Scheduler.get_internal_state", "patch", ("self", "recv_req"),
        "shows the width",
    ),
    Hook(
        "sglang.srt.managers.io_struct:SetInternalStateReq", "call", (), "carries a switch of the width",
    ),
)  # fmt: skip


# What the worker on CUDA devices touches beside those; checked on the lines it runs with.
GPU_HOOKS = (
    Hook(f"{WORKER}._ensure_draft_block_buffers", "call", ("self", "bs"), "static buffers of the draft block"),
    Hook(
        "sglang.kernels.ops.speculative.dflash:_prepare_dflash_draft_block_unchecked", "call",
        ("bonus_tokens", "prefix_lens", "req_pool_indices", "req_to_token", "block_ids_out", "positions_out",
         "cache_loc_out", "mask_token_id"), "ids, positions and slots of the draft block",
    ),
    Hook(
        "sglang.srt.speculative.draft_worker_common:make_draft_sampler_capture_hook", "call", ("draft_sampler",),
        "the tree is built at the end of the draft's CUDA graph",
    ),
    Hook(
        "sglang.srt.model_executor.runner.decode_cuda_graph_runner:DecodeCudaGraphRunner.__init__", "call",
        ("self", "model_runner", "attn_backend", "speculative_num_draft_tokens"), "graphs of further widths",
    ),
    Hook(
        "sglang.srt.layers.radix_linear_attention:RadixLinearAttention.__init__", "call",
        ("layer_id", "num_q_heads", "num_k_heads", "num_v_heads", "head_q_dim", "head_k_dim", "head_v_dim", "conv_weights",
         "bias", "activation", "A_log", "dt_bias"), "shapes and weights of the recurrent layers",
    ),
    Hook(
        "sglang.srt.layers.sampler:sampling_from_probs_torch", "call", ("probs", "sampling_seed", "positions"),
        "seeded sampling",
    ),
    Hook(
        "sglang.srt.layers.sampler:top_k_top_p_min_p_sampling_from_probs_torch", "call",
        ("probs", "top_ks", "top_ps", "min_ps", "need_min_p_sampling", "sampling_seed", "positions"), "seeded sampling",
    ),
    Hook(
        "sglang.srt.models.qwen3_5:Qwen3_5GatedDeltaNet.forward", "instance", ("self", "hidden_states", "forward_batch"),
        "verify passes read the projections in place",
    ),
    Hook("sglang.srt.mem_cache.memory_pool:KVWriteLoc", "call", (), "K and V of the verify rows go to the pool"),
    Hook(
        "sglang.srt.server_args:ServerArgs._handle_mamba_radix_cache", "patch", ("self", "model_arch"),
        "a hybrid's tracking interval before it is compared with T",
    ),
    Hook(
        "sglang.srt.layers.radix_attention:RadixAttention", "call", (), "finds layers the tree attention can't serve",
    ),
)  # fmt: skip
GPU_LINES = ("0.5.16",)


def hooks_of(line: Line) -> tuple[Hook, ...]:
    """The hooks that matter on one SGLang line."""
    return HOOKS + GPU_HOOKS if line.version in GPU_LINES else HOOKS


def resolve(target: str) -> Any:
    """The object ``module:qualified.name`` names; ImportError or AttributeError where it is gone."""
    module, _, names = target.partition(":")
    found: Any = importlib.import_module(module)
    for name in names.split("."):
        found = getattr(found, name)
    return found


def expected(hook: Hook, line: Line) -> tuple[str, ...] | None:
    return line.hook_parameters.get(hook.target, hook.parameters)


def problem(hook: Hook, line: Line) -> str | None:
    """What is wrong with one hook on the installed SGLang, None when it is as expected."""
    parameters = expected(hook, line)
    if parameters is None:
        return None
    try:
        found = resolve(hook.target)
    except (ImportError, AttributeError) as error:
        return f"{hook.target} is gone ({error})"
    if isinstance(found, type):
        return None
    present = inspect.signature(found).parameters  # of the original, where a patch of ours is in place
    absent = [name for name in parameters if name not in present]
    return f"{hook.target} has no parameter {', '.join(absent)}" if absent else None


def differences(line: Line) -> list[str]:
    """Every way in which the installed SGLang differs from what ``line`` expects."""
    return [text for hook in hooks_of(line) if (text := problem(hook, line))]


def require() -> None:
    """ValueError with one sentence when an upstream function is not what this package was written for."""
    found = differences(compat.line())
    if found:
        raise ValueError(
            f"DDTREE can't run on this sglang {compat.installed_version()}: {found[0]}"
            + (f" and {len(found) - 1} more" if len(found) > 1 else "")
            + "; run `python -m sglang_ddtree hooks` for the list."
        )


def table() -> list[dict[str, Any]]:
    """One row per hook: target, kind, why, ok, detail (for the release manifest and the roadmap)."""
    line = compat.line()
    rows = []
    for hook in hooks_of(line):
        text = problem(hook, line)
        rows.append(
            {
                "target": hook.target,
                "kind": hook.kind,
                "why": hook.why,
                "ok": text is None,
                "detail": text or "",
            }
        )
    return rows
