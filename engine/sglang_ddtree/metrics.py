"""Counters of a DDTREE worker, their Prometheus form, and the per-step trace."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import torch

from .tables import TreeTables
from .widths import Width


def chain_lengths(path: torch.Tensor, commit_lens: torch.Tensor, tables: TreeTables) -> torch.Tensor:
    """Tokens the spine inside each tree would have produced, [bs] int64: 1 + leading rank-0 rows of the path."""
    rank = tables.rank.long().gather(1, path)
    depth = torch.arange(path.shape[1], device=path.device)[None]
    on_spine = (rank == 0) & (depth < commit_lens[:, None])
    on_spine[:, 0] = True
    return on_spine.long().cumprod(dim=1).sum(dim=1)


@dataclass
class WidthCounts:
    """Sums of the steps at one width."""

    steps: int = 0
    tokens: int = 0
    chain_tokens: int = 0


@dataclass
class Metrics:
    """Sums over the life of a worker; a step is one verify of one request."""

    widths: Sequence[Width] = ()

    steps: int = 0
    tokens: int = 0
    chain_tokens: int = 0
    nodes: int = 0
    truncated: int = 0
    rows_moved: int = 0
    depth_hits: Counter[int] = field(default_factory=Counter)
    fallbacks: Counter[str] = field(default_factory=Counter)
    seconds: dict[str, float] = field(default_factory=dict)
    last_seconds: dict[str, float] = field(default_factory=dict)
    by_width: dict[str, WidthCounts] = field(default_factory=dict)
    width: Width | None = None
    _mark: float = 0.0

    def __post_init__(self) -> None:
        self.by_width = {width.label: WidthCounts() for width in self.widths}

    def start_step(self) -> None:
        """Begin the timing of a batch's step."""
        self.last_seconds, self._mark = {}, time.perf_counter()

    def stage_done(self, stage: str) -> None:
        """Book the host time since the last mark as ``stage`` (on a GPU: until it was queued, not until it ran)."""
        now = time.perf_counter()
        self.last_seconds[stage] = now - self._mark
        self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self._mark
        self._mark = now

    def add(
        self, width: Width, tables: TreeTables, path: torch.Tensor, commit_lens: torch.Tensor, rows_moved: int
    ) -> torch.Tensor:
        """Count one step of every request of a batch at ``width``; returns ``chain_lengths``."""
        chain = chain_lengths(path, commit_lens, tables)
        self.width = width
        for counts in (self, self.by_width.setdefault(width.label, WidthCounts())):
            counts.steps += path.shape[0]
            counts.tokens += int(commit_lens.sum())
            counts.chain_tokens += int(chain.sum())
        self.nodes += int(tables.count.sum()) - path.shape[0]
        self.truncated += int(tables.truncated.sum())
        self.rows_moved += rows_moved
        self.depth_hits.update(int(n) - 1 for n in commit_lens.tolist())
        return chain

    def snapshot(self) -> dict[str, Any]:
        """The metrics by their public names; lengths are means over all steps."""
        steps = max(self.steps, 1)
        return {
            "ddtree_steps": self.steps,
            "ddtree_nodes": self.nodes / steps,
            "ddtree_accept_length": self.tokens / steps,
            "ddtree_accept_length_chain": self.chain_tokens / steps,
            "ddtree_depth_hits": {str(d): n for d, n in sorted(self.depth_hits.items())},
            "ddtree_truncated": self.truncated,
            "ddtree_rows_moved": self.rows_moved,
            "ddtree_fallback_total": dict(self.fallbacks),
            "ddtree_step_seconds": dict(self.seconds),
            "ddtree_width": self.width.nodes if self.width else 0,
            "ddtree_width_steps": {label: counts.steps for label, counts in self.by_width.items()},
            "ddtree_width_accept_length": {
                label: counts.tokens / counts.steps for label, counts in self.by_width.items() if counts.steps
            },
        }


class PrometheusExport:
    """Mirrors a ``Metrics`` into prometheus_client, whose registry SGLang serves with --enable-metrics."""

    def __init__(self) -> None:
        from prometheus_client import Counter as PromCounter
        from prometheus_client import Gauge, Summary

        def gauge(name: str, text: str, *labels: str) -> Any:
            return Gauge(name, text, labels, multiprocess_mode="mostrecent")

        self.means = {
            "ddtree_nodes": gauge("ddtree_nodes", "Mean non-root nodes per tree"),
            "ddtree_accept_length": gauge("ddtree_accept_length", "Mean tokens per step"),
            "ddtree_accept_length_chain": gauge(
                "ddtree_accept_length_chain",
                "Mean tokens per step that the chain inside the tree would have produced",
            ),
            "ddtree_truncated": gauge("ddtree_truncated", "Nodes of the last candidate rank since the start"),
            "ddtree_width": gauge("ddtree_width", "Nodes that the width in force allows"),
        }
        self.by_width = {
            "ddtree_width_steps": gauge("ddtree_width_steps", "Steps since the start by width", "width"),
            "ddtree_width_accept_length": gauge("ddtree_width_accept_length", "Mean tokens per step by width", "width"),
        }
        self.depth = gauge("ddtree_depth_hits", "Steps by accepted depth since the start", "depth")
        self.seconds = Summary("ddtree_step_seconds", "Host seconds per step and stage", ["stage"])
        self.fallback = PromCounter("ddtree_fallback", "Steps not run as asked", ["reason"])
        self._fallbacks_before: Counter[str] = Counter()

    def publish(self, metrics: Metrics) -> None:
        """Bring the registry up to date after one step."""
        snapshot = metrics.snapshot()
        for name, gauge in self.means.items():
            gauge.set(snapshot[name])
        for depth, count in snapshot["ddtree_depth_hits"].items():
            self.depth.labels(depth).set(count)
        for name, gauge in self.by_width.items():
            for label, value in snapshot[name].items():
                gauge.labels(label).set(value)
        for stage, seconds in metrics.last_seconds.items():
            self.seconds.labels(stage).observe(seconds)
        for reason, count in (metrics.fallbacks - self._fallbacks_before).items():
            self.fallback.labels(reason).inc(count)
        self._fallbacks_before = Counter(metrics.fallbacks)


class Trace:
    """JSON lines, one per request and step, until ``limit`` bytes are written; then one last line says so."""

    def __init__(self, path: str, limit: int) -> None:
        self.limit, self.written, self.step = limit, 0, Counter[str]()
        self.file: IO[str] | None = Path(path).open("a", encoding="utf-8", buffering=1)  # noqa: SIM115

    def write(
        self,
        rids: list[str],
        tables: TreeTables,
        path: torch.Tensor,
        commit_lens: torch.Tensor,
        chain: torch.Tensor,
        logits: torch.Tensor,
    ) -> None:
        """logits [bs, T, V]: ``margins`` are the target's best minus second-best logit along the path."""
        if self.file is None:
            return
        best = logits.topk(2, dim=-1).values
        margin = (best[..., 0] - best[..., 1]).gather(1, path)
        for i, rid in enumerate(rids):
            n = int(commit_lens[i])
            self._line(
                {
                    "rid": rid,
                    "step": self.step[rid],
                    "nodes": int(tables.count[i]) - 1,
                    "path": path[i, :n].tolist(),
                    "accepted": n,
                    "chain_accepted": int(chain[i]),
                    "margins": [round(float(m), 6) for m in margin[i, :n]],
                }
            )
            self.step[rid] += 1

    def _line(self, record: dict[str, Any]) -> None:
        if self.file is None:
            return
        text = json.dumps(record) + "\n"
        if self.written + len(text) > self.limit:
            self.file.write(json.dumps({"trace_full": True, "bytes": self.written}) + "\n")
            self.file.close()
            self.file = None
            return
        self.file.write(text)
        self.written += len(text)
