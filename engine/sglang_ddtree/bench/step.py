"""Milliseconds per decode step at the dimensions of Qwen3.6-27B, with made-up weights: one arm after another.

    python -m sglang_ddtree.bench.step FOLDER --arms linear,ddtree:chain+15+31+63 --profile 1,8 --json FILE

The checkpoint is two config files; SGLang makes up the weights (--load-format dummy).  Acceptance therefore means
nothing here, step times and memory are real.  A DDTREE arm is one server that holds all the named widths (node budgets,
or the chain) and is switched between them; arms joined by "/" are up at the same time and measured in turn.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import secrets
import statistics
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .report import write_result
from .server import Server, ddtree, leave_on_sigterm, linear
from .stages import profile

CHAIN = "chain"
TEXT_ONLY = "sglang_ddtree.bench.text_only"
LAYERS, HIDDEN, MLP, VOCAB, BLOCK = 64, 5120, 17408, 248320, 16
POINTS = ((256, 1), (256, 8), (4096, 1), (4096, 8))
MOST_ROWS = 520  # of a batch (8 requests of 64 nodes and their root); wider ones are all matrix products
SHORT, LONG = 8, 40
REPEATS = {256: 3, 4096: 3}
GOALS = (32, 64)  # rows that are measured at long contexts too
PROFILED = (16, 32, 64, 256)  # of the two with 16 rows, the chain


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


@dataclass(frozen=True)
class Arm:
    """A server: its name, the widths it is measured at ("" = as it is), and the token that switches them."""

    name: str
    widths: tuple[str, ...] = ("",)
    token: str = ""

    @classmethod
    def parse(cls, text: str) -> Arm:
        name, _, listed = text.partition(":")
        widths = tuple(listed.split("+"))
        several = len(widths) > 1 or CHAIN in widths
        return cls(name, widths, secrets.token_hex(16) if several else "")

    def arguments(self, folder: Path, backend: str) -> list[str]:
        base = [
            "--model-path", str(folder / "target"), "--load-format", "dummy", "--skip-tokenizer-init",
            "--attention-backend", backend, "--mem-fraction-static", "0.9", "--max-total-tokens", "40000",
            "--max-running-requests", "8", "--context-length", "8192", "--disable-radix-cache",
            "--cuda-graph-bs-decode", "1", "8",
        ]  # fmt: skip
        draft = str(folder / "draft")
        if self.name == "ar":
            return base
        return base + (linear(draft, backend) if self.name == "linear" else ddtree(draft, backend, self.rows()))

    def rows(self) -> int:
        return max(rows_of(width) for width in self.widths)

    def environment(self) -> dict[str, str]:
        if not self.token:
            return {}
        from ..control import TOKEN

        return {"SGLANG_DDTREE_WIDTHS": ",".join(self.widths), TOKEN: self.token}


def rows_of(width: str) -> int:
    """Verify rows of a request at a width; linear DFLASH and the chain verify the block."""
    return BLOCK if width in ("", CHAIN) else int(width) + 1


def switch(server: Server, arm: Arm, width: str) -> None:
    from ..control import HEADER, PATH

    body = json.dumps({"width": width}).encode()
    headers = {"Content-Type": "application/json", HEADER: arm.token}
    request = urllib.request.Request(server.url + PATH, data=body, headers=headers, method="PUT")
    with urllib.request.urlopen(request, timeout=30) as answer:
        answer.read()


def prompts(context: int, bs: int) -> list[list[int]]:
    source = random.Random(0)
    return [[source.randrange(1000, 200000) for _ in range(context)] for _ in range(bs)]


def step_times(server: Server, context: int, bs: int) -> list[float]:
    """ms per step: the difference of a long and a short run, divided by the difference of their steps."""
    ids, times = prompts(context, bs), []
    server.generate(ids, 1)  # what is compiled or allocated at first use is not part of a step
    for _ in range(REPEATS[context]):
        seconds, steps = [], []
        for tokens in (SHORT, LONG):
            begin = time.perf_counter()
            answers = server.generate(ids, tokens)
            seconds.append(time.perf_counter() - begin)
            steps.append(max(x["meta_info"].get("spec_verify_ct") or tokens for x in answers))
        times.append(1e3 * (seconds[1] - seconds[0]) / max(steps[1] - steps[0], 1))
    return times


def rows_of_arm(
    server: Server, arm: Arm, until: float, profiled: list[int], contexts: list[int]
) -> Iterator[dict[str, Any]]:
    """Every point at every width, then profiles of the shortest context, then the memory."""
    for context, bs in POINTS:
        for width in arm.widths if context in contexts else ():
            what = {"arm": arm.name, "width": width, "rows": rows_of(width), "context": context, "bs": bs}
            named = rows_of(width) in GOALS or not width
            if bs * rows_of(width) > MOST_ROWS or (context != POINTS[0][0] and not named):
                continue
            if time.monotonic() > until:
                yield {**what, "skipped": "no time left"}
                continue
            if arm.token:
                switch(server, arm, width)
            times = step_times(server, context, bs)
            yield {**what, "ms_per_step": statistics.median(times), "all": times}
    for bs in profiled:
        for width in arm.widths:
            profile_it = rows_of(width) in PROFILED and width != str(BLOCK - 1)
            if profile_it and bs * rows_of(width) <= MOST_ROWS and time.monotonic() < until:
                if arm.token:
                    switch(server, arm, width)
                stages = profile(server, prompts(POINTS[0][0], bs))
                yield {"arm": arm.name, "width": width, "rows": rows_of(width), "bs": bs, "stages": stages}
    yield memory_row(server, arm.name)


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
    parser.add_argument("--arms", default="linear,ddtree:chain+15+31+63")
    parser.add_argument("--backend", default="fa3")
    parser.add_argument("--port", type=int, default=23000)
    parser.add_argument("--after", type=Path, help="measure only once this file exists (another job has left the GPU)")
    parser.add_argument("--contexts", default=",".join(map(str, REPEATS)), help="prompt lengths to measure at")
    parser.add_argument("--profile", default="", help="batch sizes at which the stages of a step are measured too")
    parser.add_argument("--seconds", type=float, default=600, help="time an arm may take once it is up")
    parser.add_argument("--start", type=float, default=400, help="seconds a server may take to answer")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    leave_on_sigterm()
    for name, config in (("target", target_config()), ("draft", draft_config())):
        (options.folder / name).mkdir(parents=True, exist_ok=True)
        (options.folder / name / "config.json").write_text(json.dumps(config))
    rows: list[dict[str, Any]] = []
    for group in options.arms.split(","):
        for row in group_rows([Arm.parse(text) for text in group.split("/")], options):
            rows.append(row)
            print(json.dumps({key: value for key, value in row.items() if key != "all"}), flush=True)
            if options.json:  # after every row, so that an interrupted run leaves what it measured
                prefix = os.environ.get("SGLANG_DDTREE_PREFIX", "auto")
                write_result(options.json, "step", rows, backend=options.backend, prefix=prefix)
    return 1 if any("error" in row for row in rows) else 0


def group_rows(arms: list[Arm], options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Starts the servers of arms that are up at the same time, measures them in turn, and ends them."""
    logs, servers = Path(os.environ.get("OUT", ".")), []
    profiled = [int(bs) for bs in options.profile.split(",") if bs]
    contexts = [int(context) for context in options.contexts.split(",")]
    try:
        for arm in arms:
            options.port += 20
            log = logs / f"step-{arm.name}.log"
            arguments = arm.arguments(options.folder, options.backend)
            servers.append(Server(arm.name, arguments, options.port, log, env=arm.environment(), module=TEXT_ONLY))
        up = [server.wait(options.start) for server in servers]
        while options.after and not options.after.exists():
            time.sleep(0.2)
        for arm, server, answers in zip(arms, servers, up, strict=True):
            if not answers:
                yield {"arm": arm.name, "error": server.tail(15)}
                continue
            yield from rows_of_arm(server, arm, time.monotonic() + options.seconds, profiled, contexts)
    finally:
        for server in servers:
            server.stop()


if __name__ == "__main__":
    sys.exit(main())
