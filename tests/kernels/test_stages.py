"""A profile is cut into steps and stages: names and places decide, overlapping kernels count once."""

from __future__ import annotations

from typing import Any

from sglang_ddtree.bench.stages import cut, summary

STEP = (
    ("_prepare_dflash_draft_block_contig_kernel", "draft"), ("nvjet_sm90_gemm", "draft"), ("_select_kernel", "top-k"),
    ("_tree_build_kernel", "build"), ("_ancestor_bits_kernel", "build"), ("nvjet_qkv_gemm", "verify matrix products"),
    ("_conv_tree_kernel", "verify convolution"), ("_pairs_kernel", "verify GDN"), ("_gdn_tree_verify_kernel", "verify GDN"),
    ("_tree_attention_kernel", "verify attention"), ("_merge_kernel", "verify attention"),
    ("rmsnorm", "verify norms, activations, copies"), ("nvjet_head_gemm", "verify matrix products"), ("argmax", "sample"),
    ("_walk_kernel", "walk"), ("_compact_kv_kernel", "compact"), ("_gdn_replay_commit_kernel", "commit"),
    ("_conv_commit_kernel", "commit"), ("splitKreduce_kernel", "inject"),
)  # fmt: skip


def trace(steps: int) -> list[dict[str, Any]]:
    """Kernels of 10 us with 2 us between them; per step one wait for an event and one copy to pinned memory."""
    events: list[dict[str, Any]] = []
    at = 0.0
    for _ in range(steps):
        for name, _ in STEP:
            events.append({"cat": "kernel", "name": name, "ts": at, "dur": 10.0})
            at += 12.0
        events.append({"cat": "cuda_runtime", "name": "cudaEventSynchronize", "ts": at - 3, "dur": 1.0})
        events.append({"cat": "gpu_memcpy", "name": "Memcpy DtoH (Device -> Pinned)", "ts": at - 2.0, "dur": 1.0})
    return events


def test_every_kernel_has_its_stage() -> None:
    steps = cut(trace(6))
    assert len(steps) == 3  # the first two follow the prefill, the last has no end
    want: dict[str, float] = {}
    for _, stage in STEP:
        want[stage] = want.get(stage, 0.0) + 10.0
    want["inject"] += 1.0  # the copy
    want["gaps"] = 12.0 * len(STEP) - 10.0 * len(STEP) - 1.0
    assert steps[0].stages == want
    assert steps[0].span == 12.0 * len(STEP)


def test_waits_and_means_are_per_step() -> None:
    found = summary(trace(6))
    assert found["steps"] == 3
    assert found["us_per_step"] == 12.0 * len(STEP)
    assert found["waits_per_step"] == {
        "cudaStreamSynchronize": 0.0, "cudaDeviceSynchronize": 0.0, "cudaEventSynchronize": 1.0,
        "copies to the host": 1.0, "to pageable memory": 0.0,
    }  # fmt: skip


def test_kernels_at_the_same_time_count_once_and_a_linear_step_goes_by_names() -> None:
    events = []
    for i in range(5):
        for j, name in enumerate(("_prepare_dflash_draft_block", "gemm", "fused_sigmoid_gating", "copy")):
            events.append({"cat": "kernel", "name": name, "ts": 100.0 * i + 10.0 * j, "dur": 15.0})
    step = cut(events)[0]
    assert step.stages["GDN"] == 10.0
    assert step.stages["matrix products"] == 10.0
    assert step.stages["gaps"] == 100.0 - 45.0


def test_a_trace_without_steps_is_said_to_have_none() -> None:
    assert (
        summary([{"cat": "kernel", "name": "gemm", "ts": 0.0, "dur": 1.0}])["error"] == "no whole step in the profile"
    )
