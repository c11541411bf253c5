"""Every kernel compiles for every architecture and stays within its shared memory; no GPU is involved."""

from __future__ import annotations

import os

import pytest
from sglang_ddtree.compile_matrix import Row, matrix
from sglang_ddtree.kernels.common import SHARED_LIMIT, Variant

# The whole matrix takes about 15 minutes on two cores: CI runs it, a quick run takes the newest and the tightest GPU.
EVERYTHING = os.environ.get("CI") == "true"
ARCHITECTURES = tuple(SHARED_LIMIT) if EVERYTHING else (90, 120)
# Of the verify's kernels and the attention's tiles.
QUICK = {
    "gdn_tree_verify": (
        "pairs 64", "16x64x2 W4 bf16x3 single=True", "32x128x1 W4 bf16x3 single=False", "32x128x1 W8 root early bf16x3 single=False",
    ),
    "tree_attention": ("D64", "D128", "D256 128x64", "D256 64x32 W4", "D256 32x32", "merge"),
}  # fmt: skip


def wanted(variant: Variant) -> bool:
    return EVERYTHING or variant.op not in QUICK or variant.label.startswith(QUICK[variant.op])


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return list(matrix(ARCHITECTURES, workers=os.cpu_count() or 1, only=wanted))


def test_all_compile_and_fit(rows: list[Row]) -> None:
    assert not [row for row in rows if row.error]


def test_every_architecture_has_every_op(rows: list[Row]) -> None:
    ops = {row.op for row in rows}
    assert {arch: {row.op for row in rows if row.arch == arch} for arch in ARCHITECTURES} == dict.fromkeys(
        ARCHITECTURES, ops
    )


def test_a_kernel_that_takes_too_much_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SHARED_LIMIT, 90, 16)
    found = [row for row in matrix([90], ["ancestor_bits"]) if row.error]
    assert found
    assert "shared memory" in found[0].error
