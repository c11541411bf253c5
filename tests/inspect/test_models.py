"""Models from their files, and the memory and time of every node budget against published figures."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.inspecting import memory, roofline
from tasks.inspecting.memory import BUDGETS, Setting, budget, record_bytes, snapshot_bytes
from tasks.inspecting.model_config import ModelFacts, ModelUnreadable, read_model

FIXTURES = Path(__file__).parent / "fixtures" / "models"
GB = 10**9


def model(name: str, **changes: Any) -> ModelFacts:
    texts = json.loads((FIXTURES / f"{name}.json").read_text())
    texts["config.json"].update(changes)
    return read_model(f"/models/{name}", {file: json.dumps(value) for file, value in texts.items()})


TARGET, DRAFT = model("hybrid_27b"), model("draft_27b")


def test_hybrid_target() -> None:
    assert (TARGET.kind, TARGET.layers, TARGET.full.layers) == ("hybrid", 64, 16)
    assert TARGET.linear is not None
    assert (TARGET.linear.layers, TARGET.linear.value_heads, TARGET.linear.conv_channels) == (48, 48, 10240)
    assert (TARGET.vocab, TARGET.mrope, TARGET.thinking) == (248320, True, "switchable")
    assert (TARGET.eos, TARGET.tokenizer, TARGET.weights) == ([248046, 248044], "Qwen2Tokenizer", 55563038720)
    assert 25 * GB < TARGET.parameters < 28 * GB


def test_draft() -> None:
    assert (DRAFT.kind, DRAFT.block, DRAFT.sliding_window, DRAFT.sliding_layers) == ("dense", 16, 2048, 4)
    inner = model("draft_27b", block_size=None, dflash_config={"block_size": 8})
    assert inner.block == 8


@pytest.mark.parametrize(
    ("name", "kind", "billions", "active"),
    [
        ("dense_8b", "dense", 8.2, 7.6),
        ("moe_30b", "moe", 30.5, 3.0),
        ("hybrid_moe_35b", "hybrid-moe", 34.4, 2.7),
        ("hybrid_27b", "hybrid", 26.4, 25.1),
    ],
)
def test_kinds_and_sizes(name: str, kind: str, billions: float, active: float) -> None:
    found = model(name)
    assert found.kind == kind
    assert found.parameters / GB == pytest.approx(billions, rel=0.05)
    assert found.active_parameters / GB == pytest.approx(active, rel=0.08)


def test_quantisation() -> None:
    assert model("hybrid_27b").quantisation == "none"
    assert model("hybrid_fp8").quantisation == "fp8"
    assert model("hybrid_nvfp4").quantisation == "modelopt-fp4"
    assert model("hybrid_fp8").weights < 0.55 * model("hybrid_27b").weights
    assert model("dense_8b", quantization_config={"quant_method": "awq", "bits": 4}).quantisation == "awq"


def test_other_recurrences_are_named() -> None:
    found = model("kimi")
    assert (found.other_recurrence, found.linear, found.hybrid) == ("kimi_linear", None, True)


@pytest.mark.parametrize(
    ("texts", "says"),
    [
        ({}, "has no config.json"),
        ({"config.json": "{"}, "config.json is not valid JSON"),
        ({"config.json": "[1]"}, "holds no JSON object"),
        ({"config.json": "{}"}, "no positive num_hidden_layers"),
        ({"config.json": '{"num_hidden_layers": 2, "num_attention_heads": 0}'}, "no positive num_attention_heads"),
    ],
)
def test_bad_folders_give_one_sentence(texts: dict[str, str], says: str) -> None:
    with pytest.raises(ModelUnreadable, match=says):
        read_model("/m", texts)


def test_bytes_per_node_are_the_published_ones() -> None:
    """27B hybrid: 153.94 MB of states per node upstream, 1.788 MB of records, 1.001 MB lean, 64 KiB of KV."""
    assert snapshot_bytes(TARGET.linear) == 153_944_064
    assert record_bytes(TARGET.linear) == 1_787_904
    assert record_bytes(TARGET.linear, lean=True) == 1_001_472
    assert TARGET.full.kv_bytes_per_token() == 65_536


@pytest.mark.parametrize(
    ("nodes", "upstream_gb", "fat_mb", "lean_mb", "kv_mb", "logits_mb", "scratch_mb", "mask_mb"),
    [
        (16, 2.62, 30, 17, 2, 17, 0.8, 0.6),
        (64, 10.0, 116, 65, 9, 65, 3.2, 2.1),
        (256, 39.6, 459, 257, 34, 255, 12.6, 8.5),
        (1024, 157.8, 1830, 1030, 134, 1020, 50, 34.6),
    ],
)
def test_the_memory_table_of_the_design(
    nodes: int,
    upstream_gb: float,
    fat_mb: float,
    lean_mb: float,
    kv_mb: float,
    logits_mb: float,
    scratch_mb: float,
    mask_mb: float,
) -> None:
    setting = Setting(gpu_bytes=141 * GB, running_requests=1, context=32768)
    row = budget(TARGET, DRAFT, setting, nodes)
    lean = budget(TARGET, DRAFT, Setting(gpu_bytes=141 * GB, lean_records=True), nodes)
    per_request = 2  # the pools hold one row more than running requests
    assert row.upstream_snapshots / per_request / GB == pytest.approx(upstream_gb, rel=0.01)
    assert row.records / per_request / 1e6 == pytest.approx(fat_mb, rel=0.02)
    assert lean.records / per_request / 1e6 == pytest.approx(lean_mb, rel=0.02)
    assert row.kv_slots / 1e6 == pytest.approx(kv_mb, rel=0.15)
    assert row.logits / 1e6 == pytest.approx(logits_mb, rel=0.02)
    assert row.scratch / 1e6 == pytest.approx(scratch_mb, rel=0.06)
    assert row.masks / 1e6 == pytest.approx(mask_mb, rel=0.08)


def test_what_fits_on_96_gb() -> None:
    """A 16-bit 27B on a 96 GB card: upstream's states stop at 64 nodes, the records go on."""
    setting = Setting(gpu_bytes=97887 << 20, running_requests=1, context=8192, fraction_static=0.95)
    rows = {row.nodes: row for row in memory.budgets(TARGET, DRAFT, setting)}
    assert rows[64].upstream_fits
    assert not rows[128].upstream_fits
    assert rows[256].fits
    assert rows[1024].fits


def test_nothing_fits_on_a_small_card() -> None:
    row = budget(TARGET, DRAFT, Setting(gpu_bytes=24 << 30), 15)
    assert not row.fits
    assert "GiB short of one 32768-token context" in row.reason


def test_tensor_parallel_halves_what_is_sharded() -> None:
    one, two = (budget(TARGET, DRAFT, Setting(gpu_bytes=141 * GB, tp=tp), 63) for tp in (1, 2))
    assert two.records == one.records // 2
    assert two.logits == one.logits


@settings(deadline=None)
@given(
    st.integers(24, 200),
    st.sampled_from([1, 2, 4]),
    st.integers(1, 64),
    st.integers(1024, 262144),
    st.floats(0.3, 0.95),
    st.sampled_from(["hybrid_27b", "dense_8b", "moe_30b", "hybrid_moe_35b"]),
)
def test_more_nodes_never_need_less(gb: int, tp: int, requests: int, context: int, share: float, name: str) -> None:
    setting = Setting(gpu_bytes=gb * GB, tp=tp, running_requests=requests, context=context, fraction_static=share)
    rows = memory.budgets(model(name), DRAFT, setting)
    assert [r.nodes for r in rows] == list(BUDGETS)
    assert all(a.bytes < b.bytes and a.kv_tokens >= b.kv_tokens for a, b in itertools.pairwise(rows))
    fits = [r.fits for r in rows]
    assert fits == sorted(fits, reverse=True)
    assert all(r.fits or not r.upstream_fits for r in rows)


H200 = roofline.device_of("NVIDIA H200")
assert H200 is not None


def test_predictions_are_near_what_an_h200_measured() -> None:
    """27B hybrid at batch 1: 14.6 ms autoregressive, 19.8 ms linear DFLASH (with upstream's slower state verify)."""
    setting = Setting(gpu_bytes=141 * GB)
    plain = roofline.step_s(TARGET, None, H200, 1, setting)
    linear = roofline.step_s(TARGET, DRAFT, H200, 16, setting)
    assert plain == pytest.approx(14.6e-3, rel=0.15)
    assert linear == pytest.approx(19.8e-3, rel=0.15)
    assert 100 <= roofline.crossover_rows(TARGET, H200) <= 250


def test_wide_trees_cost_little_at_batch_one_and_much_at_batch_eight() -> None:
    one, eight = (
        {
            p.nodes: p
            for p in roofline.predict(TARGET, DRAFT, H200, Setting(gpu_bytes=141 * GB, running_requests=n), BUDGETS)
        }
        for n in (1, 8)
    )
    assert one[64].break_even_gain < 0.05
    assert eight[64].break_even_gain > 0.3
    assert one[1023].break_even_gain > 2
    assert roofline.widest_useful(list(one.values()), 0.2) in (127, 128, 255, 256)
    assert roofline.widest_useful(list(eight.values()), 0.2) in (15, 16, 22, 31, 32)


def test_a_mixture_reads_more_experts_as_rows_grow() -> None:
    moe = model("moe_30b")
    assert roofline.touched_share(moe, 1) == pytest.approx(8 / 128)
    assert roofline.touched_share(moe, 64) > 0.98


@pytest.mark.parametrize(
    "name", ["NVIDIA RTX PRO 6000 Blackwell Server Edition", "NVIDIA RTX A6000", "NVIDIA H100 PCIe"]
)
def test_known_devices(name: str) -> None:
    assert roofline.device_of(name) is not None


def test_unknown_device_gives_no_prediction() -> None:
    assert roofline.device_of("Imaginary 9000") is None
