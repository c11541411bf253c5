"""Counters of a DDTREE worker, their Prometheus form, and the per-step trace."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import torch

from .tables import TreeTables


def chain_lengths(path: torch.Tensor, commit_lens: torch.Tensor, tables: TreeTables) -> torch.Tensor:
    """Tokens the spine inside each tree would have produced, [bs] int64: 1 + leading rank-0 rows of the path."""
    rank = tables.rank.long().gather(1, path)
    depth = torch.arange(path.shape[1], device=path.device)[None]
    on_spine = (rank == 0) & (depth < commit_lens[:, None])
    on_spine[:, 0] = True
    return on_spine.long().cumprod(dim=1).sum(dim=1)


@dataclass
class Metrics:
    """Sums over the life of a worker; a step is one verify of one request."""

    steps: int = 0
    tokens: int = 0
    chain_tokens: int = 0
    nodes: int = 0
    truncated: int = 0
    rows_moved: int = 0
    depth_hits: Counter[int] = field(default_factory=Counter)
    fallbacks: Counter[str] = field(default_factory=Counter)

    def add(
        self, tables: TreeTables, path: torch.Tensor, commit_lens: torch.Tensor, rows_moved: int
    ) -> torch.Tensor:
        """Count one step of every request of a batch; returns ``chain_lengths``."""
        chain = chain_lengths(path, commit_lens, tables)
        self.steps += path.shape[0]
        self.tokens += int(commit_lens.sum())
        self.chain_tokens += int(chain.sum())
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
        }


class PrometheusExport:
    """Mirrors a ``Metrics`` into prometheus_client, whose registry SGLang serves with --enable-metrics."""

    def __init__(self) -> None:
        from prometheus_client import Counter as PromCounter
        from prometheus_client import Gauge

        def gauge(name: str, text: str) -> Any:
            return Gauge(name, text, multiprocess_mode="mostrecent")

        self.nodes = gauge("ddtree_nodes", "Mean non-root nodes per tree")
        self.accept = gauge("ddtree_accept_length", "Mean tokens per step")
        self.chain = gauge(
            "ddtree_accept_length_chain", "Mean tokens per step that the spine alone would have produced"
        )
        self.depth = PromCounter("ddtree_depth_hits", "Steps by accepted depth", ["depth"])
        self.truncated = PromCounter("ddtree_truncated", "Nodes of the last candidate rank")
        self.fallback = PromCounter("ddtree_fallback", "Steps not run as asked", ["reason"])
        self._before = Metrics()

    def publish(self, metrics: Metrics) -> None:
        steps, before = max(metrics.steps, 1), self._before
        self.nodes.set(metrics.nodes / steps)
        self.accept.set(metrics.tokens / steps)
        self.chain.set(metrics.chain_tokens / steps)
        self.truncated.inc(metrics.truncated - before.truncated)
        for depth, count in (metrics.depth_hits - before.depth_hits).items():
            self.depth.labels(str(depth)).inc(count)
        for reason, count in (metrics.fallbacks - before.fallbacks).items():
            self.fallback.labels(reason).inc(count)
        before.truncated = metrics.truncated
        before.depth_hits, before.fallbacks = Counter(metrics.depth_hits), Counter(metrics.fallbacks)


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
