"""Every self-test case in Triton's interpreter: each op, each tile configuration, odd sizes, poisoned outputs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sglang_ddtree.selftest_kernels import Case, cases, run_case

ALL = list(cases("cpu"))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy remarks on the NaN the cases put in on purpose
@pytest.mark.parametrize("case", ALL, ids=[f"{case.op}: {case.name}" for case in ALL])
def test_the_kernel_computes_what_its_reference_does(case: Case) -> None:
    result = run_case(case)
    assert result.ok, f"error {result.error:.3g}, limit {result.limit:.3g} {result.detail}"


def test_every_op_and_every_verify_tile_has_cases() -> None:
    from sglang_ddtree.kernels import gdn_tiles
    from sglang_ddtree.kernels.common import variants

    assert {variant.op for variant in variants()} == {case.op for case in ALL}
    for config in gdn_tiles.CONFIGS:  # of tiles that differ in their warps alone, one
        names = [str(replace(config, warps=warps)) for warps in (4, 8)]
        assert any(name in case.name for case in ALL for name in names), config
