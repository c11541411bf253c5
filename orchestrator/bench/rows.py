"""The record of one measurement: what was asked, what came back, and what surrounded it. Plain JSON."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from pydantic import TypeAdapter

from orchestrator.bench.metrics import measure
from orchestrator.openai.records import Completion
from orchestrator.openai.spec_metrics import SpecCounts, SpecNames

LINEAR = "linear"
TREE = "tree"


def ids_hash(ids: Sequence[int]) -> str:
    """Fingerprint of an output, for comparing two arms; "" for no ids."""
    return hashlib.sha256(",".join(map(str, ids)).encode()).hexdigest()[:16] if ids else ""


def text_hash(text: str) -> str:
    """Fingerprint of the text of a server that tells no ids; "" for none."""
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16] if text else ""


def fingerprint_of(engines: Mapping[str, Any]) -> str:
    """One text for what both arms of a sweep are; rows of another one were measured on other engines."""
    return hashlib.sha256(json.dumps(engines, sort_keys=True, default=str).encode()).hexdigest()[:16]


def loop_share(ids: Sequence[object], longest_period: int = 32) -> float:
    """Share of the output that its end repeats: 0 = no loop, near 1 = nothing but one.

    A loop is a period of at most `longest_period` tokens that the output's end runs through at least 4 times.
    """
    n = len(ids)
    best = 0
    for period in range(1, min(longest_period, n // 4) + 1):
        run = period
        while run < n and ids[n - 1 - run] == ids[n - 1 - run + period]:
            run += 1
        if run >= 4 * period:
            best = max(best, run)
    return best / n if n else 0.0


@dataclass(frozen=True)
class RequestFacts:
    """One request of a row. Times in seconds. received: tokens that came with the answer; None where only text came.

    ids_sha: of the token ids, or of the text where no ids came; text_sha: of the text, "" in rows of before.
    """

    prompt_id: str
    asked_tokens: int
    tokens: int | None
    prompt_tokens: int | None
    cached_tokens: int | None
    status: int
    error: str
    finish_reason: str | None
    terminated: bool
    ttft_s: float | None
    itl_s: float | None
    e2e_s: float
    verify_steps: int
    correct_drafts: int | None
    ids_sha: str
    loop_share: float
    received: int | None = None
    text_sha: str = ""

    def same_output(self, other: RequestFacts) -> bool | None:
        """Whether both are the same output: by ids, or by text where one of them told no ids; None: nothing to compare."""
        if self.received is not None and other.received is not None:
            return self.ids_sha == other.ids_sha if self.ids_sha else None
        mine, theirs = self.text_sha or self.ids_sha, other.text_sha or other.ids_sha
        return mine == theirs if mine else None

    @staticmethod
    def of(done: Completion, asked_tokens: int, names: SpecNames) -> RequestFacts:
        m = measure(done)
        counts = SpecCounts.of_request(done.meta_info, done.completion_tokens or 0, names)
        return RequestFacts(
            prompt_id=done.prompt_id,
            asked_tokens=asked_tokens,
            tokens=done.completion_tokens,
            prompt_tokens=done.prompt_tokens,
            cached_tokens=done.cached_tokens,
            status=done.status,
            error=done.error,
            finish_reason=done.finish_reason,
            terminated=done.terminated,
            ttft_s=m.ttft_s,
            itl_s=m.itl_s,
            e2e_s=m.e2e_s,
            verify_steps=counts.verify_steps,
            correct_drafts=counts.correct_drafts,
            ids_sha=ids_hash(done.output_ids) or text_hash(done.text),
            loop_share=loop_share(done.output_ids or done.text.split()),
            received=None if done.text and not done.output_ids else len(done.output_ids),
            text_sha=text_hash(done.text),
        )

    def counts(self) -> SpecCounts:
        return SpecCounts(self.verify_steps, max(0, (self.tokens or 0) - 1), self.correct_drafts)


@dataclass(frozen=True)
class HostSample:
    """The accelerator at one moment; see orchestrator.bench.gpu for reading it. None = not known."""

    sm_clock_mhz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    memory_used_mib: float | None = None
    throttle_reasons: tuple[str, ...] = ()
    foreign_processes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Finding:
    """Why a row does not count: the id of a rule in orchestrator.bench.validity and one sentence."""

    rule: str
    reason: str


@dataclass(frozen=True)
class Row:
    """One arm, one prompt group, once. `pair` joins it to the row of the other arm.

    budget: nodes of the tree that the pair is about (0 = a linear row shared by all budgets of its pass).
    block: rows measured without a change of arm share it. wall_s: first request sent -> last one ended.
    identity_before/after: fingerprint of the server process. graphs: decode ran in CUDA graphs (None = no such
    device). engine: settings of the server that must be the same in both arms. foreign_requests: requests the server finished for others meanwhile (None = not observable).
    lossless: greedy output as the linear arm's. ties: requests whose output parts from it where that arm is undecided itself.
    chain_accept_length: tokens per step that the tree's spine alone would have delivered. stage_ms: mean time of
    a step's stages. client_delay_*: how late this program's own event loop ran, and what is allowed.
    prompt_hashes: of the prompts as they are in the set. fingerprint: of the engines of both arms (`fingerprint_of`).
    """

    arm: str
    budget: int
    concurrency: int
    pair: int
    block: int
    requests: tuple[RequestFacts, ...]
    wall_s: float
    max_tokens: int
    temperature: float = 0.0
    set_hash: str = ""
    fingerprint: str = ""
    warm_up_hashes: tuple[str, ...] = ()
    prompt_hashes: tuple[str, ...] = ()
    identity_before: str = ""
    identity_after: str = ""
    speculative: bool = True
    graphs: bool | None = None
    other_graphs: bool | None = None
    engine: dict[str, str] = field(default_factory=dict)
    other_engine: dict[str, str] = field(default_factory=dict)
    foreign_requests: int | None = None
    live_load: float | None = None
    max_live_load: float = 0.0
    cache_flushed: bool | None = None
    client_delay_p99_s: float | None = None
    client_delay_limit_s: float = 0.005
    host_before: HostSample | None = None
    host_after: HostSample | None = None
    lossless: bool | None = None
    ties: int = 0
    chain_accept_length: float | None = None
    stage_ms: dict[str, float] = field(default_factory=dict)
    measured_at: str = ""
    findings: tuple[Finding, ...] = field(default=())

    @property
    def valid(self) -> bool:
        return not self.findings

    @property
    def key(self) -> tuple[int, int, int, str]:
        return self.concurrency, self.budget, self.pair, self.arm

    @property
    def tokens(self) -> int:
        return sum(r.tokens or 0 for r in self.requests)

    @property
    def tok_s(self) -> float:
        """Output tokens per second of wall time."""
        return self.tokens / self.wall_s if self.wall_s > 0 else 0.0

    @property
    def counts(self) -> SpecCounts:
        return SpecCounts.total([r.counts() for r in self.requests])

    def to_json(self) -> dict[str, Any]:
        """The row with its derived figures; `row_from_json` reads it back."""
        counts = self.counts
        return asdict(self) | {
            "valid": self.valid,
            "tokens": self.tokens,
            "tok_s": self.tok_s,
            "tokens_per_step": counts.tokens_per_step,
            "accept_length": counts.accept_length,
            "verify_steps": counts.verify_steps,
        }


_ROW = TypeAdapter(Row)


def row_from_json(data: Mapping[str, Any]) -> Row:
    """Inverse of Row.to_json; pydantic.ValidationError for anything else."""
    known = set(Row.__dataclass_fields__)
    return _ROW.validate_python({k: v for k, v in data.items() if k in known})
