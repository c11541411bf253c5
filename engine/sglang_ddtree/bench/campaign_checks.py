"""What a running DDTREE server must do, asked over HTTP and compared with a server that does not speculate.

Every check returns {"ok": bool, ...details}.  Greedy answers are compared id by id; where two part, the reference's
own gap between the two tokens decides whether it is a tie (``serve.TIE_NATS``), and everything else is a difference.
"""

from __future__ import annotations

import json
import subprocess
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from .campaign_long import compared
from .serve import TIE_NATS, classified, mixed_batch, parity
from .server import Server

IdLists = list[list[int]]


def greedy(reference: Server, arm: Server, asked: IdLists, tokens: int = 96) -> dict[str, Any]:
    found = parity(reference, arm, asked, tokens)
    return {"ok": not found["different"], **found}


def own_noise(reference: Server, asked: IdLists, tokens: int = 96) -> dict[str, Any]:
    """How the reference differs from itself: each prompt alone, all in one batch, and alone again over a cached prefix.

    A yardstick for ties, not a check of DDTREE: another batch size or a cached prefix changes the order of sums.
    """
    alone = [reference.generate(ids, tokens)["output_ids"] for ids in asked]
    batched = [answer["output_ids"] for answer in reference.generate(asked, tokens)]
    again, prompts = [], []
    for ids, answer in zip(asked, alone, strict=True):
        prompts.append(ids + answer[:48])
        again.append(reference.generate(prompts[-1], tokens - 48)["output_ids"])
    found = {
        "in_a_batch": classified(reference, asked, alone, batched),
        "cached_prefix": classified(reference, prompts, [answer[48:] for answer in alone], again),
    }
    gaps = [row["gap"] for part in found.values() for row in part["ties"] + part["different"]]
    return {"ok": True, "greatest_gap": max(gaps, default=0.0), **found}


def together(reference: Server, arm: Server, asked: IdLists, lengths: list[int], **sampling: Any) -> dict[str, Any]:
    """One batch whose requests end at different lengths, so that it shrinks while it runs."""
    parameters = [{"temperature": 0, "max_new_tokens": n, "ignore_eos": True, **sampling} for n in lengths]
    answers = arm.post("/generate", {"input_ids": asked, "sampling_params": parameters})
    wanted = [reference.generate(ids, n, **sampling)["output_ids"] for ids, n in zip(asked, lengths, strict=True)]
    found = classified(reference, asked, wanted, [answer["output_ids"] for answer in answers])
    return {"ok": not found["different"], "lengths": lengths, **found}


def equal_acceptance(arm: Server, other: Server, asked: IdLists, tokens: int = 96) -> dict[str, Any]:
    """Two servers that differ in one switch give the same ids in the same number of verify passes."""
    rows = []
    for ids in asked:
        a, b = arm.generate(ids, tokens), other.generate(ids, tokens)
        same = a["output_ids"] == b["output_ids"]
        rows.append((same, a["meta_info"].get("spec_verify_ct"), b["meta_info"].get("spec_verify_ct")))
    return {
        "ok": all(same and x == y for same, x, y in rows), "prompts": len(rows), "ids_equal": sum(same for same, *_ in rows),
        "passes": [x for _, x, _ in rows], "passes_other": [y for *_, y in rows],
    }  # fmt: skip


def turns(reference: Server, arm: Server, asked: IdLists, new_text: list[int], rounds: int = 3) -> dict[str, Any]:
    """Conversations that grow: every turn repeats all that came before, so the prefix cache serves it."""
    wanted, got, prompts, cached = [], [], [], []
    for ids in asked:
        context = list(ids)
        for turn in range(rounds):
            want, answer = reference.generate(context, 48)["output_ids"], arm.generate(context, 48)
            wanted.append(want)
            got.append(answer["output_ids"])
            prompts.append(list(context))
            if turn:
                cached.append(int(answer["meta_info"].get("cached_tokens") or 0))
            context += want + new_text
    found = compared(reference, prompts, wanted, got)
    return {**found, "ok": found["ok"] and sum(cached) > 0, "cached_tokens": cached}


def stops(reference: Server, arm: Server, asked: IdLists) -> dict[str, Any]:
    """Stop tokens and stop strings that lie inside an accepted path end the answer where they end it without a tree."""
    cases, equal, inside = [], 0, 0
    for ids in asked:
        plain = reference.generate(ids, 64)
        for at in (5, 11):
            token = plain["output_ids"][at]
            cases.append((ids, {"stop_token_ids": [token]}))
        text = plain["text"]
        if len(text) > 30:
            cases.append((ids, {"stop": [text[18:22]]}))
    wrong, stopped = [], 0
    for ids, stop in cases:
        # SGLang looks at no stop token where it is told to ignore the end of text.
        want, answer = (server.generate(ids, 64, ignore_eos=False, **stop) for server in (reference, arm))
        stopped += want["meta_info"]["finish_reason"]["type"] == "stop"
        keys = ("finish_reason", "completion_tokens")
        same = [want["output_ids"], want["text"], *(want["meta_info"][k] for k in keys)] == [
            answer["output_ids"], answer["text"], *(answer["meta_info"][k] for k in keys)
        ]  # fmt: skip
        equal += same
        steps = answer["meta_info"].get("spec_verify_ct") or 0
        inside += steps < answer["meta_info"]["completion_tokens"] - 1
        if not same:
            found = classified(reference, [ids], [want["output_ids"]], [answer["output_ids"]])
            if found["ties"]:
                continue
            wrong.append(
                {**stop, "want": want["meta_info"]["finish_reason"], "got": answer["meta_info"]["finish_reason"]}
            )
    return {
        "ok": not wrong and inside > 0 and stopped == len(cases),
        "cases": len(cases),
        "stopped": stopped,
        "equal": equal,
        "inside_a_path": inside,
        "wrong": wrong,
    }


def penalties(reference: Server, arm: Server, asked: IdLists) -> dict[str, Any]:
    """Requests with penalties or biases, each beside plain ones: exact along the path, and nobody else changes."""
    kinds: dict[str, dict[str, Any]] = {
        "frequency": {"frequency_penalty": 0.7}, "presence": {"presence_penalty": 1.1},
        "repetition": {"repetition_penalty": 1.15},
        "logit bias": {"logit_bias": {str(asked[0][-1]): 4.0, str(asked[1][-1]): -8.0}},
        "frequency and presence": {"frequency_penalty": 0.3, "presence_penalty": 0.4},
    }  # fmt: skip
    rows, ok = {}, True
    for name, extra in kinds.items():
        parameters = [
            {"temperature": 0, "max_new_tokens": 64, "ignore_eos": True, **(extra if i == 0 else {})} for i in range(3)
        ]
        answers = arm.post("/generate", {"input_ids": asked[:3], "sampling_params": parameters})
        wanted = [
            reference.generate(ids, 64, **(extra if i == 0 else {}))["output_ids"] for i, ids in enumerate(asked[:3])
        ]
        plain = reference.generate(asked[0], 64)["output_ids"]
        got = [answer["output_ids"] for answer in answers]
        beside = classified(reference, asked[1:3], wanted[1:], got[1:])
        n = next((i for i, (a, b) in enumerate(zip(wanted[0], got[0], strict=True)) if a != b), None)
        gap = None if n is None else _gap_at(reference, asked[0], n, wanted[0][n], got[0][n], extra)
        rows[name] = {
            "equal": n is None, "first_difference": n, "gap": gap, "changes_the_text": plain != wanted[0],
            "passes": answers[0]["meta_info"].get("spec_verify_ct"), "neighbours": beside,
        }  # fmt: skip
        ok &= (gap is None or gap <= TIE_NATS) and not beside["different"]
    return {"ok": ok, **rows}


def _gap_at(server: Server, ids: list[int], n: int, want: int, got: int, extra: dict[str, Any]) -> float:
    """How much likelier a server finds its own n-th token than another, penalties included, in nats."""
    body = {
        "input_ids": ids, "return_logprob": True, "top_logprobs_num": 8,
        "sampling_params": {"temperature": 0, "max_new_tokens": n + 1, "ignore_eos": True, **extra},
    }  # fmt: skip
    top = server.post("/generate", body)["meta_info"]["output_top_logprobs"][n]
    logprob = {token: value for value, token, *_ in top}
    return float(logprob[want] - logprob[got]) if want in logprob and got in logprob else 99.0


def beside_sampled(reference: Server, arm: Server, asked: IdLists) -> dict[str, Any]:
    """A greedy request must not change when its neighbours in the batch sample."""
    found = mixed_batch(arm, asked)
    want = reference.generate(asked[0], 64)["output_ids"]
    same = classified(reference, asked[:1], [want], [found.pop("greedy_ids")])
    return {"ok": not same["different"], **found, **same}


def aborts(reference: Server, arm: Server, asked: IdLists, total: int = 200, aborted: int = 50) -> dict[str, Any]:
    """Many requests, some of whose clients go away or ask to stop; afterwards every slot must be free again.

    SGLang itself counts KV, state and request slots whenever it is idle and ends the server when one is missing.
    """
    every = total // aborted

    def one(i: int) -> list[int] | None:
        ids = asked[i % len(asked)]
        if i % every:
            return list(arm.generate(ids, 24 + i % 5 * 8)["output_ids"])
        body = {
            "input_ids": ids, "rid": uuid.uuid4().hex, "stream": True,
            "sampling_params": {"temperature": 0, "max_new_tokens": 400, "ignore_eos": True},
        }  # fmt: skip
        with arm.open("/generate", body) as answer:
            answer.readline()
            if i % (2 * every) == 0:
                arm.open("/abort_request", {"rid": body["rid"]}).close()
        return None

    with ThreadPoolExecutor(40) as pool:
        answers = list(pool.map(one, range(total)))
    time.sleep(2.0)  # the idle check of the scheduler runs now, if it runs at all
    kept = [i for i, answer in enumerate(answers) if answer is not None][:24]
    wanted = [reference.generate(asked[i % len(asked)], 24 + i % 5 * 8)["output_ids"] for i in kept]
    found = classified(reference, [asked[i % len(asked)] for i in kept], wanted, [answers[i] or [] for i in kept])
    arm.open("/flush_cache", {}).close()
    time.sleep(0.5)
    used = used_tokens(arm)
    leak = "leak" in arm.log.read_text(errors="replace").lower()
    ok = arm.alive() and not leak and used == 0 and not found["different"]
    return {"ok": ok, "requests": total, "aborted": total - sum(a is not None for a in answers), "used_tokens_after": used,
            "leak_reported": leak, **found}  # fmt: skip


def used_tokens(server: Server) -> int:
    """KV tokens in use, as the server's own load report counts them."""
    load = json.loads(server.get("/get_load"))[0]
    return int(load["num_tokens"]) - int(load.get("num_pending_tokens", 0))


def broken_draft(reference: Server, arm: Server, asked: IdLists) -> dict[str, Any]:
    """A draft that only gives NaN: one token a step, the target's own, counted, and the server goes on."""
    found = parity(reference, arm, asked[:4], 40)
    steps = [arm.generate(ids, 40)["meta_info"].get("spec_verify_ct") for ids in asked[:4]]
    counted = "draft_nan" in arm.get("/metrics")
    ok = not found["different"] and arm.alive() and all(n and n >= 39 for n in steps) and counted
    return {"ok": ok, "passes_for_40_tokens": steps, "counted": counted, **found}


def refused(server: Server, words: str, seconds: float) -> dict[str, Any]:
    """A configuration that can't be served ends by itself within ``seconds``, with a sentence that names it."""
    try:
        code = server.process.wait(max(seconds, 1))
    except subprocess.TimeoutExpired:
        return {"ok": False, "error": "still running", "last_line": server.tail(1)[-300:]}
    said = [line for line in server.log.read_text(errors="replace").splitlines() if words in line]
    return {
        "ok": bool(said) and code != 0,
        "code": code,
        "sentence": said[-1][-600:] if said else server.tail(2)[-600:],
    }


def timed(check: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The result of a check, or what stopped it, with its seconds."""
    begun = time.monotonic()
    try:
        found = check()
    except Exception as error:
        # A dead server or a missing field is a result of the campaign, not an end of it.
        found = {"ok": False, "error": f"{type(error).__name__}: {str(error)[:300]}"}
    return {**found, "seconds": round(time.monotonic() - begun, 1)}
