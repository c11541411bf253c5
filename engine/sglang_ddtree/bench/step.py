"""Milliseconds per decode step at the dimensions of Qwen3.6-27B, with made-up weights: one arm after another.

    python -m sglang_ddtree.bench.step FOLDER --arms linear,ddtree:64 --json FILE

The checkpoint is two config files; SGLang makes up the weights (--load-format dummy).  Acceptance therefore means
nothing here, step times and memory are real.  Arms joined by "/" are up at the same time and measured in turn.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from .report import write_result
from .server import Server, ddtree, linear

LAYERS, HIDDEN, MLP, VOCAB, BLOCK = 64, 5120, 17408, 248320, 16
POINTS = ((256, 1), (256, 8), (4096, 1), (4096, 8))


def target_config() -> dict[str, Any]:
    text = {
        "model_type": "qwen3_5_text", "vocab_size": VOCAB, "hidden_size": HIDDEN, "intermediate_size": MLP,
        "num_hidden_layers": LAYERS, "num_attention_heads": 24, "num_key_value_heads": 4, "head_dim": 256,
        "hidden_act": "silu", "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "attention_bias": False,
        "attention_dropout": 0.0, "attn_output_gate": True, "partial_rotary_factor": 0.25, "rope_theta": 1e7,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25},
        "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
        "linear_num_key_heads": 16, "linear_num_value_heads": 48, "full_attention_interval": 4,
        "layer_types": ["full_attention" if i % 4 == 3 else "linear_attention" for i in range(LAYERS)],
        "eos_token_id": 0, "pad_token_id": 0, "tie_word_embeddings": False, "use_cache": True, "dtype": "bfloat16",
        "num_experts": 0, "mamba_ssm_dtype": "float32",
    }  # fmt: skip
    vision = {
        "model_type": "qwen3_5", "depth": 1, "hidden_size": 64, "intermediate_size": 128, "num_heads": 2, "in_channels": 3,
        "patch_size": 16, "spatial_merge_size": 2, "temporal_patch_size": 2, "out_hidden_size": HIDDEN,
        "num_position_embeddings": 64, "deepstack_visual_indexes": [], "hidden_act": "gelu_pytorch_tanh",
    }  # fmt: skip
    return {
        "architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5", "text_config": text,
        "vision_config": vision, "tie_word_embeddings": False, "dtype": "bfloat16", "eos_token_id": 0, "vocab_size": VOCAB,
    }  # fmt: skip


def draft_config() -> dict[str, Any]:
    return {
        "architectures": ["DFlashDraftModel"], "model_type": "qwen3", "block_size": BLOCK,
        "dflash_config": {"mask_token_id": VOCAB - 250, "target_layer_ids": [1, 16, 31, 46, 61], "block_size": BLOCK},
        "hidden_size": HIDDEN, "intermediate_size": MLP, "num_hidden_layers": 5, "num_target_layers": LAYERS,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "layer_types": ["full_attention"] * 5,
        "vocab_size": VOCAB, "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
        "attention_bias": False, "attention_dropout": 0.0, "tie_word_embeddings": False, "hidden_act": "silu",
        "torch_dtype": "bfloat16", "eos_token_id": 0, "bos_token_id": 0, "pad_token_id": 0, "use_cache": True,
    }  # fmt: skip


def arguments(arm: str, folder: Path, backend: str) -> list[str]:
    base = [
        "--model-path", str(folder / "target"), "--load-format", "dummy", "--skip-tokenizer-init", "--attention-backend", backend,
        "--mem-fraction-static", "0.9", "--max-total-tokens", "40000", "--max-running-requests", "8", "--context-length", "8192",
        "--disable-radix-cache", "--cuda-graph-max-bs-decode", "8",
    ]  # fmt: skip
    draft = str(folder / "draft")
    if arm == "linear":
        return base + linear(draft, backend)
    if arm.startswith("ddtree:"):
        return base + ddtree(draft, backend, int(arm.partition(":")[2]))
    return base


def step_rows(server: Server, arm: str) -> list[dict[str, Any]]:
    """ms per step at each context and batch size: the difference of a long and a short run, median of three."""
    rows = []
    random.seed(0)
    for context, bs in POINTS:
        ids = [[random.randrange(1000, 200000) for _ in range(context)] for _ in range(bs)]
        server.generate(ids, 8)
        times = []
        for _ in range(3):
            seconds, steps = [], []
            for tokens in (16, 80):
                begin = time.perf_counter()
                answers = server.generate(ids, tokens)
                seconds.append(time.perf_counter() - begin)
                steps.append(max(x["meta_info"].get("spec_verify_ct") or tokens for x in answers))
            times.append(1e3 * (seconds[1] - seconds[0]) / max(steps[1] - steps[0], 1))
        rows.append({"arm": arm, "context": context, "bs": bs, "ms_per_step": statistics.median(times), "all": times})
    return rows


def memory_row(server: Server, arm: str) -> dict[str, Any]:
    """What the server's log says about weights, state pools and records, in GB."""
    text = server.log.read_text(errors="replace")
    found = {
        name: [float(x) for x in re.findall(pattern, text)]
        for name, pattern in {
            "conv_state_gb": r"conv_state size: ([\d.]+)", "ssm_state_gb": r"ssm_state size: ([\d.]+)",
            "per_token_state_gb": r"intermediate_ssm_state_cache size: ([\d.]+)",
            "per_token_conv_gb": r"intermediate_conv_window_cache size: ([\d.]+)",
            "records_gb": r"records of \d+ recurrent layers take ([\d.]+)", "kv_gb": r"KV size: ([\d.]+)|K size: ([\d.]+)",
        }.items()
        if name != "kv_gb"
    }  # fmt: skip
    return {"arm": arm, "memory": {name: sum(values) for name, values in found.items()}}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m sglang_ddtree.bench.step")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--arms", default="linear,ddtree:64")
    parser.add_argument("--backend", default="fa3")
    parser.add_argument("--port", type=int, default=33000)
    parser.add_argument("--after", type=Path, help="measure only once this file exists (another job has left the GPU)")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    for name, config in (("target", target_config()), ("draft", draft_config())):
        (options.folder / name).mkdir(parents=True, exist_ok=True)
        (options.folder / name / "config.json").write_text(json.dumps(config))
    logs, rows = Path(os.environ.get("OUT", ".")), []
    for group in options.arms.split(","):
        servers: list[Server] = []
        try:
            for arm in group.split("/"):
                options.port += 20
                log = logs / f"step-{arm.replace(':', '')}.log"
                servers.append(Server(arm, arguments(arm, options.folder, options.backend), options.port, log))
            for server in servers:
                if not server.wait(150):
                    rows.append({"arm": server.name, "error": server.tail(3)})
                    print(server.name, "did not start:", server.tail(15), flush=True)
            while options.after and not options.after.exists():
                time.sleep(0.2)
            for server in servers:
                if server.process.poll() is None:
                    rows += [*step_rows(server, server.name), memory_row(server, server.name)]
                    for row in rows[-1 - len(POINTS) :]:
                        print(json.dumps({k: v for k, v in row.items() if k != "all"}), flush=True)
                if options.json:
                    write_result(options.json, "step", rows, backend=options.backend)
        finally:
            for server in servers:
                server.stop()
    return 1 if any("error" in row for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
