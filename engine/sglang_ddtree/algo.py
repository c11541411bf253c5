"""What SGLang's scheduler, runners and pools ask about DDTREE, and the arguments it accepts."""

from __future__ import annotations

import logging
from typing import Any

from sglang.srt.speculative.spec_registry import CustomSpecAlgo

from . import compat, preflight
from .config import DDTreeConfig, default_width
from .control import install_route

logger = logging.getLogger(__name__)
TRACK_STEP = 256  # a multiple of every page and chunk size in use
CPU_BACKENDS = ("intel_amx",)
GPU_BACKENDS = ("fa3", "triton")
GPU_VERSIONS = ("0.5.16",)
GPU_DEFAULT_REQUESTS = 32  # records, logits and KV of every row are allocated for this many requests


def refusals(args: Any) -> list[str]:
    """One sentence for everything in ``args`` (SGLang's resolved arguments) that DDTREE does not support."""
    backend = getattr(args, "attention_backend", None)
    checks = {
        "DDTREE needs --speculative-draft-model-path: the folder of a DFlash draft.": (
            args.speculative_draft_model_path is None
        ),
        f"DDTREE runs on CUDA devices and the CPU engine, not on {args.device}: keep DFLASH on this device.": (
            str(args.device) not in ("cpu", "cuda")
        ),
        f"DDTREE runs on GPUs with sglang {', '.join(GPU_VERSIONS)} so far: keep DFLASH on this device.": (
            str(args.device) == "cuda" and compat.line().version not in GPU_VERSIONS
        ),
        f"DDTREE needs --attention-backend {' or '.join(GPU_BACKENDS)} on a GPU, got {backend}.": (
            str(args.device) == "cuda" and backend not in GPU_BACKENDS
        ),
        f"DDTREE needs --attention-backend {' or '.join(CPU_BACKENDS)} on CPU, got {backend}.": (
            str(args.device) == "cpu" and backend not in CPU_BACKENDS
        ),
        "DDTREE runs on one device, or on two GPUs: leave --tp-size at 1, or give 2 on a machine with GPUs.": (
            args.tp_size not in ((1, 2) if str(args.device) == "cuda" else (1,))
        ),
        "DDTREE does not support pipeline parallelism: leave --pp-size at 1.": args.pp_size != 1,
        "DDTREE does not support --enable-dp-attention yet.": bool(args.enable_dp_attention),
        "DDTREE does not support LoRA adapters yet: drop --enable-lora and --lora-paths.": bool(
            getattr(args, "enable_lora", False) or getattr(args, "lora_paths", None)
        ),
        "DDTREE does not support disaggregated prefill and decode yet: drop --disaggregation-mode.": (
            getattr(args, "disaggregation_mode", "null") not in (None, "null")
        ),
        "DDTREE does not support a sliding draft window yet: drop --speculative-draft-window-size.": (
            getattr(args, "speculative_draft_window_size", None) is not None
        ),
        "DDTREE replaces SGLang's own replay of recurrent states: drop the --enable-*-replayssm* flags.": any(
            getattr(args, name, False)
            for name in (
                "enable_gdn_replayssm_spec",
                "enable_linear_replayssm",
                "enable_linear_replayssm_spec",
            )
        ),
        "DDTREE does not support --enable-return-hidden-states yet.": bool(
            getattr(args, "enable_return_hidden_states", False)
        ),
    }
    return [sentence for sentence, refused in checks.items() if refused]


def draft_block(args: Any) -> int | None:
    """The block size written in the draft's config.json, None where it doesn't say."""
    from sglang.srt.speculative.dflash_utils import parse_dflash_draft_config
    from sglang.srt.utils.hf_transformers_utils import get_config

    path = args.speculative_draft_model_path
    try:
        config = get_config(
            path, trust_remote_code=args.trust_remote_code, revision=args.speculative_draft_model_revision
        )
    except Exception as error:  # Transformers raises many kinds, most with several lines
        reason = str(error).strip().split("\n")[0]
        raise ValueError(f"DDTREE can't read the draft's config.json in {path} ({reason}): check the path.") from error
    block = parse_dflash_draft_config(draft_hf_config=config).resolve_block_size(default=None)
    return None if block is None else int(block)


def resolve_args(args: Any) -> None:
    """Check and complete SGLang's arguments; ValueError with one sentence where DDTREE must refuse.

    ``args`` may be SGLang's recorder of plain attribute writes, so nothing here calls into its resolution.
    """
    compat.line()
    sentences = refusals(args)
    if sentences:
        raise ValueError(sentences[0])
    block = args.speculative_dflash_block_size or draft_block(args)
    if block is None:
        raise ValueError(
            "The draft's config.json has no block_size: pass --speculative-dflash-block-size with the drafter's block."
        )
    width = args.speculative_num_draft_tokens or default_width(int(block))
    config = DDTreeConfig.read(int(block), int(width))
    args.speculative_dflash_block_size = int(block)
    args.speculative_num_draft_tokens = int(width)
    args.speculative_num_steps = 1
    if str(args.device) == "cpu":
        # Only a gate: with 1 the linear-attention layers of a hybrid would treat the tree as a chain.
        args.speculative_eagle_topk = 2
        args.disable_overlap_schedule = True
        return
    # On a GPU the tree lives in our own verify kernels, and the backends keep a chain's metadata.
    args.speculative_eagle_topk = 1
    if args.max_running_requests is None:
        args.max_running_requests = GPU_DEFAULT_REQUESTS
    raise_track_interval(args, int(width))
    if sentence := preflight.check(args, config):
        raise ValueError(sentence)


def raise_track_interval(args: Any, width: int) -> None:
    """SGLang wants the states it keeps for the prefix cache further apart than one step of ``width`` rows can reach."""
    if args.mamba_track_interval < width:
        args.mamba_track_interval = -(-width // TRACK_STEP) * TRACK_STEP
        logger.info("DDTREE: --mamba-track-interval raised to %d for %d rows", args.mamba_track_interval, width)


class DDTreeSpecAlgo(CustomSpecAlgo):
    """Answers as linear DFLASH does wherever the engine asks about the family; T and the block differ."""

    def is_dflash(self) -> bool:
        return True

    def is_dflash_family(self) -> bool:
        return True

    def supports_target_verify_for_draft(self) -> bool:
        return True

    def supports_prefill_shared_read_done(self) -> bool:
        return True

    def supports_mixed_chunk(self) -> bool:
        return False

    def supports_grammar_overlap(self) -> bool:
        return False

    def supports_ragged_verify(self) -> bool:
        return False

    def has_draft_kv(self) -> bool:
        return False  # keeps the reserve per decode step at T for page sizes above 1

    # The scheduler calls the next four unconditionally, and CustomSpecAlgo lacks them in every release.
    def need_topk(self) -> bool:
        return False

    def carries_draft_hidden_states(self) -> bool:
        return False

    def get_platform_worker_cls(self) -> None:
        return None

    def create_future_map(
        self,
        device: Any,
        req_to_token_pool: Any,
        needs_cpu_seq_lens: bool = True,
        needs_confidence_relay: bool = False,
        **kwargs: Any,
    ) -> Any:
        from sglang.srt.managers.overlap_utils import FutureMap

        return FutureMap(device, self, req_to_token_pool, needs_cpu_seq_lens, needs_confidence_relay, **kwargs)

    def get_num_tokens_per_req_for_target_verify(self, num_draft_tokens: int, is_draft_worker: bool) -> int:
        return compat.line().block_size() if is_draft_worker else num_draft_tokens

    def create_worker(self, server_args: Any) -> type:
        """Runs in the scheduler process once the target is loaded, before pools, backends and graphs exist."""
        from . import hooks, patches

        hooks.require()
        patches.install()
        return super().create_worker(server_args)

    def handle_server_args(self, server_args: Any) -> None:
        resolve_args(server_args)
        install_route()
