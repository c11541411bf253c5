"""How far the recurrent state of a layer is from an exact replay after many tokens, committed step by step.

Kernel level, at the dimensions of Qwen3.6-27B: every step commits the deepest path of another tree, once by our replay
and once by SGLang's recurrent kernel over the same rows, and both are compared with the same rows in float64.  Printed as one line of JSON.
"""

from __future__ import annotations

import json
from typing import Any

import torch
import torch.nn.functional as F

from ..kernels.gdn_replay_commit import gdn_replay_commit
from ..selftest_data import Random, deepest_path
from ..selftest_state import REAL
from ..selftest_upstream import Layer

MOST = 1.1


def exact(layer: Layer, rows: list[int], state: torch.Tensor) -> torch.Tensor:
    """The gated delta rule over some rows in float64; state [HV, V, K] -> the state after them."""
    rate = -layer.a_log.double().exp()
    group = layer.shape.value_heads // layer.shape.key_heads
    for row in rows:
        decay = rate * F.softplus(layer.a[0, row].double() + layer.dt_bias.double())
        beta = torch.sigmoid(layer.b[0, row].double())
        key = layer.k[0, row].double()
        key = (key * (key.square().sum(-1, keepdim=True) + 1e-6).rsqrt()).repeat_interleave(group, 0)
        state = state * decay.exp()[:, None, None]
        change = beta[:, None] * (layer.v[0, row].double() - (state @ key[:, :, None]).squeeze(-1))
        state = state + change[:, :, None] * key[:, None, :]
    return state


def drift(tokens: int = 2000) -> dict[str, Any]:
    """{"ok", "tokens", "ours", "linear", "ratio"}: relative errors of the state after at least ``tokens`` tokens."""
    shape = (2, REAL.value_heads, REAL.value_dim, REAL.key_dim)
    ours, theirs = torch.zeros(shape, device="cuda"), torch.zeros(shape, device="cuda")
    true = torch.zeros(shape[1:], dtype=torch.float64, device="cuda")
    done, step = 0, 0
    while done < tokens:
        tables = Random(1000 + step, "cuda").tree(1, 63, 15, spine=step % 16)
        path, lengths = deepest_path(tables)
        layer = Layer(REAL, 1, tables, seed=step)
        rows = path[0, : int(lengths[0])].tolist()
        layer.packed(path[:, : len(rows)])(theirs)
        gdn_replay_commit(
            layer.k, layer.v, layer.a, layer.b, layer.a_log, layer.dt_bias, path, lengths, ours, layer.slots
        )
        true = exact(layer, rows, true)
        done, step = done + len(rows), step + 1
    errors = [float((x[1].double() - true).norm() / true.norm()) for x in (ours, theirs)]
    ratio = errors[0] / errors[1]
    return {"ok": ratio <= MOST, "tokens": done, "steps": step, "ours": errors[0], "linear": errors[1], "ratio": ratio}


if __name__ == "__main__":
    print(json.dumps(drift()))
