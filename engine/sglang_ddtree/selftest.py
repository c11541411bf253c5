"""``python -m sglang_ddtree selftest``: every op on this device against a slow form written another way."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable
from importlib import metadata
from typing import Any

import torch
import torch.nn.functional as F

from . import ops
from .kernels.reference.gdn import gates, unit, write
from .tables import TreeTables

Check = Callable[[torch.device], float]
CHECKS: dict[str, tuple[Check, float]] = {}
H, HV, K, V, CHANNELS, TAPS, SLOTS = 2, 4, 64, 64, 96, 4, 7


def check(tolerance: float) -> Callable[[Check], Check]:
    """Registers a check of the op it is named after: it returns an error, which must not pass ``tolerance``."""

    def add(function: Check) -> Check:
        CHECKS[function.__name__] = (function, tolerance)
        return function

    return add


def sample_trees(device: torch.device, budget: int = 63) -> tuple[TreeTables, torch.Tensor]:
    """Trees of two requests, one with padding, and their log-probabilities [2, 15, 8] (on the CPU)."""
    logp = torch.log_softmax(torch.randn(2, 15, 40) * 2, -1).sort(-1, descending=True).values[..., :8].contiguous()
    logp[1, 3:] = -torch.inf
    ids = torch.arange(15)[:, None] * 1000 + torch.arange(8) + 1
    return ops.tree_build(logp.to(device), ids.expand(2, -1, -1).contiguous().to(device), budget), logp


def chain_to(tables: TreeTables, b: int, row: int) -> list[int]:
    """Rows from the root to ``row``, by the parents alone."""
    rows = [row]
    while int(tables.par[b, rows[-1]]) >= 0:
        rows.append(int(tables.par[b, rows[-1]]))
    return rows[::-1]


def largest(a: torch.Tensor, b: torch.Tensor) -> float:
    """Greatest difference relative to the greatest value."""
    a, b = a.double().cpu(), b.double().cpu()
    return float((a - b).abs().max() / b.abs().max().clamp(min=1e-30))


@check(1e-5)
def topk_lse(device: torch.device) -> float:
    logits = torch.randn(9, 5000).mul(3).round(decimals=1)  # many ties
    logp, ids = ops.topk_lse(logits.to(device), 32)
    order = sorted(range(5000), key=lambda i: (-float(logits[4, i]), i))[:32]
    wrong = float(ids[4].tolist() != order)
    return wrong + largest(logp, torch.log_softmax(logits.double(), -1).gather(1, ids.cpu()))


@check(0)
def tree_build(device: torch.device) -> float:
    """Scores of the best nodes, level by level, against those of the tree."""
    tables, logp = sample_trees(device)
    wrong = 0
    for b in range(2):
        level, found = torch.zeros(1), []
        for depth in range(15):
            level = (level[:, None] + logp[b, depth][None]).flatten().sort(descending=True).values[:63]
            found.append(level)
        best = torch.cat(found).sort(descending=True).values
        best = best[best > -torch.inf][:63]
        used = tables.score[b, 1 : int(tables.count[b])].sort(descending=True).values.cpu()
        wrong += int(not torch.equal(used, best))
    return float(wrong)


@check(0)
def tree_mask(device: torch.device) -> float:
    tables, _ = sample_trees(device)
    mask, wrong = ops.tree_mask(tables).cpu(), 0
    for b in range(2):
        for row in range(tables.width):
            wrong += int(mask[b, row].nonzero().view(-1).tolist() != chain_to(tables, b, row))
    return float(wrong)


@check(0)
def walk(device: torch.device) -> float:
    tables, _ = sample_trees(device)
    target, wanted = torch.zeros_like(tables.tok), []
    for b in range(2):
        rows = chain_to(tables, b, int(tables.count[b]) - 1)
        for parent, child in itertools.pairwise(rows):
            target[b, parent] = tables.tok[b, child]
        wanted.append(rows)
    path, commit_lens, _, _ = ops.walk(target, tables)
    return float(sum(path[b, : int(commit_lens[b])].tolist() != rows for b, rows in enumerate(wanted)))


@check(0)
def compact_kv(device: torch.device) -> float:
    buffer = torch.randn(200, 4, 32)
    loc = torch.randperm(200)[:128].view(2, 64)
    path = torch.tensor([[0, 2, 3, 4, 9, 9], [0, 1, 7, 7, 7, 7]])
    commit_lens = torch.tensor([5, 3], dtype=torch.int32)
    expected = buffer.clone()
    for b, n in enumerate(commit_lens.tolist()):
        for d in range(n):
            expected[loc[b, d]] = buffer[loc[b, path[b, d]]]
    moved = buffer.to(device)
    ops.compact_kv([moved], loc.to(device), path.to(device), commit_lens.to(device))
    return float(not torch.equal(moved.cpu(), expected))


@check(1e-5)
def conv_tree(device: torch.device) -> float:
    tables, _ = sample_trees(device)
    x, state, weight = (
        torch.randn(2, 64, CHANNELS),
        torch.randn(SLOTS, CHANNELS, TAPS - 1),
        torch.randn(CHANNELS, TAPS),
    )
    slots, expected = torch.tensor([5, 2]), torch.zeros(2, 64, CHANNELS)
    y = ops.conv_tree(*(t.to(device) for t in (x, state, weight)), None, slots.to(device), tables).cpu()
    for b in range(2):
        for row in range(int(tables.count[b])):
            history = torch.cat([state[slots[b]], x[b, chain_to(tables, b, row)].T], 1)[None]
            expected[b, row] = F.silu(F.conv1d(history, weight[:, None], groups=CHANNELS))[0, :, -1]
        y[b, int(tables.count[b]) :] = 0
    return largest(y, expected)


def recurrent_inputs() -> dict[str, torch.Tensor]:
    """Random inputs of one Gated DeltaNet layer for two requests of 64 rows."""
    return {
        "q": torch.randn(2, 64, H, K),
        "k": torch.randn(2, 64, H, K) + 0.5,
        "v": torch.randn(2, 64, HV, V),
        "a": torch.randn(2, 64, HV),
        "b": torch.randn(2, 64, HV),
        "a_log": torch.randn(HV),
        "dt_bias": torch.randn(HV),
    }


def recurrence(x: dict[str, torch.Tensor], b: int, rows: list[int], state: torch.Tensor) -> torch.Tensor:
    """Float64 state [HV, V, K] after the rows, one after the other."""
    g, beta = gates(x["a"][b], x["b"][b], x["a_log"], x["dt_bias"])
    k = unit(x["k"][b]).repeat_interleave(HV // H, 1)
    state = state.double()
    for row in rows:
        state = write(state, k[row].double(), x["v"][b, row].double(), g[row].double(), beta[row].double())
    return state


@check(5e-5)
def gdn_tree_verify(device: torch.device) -> float:
    tables, _ = sample_trees(device)
    x, state, slots = recurrent_inputs(), torch.randn(SLOTS, HV, V, K) * 0.3, torch.tensor([6, 1])
    moved = {name: tensor.to(device) for name, tensor in x.items()}
    out = ops.gdn_tree_verify(*moved.values(), state.to(device), slots.to(device), tables).cpu()
    expected = torch.zeros_like(out, dtype=torch.float64)
    for b in range(2):
        q = (unit(x["q"][b]) * K**-0.5).repeat_interleave(HV // H, 1).double()
        for row in range(int(tables.count[b])):
            after = recurrence(x, b, chain_to(tables, b, row), state[slots[b]])
            expected[b, row] = torch.einsum("hvk,hk->hv", after, q[row])
        out[b, int(tables.count[b]) :] = 0
    return largest(out, expected)


PATH = torch.tensor([[0, 1, 4, 9, 9, 9], [0, 2, 2, 2, 2, 2]])
COMMIT = torch.tensor([4, 2], dtype=torch.int32)


@check(5e-6)
def gdn_replay_commit(device: torch.device) -> float:
    x, state, slots = recurrent_inputs(), torch.randn(SLOTS, HV, V, K) * 0.3, torch.tensor([0, 3])
    del x["q"]
    expected = state.double()
    for b, n in enumerate(COMMIT.tolist()):
        expected[slots[b]] = recurrence(x, b, PATH[b, :n].tolist(), state[slots[b]])
    expected[5] = recurrence(x, 0, PATH[0, :2].tolist(), state[slots[0]])
    live = state.to(device)
    track = torch.tensor([5, 4], device=device), torch.tensor([1, -1], device=device)
    moved = [tensor.to(device) for tensor in x.values()]
    ops.gdn_replay_commit(*moved, PATH.to(device), COMMIT.to(device), live, slots.to(device), *track)
    return largest(live, expected)


@check(0)
def conv_commit(device: torch.device) -> float:
    x, state, slots = (
        torch.randn(2, 64, CHANNELS),
        torch.randn(SLOTS, CHANNELS, TAPS - 1),
        torch.tensor([0, 3]),
    )
    expected = state.clone()
    for b, n in enumerate(COMMIT.tolist()):
        expected[slots[b]] = torch.cat([state[slots[b]], x[b, PATH[b, :n]].T], 1)[:, -(TAPS - 1) :]
    expected[5] = torch.cat([state[slots[0]], x[0, PATH[0, :2]].T], 1)[:, -(TAPS - 1) :]
    live = state.to(device)
    track = torch.tensor([5, 4], device=device), torch.tensor([1, -1], device=device)
    ops.conv_commit(x.to(device), PATH.to(device), COMMIT.to(device), live, slots.to(device), *track)
    return float(not torch.equal(live.cpu(), expected))


def run(device_name: str | None = None, file: str | None = None) -> int:
    """Run every check on a device, print a line each, write the JSON result; 1 when one failed."""
    device = torch.device(device_name or ("cuda" if torch.cuda.is_available() else "cpu"))
    rows = []
    for name, (function, tolerance) in CHECKS.items():
        torch.manual_seed(0)
        started = time.perf_counter()
        try:
            error, detail = function(device), ""
        except Exception as problem:  # one broken kernel must not hide the others
            error, detail = float("inf"), f"{type(problem).__name__}: {problem}"
        ok = error <= tolerance
        rows.append({"op": name, "ok": ok, "error": error, "tolerance": tolerance, "detail": detail})
        seconds = time.perf_counter() - started
        print(
            f"{'ok  ' if ok else 'FAIL'} {name:18} error {error:.1e} (at most {tolerance:.0e}) {seconds:.1f} s {detail}"
        )
    failed = sum(not row["ok"] for row in rows)
    print(f"{len(rows) - failed} passed, {failed} failed")
    if file:
        with open(file, "w", encoding="utf-8") as out:
            json.dump({"kind": "selftest", **machine(device), "rows": rows}, out, indent=1)
    return 1 if failed else 0


def machine(device: torch.device) -> dict[str, Any]:
    """Where and with what a result was made."""

    def version(package: str) -> str | None:
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            return None

    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    versions = {package: version(package) for package in ("torch", "triton", "sglang")}
    return {"device": name, **versions, "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
