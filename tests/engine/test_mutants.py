"""Negative controls: break one part of the step at a time; the tests of the text (or the rounds) must notice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from harness import Engine, Pair, add_noise
from sglang_ddtree import ops
from sglang_ddtree.verify_input import DDTreeVerifyInput

Mutate = Callable[[Any, pytest.MonkeyPatch], None]


def no_compaction(worker: Any, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ops, "compact_kv", lambda *args: 0)


def causal_mask(worker: Any, patch: pytest.MonkeyPatch) -> None:
    def mask(tables: Any) -> torch.Tensor:
        bs, width = tables.tok.shape
        return torch.ones(width, width, dtype=torch.bool).tril().expand(bs, -1, -1)

    patch.setattr(ops, "tree_mask", mask)


def row_positions(worker: Any, patch: pytest.MonkeyPatch) -> None:
    original = DDTreeVerifyInput.from_tables.__func__

    def from_tables(cls: type, tables: Any, prefix: torch.Tensor) -> Any:
        verify = original(cls, tables, prefix)
        verify.positions = (prefix[:, None] + torch.arange(tables.width)).reshape(-1)
        return verify

    patch.setattr(DDTreeVerifyInput, "from_tables", classmethod(from_tables))


def walk_without_parents(worker: Any, patch: pytest.MonkeyPatch) -> None:
    """Accepts the next row whose token fits, whether it is a child of the current row or not."""
    original = ops.walk

    def walk(target: torch.Tensor, tables: Any) -> Any:
        path, commit_lens, bonus, out_tokens = original(target, tables)
        for b in range(target.shape[0]):
            rows = [0]
            while len(rows) < path.shape[1]:
                later = torch.arange(tables.width) > rows[-1]
                hits = (later & (tables.tok[b] == target[b, rows[-1]])).nonzero().view(-1)
                if len(hits) == 0:
                    break
                rows.append(int(hits[0]))
            n = len(rows)
            path[b, :n] = torch.tensor(rows)
            out_tokens[b, :n] = target[b, rows]
            commit_lens[b], bonus[b] = n, target[b, rows[-1]]
        return path, commit_lens, bonus, out_tokens

    patch.setattr(ops, "walk", walk)


def no_commit(worker: Any, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(worker.state_free, "commit", lambda *args: worker.state_free.records.clear())


def commit_by_depth(worker: Any, patch: pytest.MonkeyPatch) -> None:
    commit = worker.state_free.commit
    patch.setattr(
        worker.state_free,
        "commit",
        lambda path, *rest: commit(torch.arange(path.shape[1]).expand_as(path), *rest),
    )


def recurrence_as_chain(worker: Any, patch: pytest.MonkeyPatch) -> None:
    """The recurrent layers see every row as the child of the row before it."""
    import copy

    original = worker.state_free.forward_extend

    def forward_extend(layer: Any, forward_batch: Any, *args: Any, **kwargs: Any) -> Any:
        if forward_batch.forward_mode.is_target_verify():
            forward_batch = copy.copy(forward_batch)
            forward_batch.spec_info = copy.copy(forward_batch.spec_info)
            tables = copy.copy(forward_batch.spec_info.tables)
            width = tables.width
            rows = torch.arange(width)[:, None] - 1 - torch.arange(tables.max_depth)[None]
            tables.anc = rows.clamp(min=-1).int().expand(tables.tok.shape[0], -1, -1)
            forward_batch.spec_info.tables = tables
        return original(layer, forward_batch, *args, **kwargs)

    patch.setattr(worker.state_free.backend, "forward_extend", forward_extend)


ON_BOTH: tuple[Mutate, ...] = (no_compaction, causal_mask, row_positions, walk_without_parents)
ON_HYBRID: tuple[Mutate, ...] = (no_commit, commit_by_depth, recurrence_as_chain)


def text(running: Engine, pair: Pair) -> list[list[int]]:
    return [a.ids for a in running.generate(pair.prompts)]


@pytest.fixture(scope="module")
def expected() -> Callable[[Pair], list[list[int]]]:
    known: dict[str, list[list[int]]] = {}

    def get(pair: Pair) -> list[list[int]]:
        if pair.name not in known:
            known[pair.name] = text(Engine.start(pair), pair)
        return known[pair.name]

    return get


def noisy(engine: type[Engine], pair: Pair) -> Engine:
    running = engine.start(pair, "DDTREE", 31)
    add_noise(running)
    return running


def test_nothing_broken_gives_the_text(pair, engine, expected):
    wanted = expected(pair)
    assert text(noisy(engine, pair), pair) == wanted


@pytest.mark.parametrize("mutate", ON_BOTH, ids=lambda m: m.__name__)
def test_broken_step_changes_the_text(pair, mutate, engine, expected, monkeypatch):
    wanted = expected(pair)
    running = noisy(engine, pair)
    mutate(running.worker, monkeypatch)
    assert text(running, pair) != wanted


@pytest.mark.parametrize("mutate", ON_HYBRID, ids=lambda m: m.__name__)
def test_broken_state_changes_the_text(hybrid, mutate, engine, expected, monkeypatch):
    wanted = expected(hybrid)
    running = noisy(engine, hybrid)
    mutate(running.worker, monkeypatch)
    assert text(running, hybrid) != wanted


def test_draft_rows_from_the_wrong_place_cost_rounds_only(pair, engine, expected, monkeypatch):
    wanted = expected(pair)
    right = engine.start(pair, "DDTREE", 31).generate(pair.prompts)
    running = engine.start(pair, "DDTREE", 31)
    inject = running.worker._append_target_hidden_to_draft_kv_by_loc

    def wrong(*, target_hidden: torch.Tensor, **kwargs: Any) -> Any:
        if kwargs.get("commit_lens") is not None:
            target_hidden = target_hidden.roll(1, 0)
        return inject(target_hidden=target_hidden, **kwargs)

    monkeypatch.setattr(running.worker, "_append_target_hidden_to_draft_kv_by_loc", wrong)
    broken = running.generate(pair.prompts)
    assert [a.ids for a in broken] == wanted
    assert sum(a.rounds for a in broken) > sum(a.rounds for a in right)
