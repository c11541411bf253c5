"""Trained pairs served with several arms at once: equal greedy ids, acceptance, tokens per second.

    python -m sglang_ddtree.bench.serve TARGET DRAFT --arms ar,linear,ddtree:64 --backend fa3 --json FILE

All arms stay up; they are asked in turn, so a difference in load can't favour one of them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from .report import write_result
from .server import Server, ddtree, leave_on_sigterm, linear

# One step of bfloat16 for logits of 16 to 32, or one for each of two logits of 8 to 16, plus rounding of the logarithms;
# the best logits of both shipped pairs are 5 to 21 (median 10 to 11).
TIE_NATS = 0.126
SIZES = (1, 2, 4, 8, 16)


def arguments(arm: str, target: str, draft: str, backend: str) -> list[str]:
    """Server arguments of an arm: ``ar``, ``linear`` or ``ddtree:T``; a suffix +eager or +radix changes one thing."""
    name, *extras = arm.split("+")
    base = [
        "--model-path", target, "--attention-backend", backend, "--mem-fraction-static", "0.5", "--context-length", "2048",
        "--max-total-tokens", "40000", "--max-running-requests", "16", "--cuda-graph-max-bs-decode", "16", "--trust-remote-code",
    ]  # fmt: skip
    if "radix" not in extras:
        base.append("--disable-radix-cache")
    if "eager" in extras:
        base.append("--disable-cuda-graph")
    if name == "linear":
        base += linear(draft, backend)
    elif name.startswith("ddtree:"):
        base += ddtree(draft, backend, int(name.partition(":")[2]))
    return base


def prompts(tokenizer: str, files: list[Path], limit: int) -> list[list[int]]:
    """Token ids of the prompt files' first ``limit`` entries each, at most 512 tokens."""
    from transformers import AutoTokenizer

    encode = AutoTokenizer.from_pretrained(tokenizer)
    found = []
    for file in files:
        for line in file.read_text(encoding="utf-8").splitlines()[:limit]:
            entry = json.loads(line)
            text = entry.get("text") or "\n".join(m["content"] for m in entry["messages"])
            found.append(encode.encode(text)[:512])
    return found


def parity(reference: Server, arm: Server, asked: list[list[int]], tokens: int) -> dict[str, Any]:
    """Greedy ids of an arm against the reference's; every first difference with the reference's own gap there."""
    wanted = [reference.generate(ids, tokens)["output_ids"] for ids in asked]
    answers = [arm.generate(ids, tokens) for ids in asked]
    accept = [x for x in (answer["meta_info"].get("spec_accept_length") for answer in answers) if x]
    return {
        **classified(reference, asked, wanted, [answer["output_ids"] for answer in answers]),
        "accept_length": statistics.mean(accept) if accept else None,
    }


def classified(
    reference: Server, asked: list[list[int]], wanted: list[list[int]], got: list[list[int]]
) -> dict[str, Any]:
    """How many answers are equal; the others by how much the reference itself prefers its token where they part."""
    ties, different = [], []
    for ids, want, answer in zip(asked, wanted, got, strict=True):
        found = first_difference(reference, ids, want, answer)
        if found is not None:
            (ties if found["gap"] <= TIE_NATS else different).append(found)
    equal = len(asked) - len(ties) - len(different)
    return {"prompts": len(asked), "equal": equal, "ties": ties, "different": different}


def first_difference(reference: Server, ids: list[int], want: list[int], got: list[int]) -> dict[str, Any] | None:
    """Where two answers to ``ids`` part and the reference's gap there in nats; None when they are equal."""
    n = next((i for i, (a, b) in enumerate(zip(want, got, strict=False)) if a != b), None)
    if n is not None:
        gap = _gap(reference, ids + want[:n], want[n], got[n])
        found = {"at": n, "gap": gap, "want": want[n], "got": got[n]}
        return found if gap <= TIE_NATS else {**found, "before": want[max(n - 4, 0) : n], "after": got[n + 1 : n + 5]}
    if len(want) != len(got):
        return {"at": min(len(want), len(got)), "gap": 99.0, "want": f"{len(want)} tokens", "got": f"{len(got)} tokens"}
    return None


def _gap(reference: Server, ids: list[int], a: int, b: int) -> float:
    """How much likelier the reference finds its own token than the other one at this place, in nats."""
    body = {
        "input_ids": ids, "sampling_params": {"temperature": 0, "max_new_tokens": 1},
        "return_logprob": True, "top_logprobs_num": 8,
    }  # fmt: skip
    top = reference.post("/generate", body)["meta_info"]["output_top_logprobs"][0]
    logprob = {token: value for value, token, *_ in top}
    return float(logprob.get(a, 0.0) - logprob[b]) if b in logprob else 99.0


def speed(arm: Server, asked: list[list[int]], bs: int, tokens: int) -> tuple[float, float]:
    """(tokens per second, tokens per verify step) of one batch, prefill included in neither."""
    batch = [asked[i % len(asked)] for i in range(bs)]
    begin = time.perf_counter()
    arm.generate(batch, 1)
    prefill = time.perf_counter() - begin
    begin = time.perf_counter()
    answers = arm.generate(batch, tokens)
    seconds = time.perf_counter() - begin - prefill
    steps = [x["meta_info"].get("spec_verify_ct") or tokens for x in answers]
    return bs * tokens / seconds, bs * tokens / sum(steps)


def mixed_batch(arm: Server, asked: list[list[int]]) -> dict[str, Any]:
    """A greedy request must not change when its neighbours in the batch sample."""
    alone = arm.generate(asked[0], 64)["output_ids"]
    greedy = {"temperature": 0, "max_new_tokens": 64, "ignore_eos": True}
    filters = ({}, {"top_p": 0.9}, {"top_k": 20}, {"min_p": 0.05, "top_p": 0.95})
    sampled = [{"temperature": 0.8, "max_new_tokens": 64, "ignore_eos": True, **extra} for extra in filters]
    body = {"input_ids": [asked[0], *asked[1:5]], "sampling_params": [greedy, *sampled]}
    answers = arm.post("/generate", body)
    same = next((i for i, (x, y) in enumerate(zip(answers[0]["output_ids"], alone, strict=False)) if x != y), 64)
    lengths = [len(x["output_ids"]) for x in answers]
    return {"greedy_neighbour_equal_tokens": same, "lengths": lengths, "greedy_ids": answers[0]["output_ids"]}


def measure(servers: dict[str, Server], asked: list[list[int]], tokens: int, rounds: int) -> list[dict[str, Any]]:
    """Rows of parity and of speed at several batch sizes, arms alternating."""
    names = list(servers)
    reference = servers[names[0]]
    rows: list[dict[str, Any]] = [
        {"check": "greedy ids", "arm": name, "against": names[0], **parity(reference, servers[name], asked, 96)}
        for name in names[1:]
    ]
    # Linear DFLASH samples through kernels that an install without FlashInfer lacks.
    rows += [
        {"check": "mixed batch", "arm": name, **mixed_batch(servers[name], asked)} for name in names if name != "linear"
    ]
    return rows + measure_speed(servers, asked, tokens, rounds)


def measure_speed(
    servers: dict[str, Server], asked: list[list[int]], tokens: int, rounds: int, sizes: tuple[int, ...] = SIZES
) -> list[dict[str, Any]]:
    """Tokens per second and per step of every arm; the arms take turns, so load on the host meets all of them."""
    names, rows = list(servers), []
    for bs in sizes:
        taken: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
        for turn in range(rounds):
            for name in names if turn % 2 == 0 else reversed(names):
                taken[name].append(speed(servers[name], asked[turn:] + asked[:turn], bs, tokens))
        for name, values in taken.items():
            rates = sorted(rate for rate, _ in values)
            rows.append({
                "check": "speed", "arm": name, "bs": bs, "tokens_per_s": statistics.median(rates), "all": rates,
                "tokens_per_step": statistics.mean(length for _, length in values),
                "ratios": [b[0] / a[0] for a, b in zip(taken[names[0]], values, strict=True)], "ratios_against": names[0],
            })  # fmt: skip
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m sglang_ddtree.bench.serve")
    parser.add_argument("target")
    parser.add_argument("draft")
    parser.add_argument("--arms", default="ar,linear,ddtree:64", help="the first is the reference of the parity check")
    parser.add_argument("--backend", default="fa3")
    parser.add_argument("--prompts", nargs="*", type=Path, default=[])
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--port", type=int, default=31000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    leave_on_sigterm()
    out = Path(os.environ.get("OUT", "."))
    asked = prompts(options.target, options.prompts, 4)
    servers: dict[str, Server] = {}
    label = Path(options.target).parent.name
    try:
        for i, arm in enumerate(options.arms.split(",")):
            log = out / f"{label}-{arm.replace(':', '')}-{options.backend}.log"
            servers[arm] = Server(
                arm, arguments(arm, options.target, options.draft, options.backend), options.port + 10 * i, log
            )
            # One after another: each sizes its pools from the memory that is left.
            servers[arm].wait(200)
        rows: list[dict[str, Any]] = []
        for name in list(servers):
            if not servers[name].wait(0.5):
                print(f"{label} {name} did not start:\n{servers[name].tail(25)}", flush=True)
                rows.append({"check": "start", "arm": name, "error": servers[name].tail(3)})
                servers.pop(name).stop()
        rows += measure(servers, asked, options.tokens, options.rounds)
    finally:
        for server in servers.values():
            server.stop()
    for row in rows:
        print(label, options.backend, json.dumps({k: v for k, v in row.items() if k != "all"}), flush=True)
    if options.json:
        write_result(options.json, "serve", rows, pair=label, backend=options.backend)
    return 1 if any(row.get("error") or row.get("different") for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
