"""Every kernel compiles for every architecture and stays within its shared memory; no GPU is involved."""

from __future__ import annotations

import os

import pytest

from sglang_ddtree.compile_matrix import Row, matrix
from sglang_ddtree.kernels.common import SHARED_LIMIT


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return list(matrix(workers=os.cpu_count() or 1))


def test_all_compile_and_fit(rows: list[Row]) -> None:
    assert not [row for row in rows if row.error]


def test_every_architecture_has_every_op(rows: list[Row]) -> None:
    ops = {row.op for row in rows}
    assert {arch: {row.op for row in rows if row.arch == arch} for arch in SHARED_LIMIT} == dict.fromkeys(SHARED_LIMIT, ops)


def test_a_kernel_that_takes_too_much_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SHARED_LIMIT, 90, 16)
    found = [row for row in matrix([90], ["ancestor_bits"]) if row.error]
    assert found
    assert "shared memory" in found[0].error
