"""The rows' samples follow the request's own filtered distribution."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from sglang_ddtree.target_tokens import target_tokens

V, ROWS = 8, 4000
NOWHERE = torch.zeros(0, dtype=torch.int64)  # positions matter to seeded requests only


def sampling(temperature: float, top_k: int = 1 << 30, top_p: float = 1.0, min_p: float = 0.0) -> SimpleNamespace:
    return SimpleNamespace(
        is_all_greedy=top_k == 1, temperatures=torch.tensor([[temperature]]), top_ks=torch.tensor([top_k]),
        top_ps=torch.tensor([top_p]), min_ps=torch.tensor([min_p]), need_top_k_sampling=top_k < 1 << 30,
        need_top_p_sampling=top_p < 1, need_min_p_sampling=min_p > 0,
        sampling_seed=None,
    )  # fmt: skip


def expected(logits: torch.Tensor, temperature: float, top_k: int, top_p: float, min_p: float) -> torch.Tensor:
    """The filtered distribution, written out token by token."""
    probs = (logits.double() / temperature).softmax(-1)
    order = probs.argsort(descending=True).tolist()
    kept, mass = torch.zeros(V, dtype=torch.float64), 0.0
    for rank, token in enumerate(order):
        p = float(probs[token])
        if rank == 0 or (rank < top_k and mass <= top_p and p >= min_p * float(probs[order[0]])):
            kept[token] = p
        mass += p
    return kept / kept.sum()


@pytest.mark.parametrize("temperature", [0.7, 1.0])
@pytest.mark.parametrize(
    ("top_k", "top_p", "min_p"), [(1 << 30, 1.0, 0.0), (3, 1.0, 0.0), (1 << 30, 0.7, 0.0), (5, 0.9, 0.1)]
)
def test_chi_square(temperature: float, top_k: int, top_p: float, min_p: float) -> None:
    torch.manual_seed(1)
    logits = torch.randn(V) * 1.5
    tokens = target_tokens(logits.repeat(ROWS, 1), sampling(temperature, top_k, top_p, min_p), ROWS, NOWHERE).view(-1)
    want = expected(logits, temperature, top_k, top_p, min_p)
    counts = torch.bincount(tokens, minlength=V).double()
    assert not counts[want == 0].any()
    possible = want > 0
    chi = ((counts - ROWS * want)[possible] ** 2 / (ROWS * want[possible])).sum()
    assert chi < 24.3  # 0.1 % point of chi-square with 7 degrees of freedom; fewer degrees have a smaller one


def test_greedy_rows_take_the_best_token_beside_sampled_ones() -> None:
    both = sampling(1.0)
    both.temperatures = torch.tensor([[1.0], [1.0]])
    both.top_ks = torch.tensor([1, 1 << 30])
    both.top_ps = both.min_ps = torch.ones(2)
    logits = torch.randn(2 * 50, V)
    tokens = target_tokens(logits, both, 50, NOWHERE)
    assert torch.equal(tokens[0], logits[:50].argmax(-1))
    assert not torch.equal(tokens[1], logits[50:].argmax(-1))
