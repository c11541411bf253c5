"""SGLang's page-table kernel writes past a row that is only as wide as the context; a widened row takes it all."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from sglang_ddtree.verify_attention import widen_page_table

CONTEXT, ROWS = 32, 16


@pytest.fixture(scope="module")
def upstream() -> ModuleType:
    """The kernel's file alone: the package around it needs more than this machine has."""
    spec = importlib.util.find_spec("sglang")
    if spec is None or not spec.submodule_search_locations:
        pytest.fail("These tests run in the engine's environment, which has sglang.")
    file = Path(next(iter(spec.submodule_search_locations))) / "kernels/ops/kvcache/trtllm_mha_page_table.py"
    found = importlib.util.spec_from_file_location("upstream_page_table", file)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def filled(upstream: ModuleType, width: int) -> torch.Tensor:
    """Request 0 stands just before the context limit; request 1's row must keep its -1."""
    slots = torch.arange(2 * (CONTEXT + 2 * ROWS), dtype=torch.int32).view(2, -1) + 100
    table = torch.full((2, width), -1, dtype=torch.int32)
    lengths = torch.tensor([CONTEXT - 2 + ROWS, 0], dtype=torch.int32)
    upstream.build_trtllm_mha_page_table(slots, torch.tensor([0, 1]), lengths, table, 1)
    return table


def test_a_row_of_context_width_spills_into_the_next(upstream: ModuleType) -> None:
    table = filled(upstream, CONTEXT)
    assert int((table[1] >= 0).sum()) == ROWS - 2


@pytest.mark.parametrize("page_size", [1, 16])
def test_a_widened_row_does_not(upstream: ModuleType, page_size: int) -> None:
    backend = SimpleNamespace(max_context_len=CONTEXT, page_size=page_size, max_num_pages=CONTEXT // page_size)
    widen_page_table(backend, 2 * ROWS)
    assert backend.max_num_pages == (CONTEXT + 2 * ROWS) // page_size
    table = filled(upstream, backend.max_context_len)
    assert bool((table[1] == -1).all())
    assert table[0, : CONTEXT - 2 + ROWS].tolist() == list(range(100, 100 + CONTEXT - 2 + ROWS))


def test_backends_without_such_a_table_stay_as_they_are() -> None:
    backend = SimpleNamespace(max_context_len=CONTEXT)
    widen_page_table(backend, 8)
    assert vars(backend) == {"max_context_len": CONTEXT}
