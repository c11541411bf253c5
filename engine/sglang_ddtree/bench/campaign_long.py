"""Checks of a campaign that generate long texts: up to the context limit, beside others, at every width.

Where a text parts from the reference's at a tie, the rest of it can't be compared id by id.  So the whole text is also scored:
the reference reads it in one pass, and no token may be further from its favourite than the reference's own texts are.
"""

from __future__ import annotations

import json
from typing import Any

from .campaign_plan import HELD, Reference
from .serve import TIE_NATS, classified
from .server import Server
from .widths import Switch, ids_under_switches

IdLists = list[list[int]]
SPARE = 2  # tokens of the context that SGLang leaves free, whatever a request asks for
OWN_FACTOR = 2.0  # reading a text and writing it sum in another order; twice the reference's own gap is still noise


def greatest_gap(reference: Server, ids: list[int], answer: list[int]) -> float:
    """The most by which the reference, reading ``ids`` and ``answer``, prefers another token to one of the answer, in nats."""
    if isinstance(reference, Reference):
        return float(reference.once(json.dumps(["gap", ids, answer]), lambda: _read(reference, ids, answer)))
    return _read(reference, ids, answer)


def _read(reference: Server, ids: list[int], answer: list[int]) -> float:
    body = {
        "input_ids": ids + answer, "sampling_params": {"temperature": 0, "max_new_tokens": 0},
        "return_logprob": True, "logprob_start_len": len(ids) - 1, "top_logprobs_num": 1,
    }  # fmt: skip
    info = reference.post("/generate", body)["meta_info"]
    pairs = zip(info["input_token_logprobs"], info["input_top_logprobs"], strict=True)
    gaps = [best[0][0] - said[0] for said, best in pairs if best and said[0] is not None]
    if len(gaps) < len(answer) - 1:
        raise ValueError(f"the reference scored {len(gaps)} of {len(answer)} tokens: look at its log.")
    return float(max(gaps))


def compared(reference: Server, asked: IdLists, wanted: IdLists, got: IdLists) -> dict[str, Any]:
    """``classified``, judged by the greatest gaps of the texts and of the reference's own.

    The reading is what counts: it looks at every token, and where writing prefers one of two equals it says so.
    """
    own = max(greatest_gap(reference, ids, text) for ids, text in zip(asked, wanted, strict=True))
    gap = max(greatest_gap(reference, ids, text) for ids, text in zip(asked, got, strict=True))
    ok = gap <= max(OWN_FACTOR * own, TIE_NATS) and [len(text) for text in got] == [len(text) for text in wanted]
    found = classified(reference, asked, wanted, got)
    return {"ok": ok, "greatest_gap": gap, "greatest_gap_of_the_reference": own, **found}


def long_texts(reference: Server, arm: Server, asked: IdLists, tokens: int) -> dict[str, Any]:
    """Texts long enough for every tracked state and many splits of the prefix: in one batch, again, and alone."""
    wanted = [answer["output_ids"] for answer in reference.generate(asked, tokens)]
    rows: dict[str, Any] = {}
    for label in ("in a batch", "in a batch again"):
        got = [answer["output_ids"] for answer in arm.generate(asked, tokens)]
        rows[label] = compared(reference, asked, wanted, got)
    alone = [arm.generate(ids, tokens)["output_ids"] for ids in asked]
    rows["alone"] = compared(reference, asked, wanted, alone)
    return {"ok": all(row["ok"] for row in rows.values()), "tokens": tokens, **rows}


def context_limit(reference: Server, arm: Server, asked: IdLists, limit: int) -> dict[str, Any]:
    """Four requests in one batch that all run into the context limit: each is the neighbour of the others."""
    four = asked[:4]
    lengths = [limit - SPARE - len(ids) for ids in four]
    parameters = [{"temperature": 0, "max_new_tokens": n + 1, "ignore_eos": True} for n in lengths]
    answers = arm.post("/generate", {"input_ids": four, "sampling_params": parameters})
    got = [answer["output_ids"] for answer in answers]
    wanted = [reference.generate(ids, n)["output_ids"] for ids, n in zip(four, lengths, strict=True)]
    found = compared(reference, four, wanted, got)
    full = [len(ids) for ids in got] == lengths
    return {**found, "ok": found["ok"] and full and arm.alive(), "limit": limit, "generated": [len(ids) for ids in got]}


def narrow_rows(reference: Server, arm: Server, asked: IdLists, limit: int, rounds: int = 3) -> dict[str, Any]:
    """The negative control of ``context_limit``: with SGLang's own rows a neighbour must change in one of some rounds.

    Which of two requests' entries a shared place of the table keeps is chance, so one round may go well.
    """
    found = [context_limit(reference, arm, asked[i:] + asked[:i], limit) for i in range(rounds)]
    wrong = [row for row in found if not row["ok"]]
    return {"ok": bool(wrong), "rounds": rounds, "wrong": len(wrong), "seen": wrong}


def every_width(reference: Reference, arm: Server, token: str, asked: IdLists, limit: int) -> dict[str, Any]:
    """One server: the context limit at every width it holds, switches while requests run, and the adaptive choice."""
    switch, widths = Switch(arm, token), HELD[arm.name]
    rows: dict[str, Any] = {}
    for label in widths:
        switch.set(label)
        rows[f"context limit at {label}"] = context_limit(reference, arm, asked, limit)
    rows["switched while running"] = ids_under_switches(reference, arm, switch, list(widths), asked, 96)
    switch.set("auto")
    wanted = [reference.generate(ids, 96)["output_ids"] for ids in asked]
    got = [answer["output_ids"] for answer in arm.generate(asked, 96)]
    alone = [arm.generate(ids, 96)["output_ids"] for ids in asked]
    found = classified(reference, asked + asked, wanted + wanted, got + alone)
    rows["auto"] = {"ok": not found["different"], **found, "counts": switch.state()["counts"]}
    return {"ok": all(row["ok"] for row in rows.values()) and arm.alive(), **rows}
