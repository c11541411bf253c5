"""Memory asks are counted to the byte and refused, with what fits, before anything is loaded."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest
import torch
from sglang_ddtree import preflight
from sglang_ddtree.config import DDTreeConfig
from sglang_ddtree.preflight import GIB, Ask, Shape, dynamic_bytes, fits, refusal, shape_of, static_bytes

# Qwen3.6-27B: 48 recurrent layers (16 key and 48 value heads of 128), 16 attention layers with 4 KV heads of 256.
BIG = Shape(
    weights=int(53.3e9), hidden=5120, vocabulary=248320, attention_layers=16, kv_row=2 * 4 * 256 * 2, draft_layers=5,
    draft_kv_row=2 * 8 * 128 * 2, taps=5, recurrent_layers=48, channels=10240, key_heads=16, value_heads=48, key_dim=128,
    value_dim=128, conv=4, context=8192, tokens=40000,
)  # fmt: skip


def test_bytes_are_those_of_the_measured_server():
    """A server measured on an H200 with 64 rows and 8 requests: its log had records of 0.51 GB and states of 1.27 GB."""
    found = static_bytes(BIG, Ask(64, 8))
    kept = 48 * 8 * 64 * (10240 + 2 * 48) * 2
    assert kept == 508_035_072
    shared = 8 * 64 * (10240 + 48 * 128) * 2
    scratch = 8 * 16 * 64 * (64 + 64 + 1) * 4  # products of keys with keys and queries, and norms, per key head
    assert found["records"] == kept + shared + scratch
    assert round(found["recurrent states"] / GIB, 2) == 1.29  # the log's 1.27 and 0.02 for the windows
    assert found["kv"] == 40000 * (16 * 4096 + 5 * 4096)
    assert dynamic_bytes(BIG, Ask(64, 8))["logits"] == 64 * 8 * 248320 * 6


def test_masks_and_tables_grow_as_the_code_allocates_them():
    from sglang_ddtree.static_tree import StaticTree

    real = StaticTree(3, 40, 15, "cpu")
    assert preflight.nbytes(real) == static_bytes(BIG, Ask(40, 3))["tree tables and masks"]
    assert preflight.nbytes([torch.zeros(3), {"ignored"}, SimpleNamespace(x=torch.zeros(2, dtype=torch.int64))]) == 28


@pytest.mark.parametrize(("rows", "requests", "gib"), [(1025, 32, 130), (257, 48, 96), (65, 200, 96), (129, 64, 80)])
def test_the_largest_that_fits_is_named_and_does_fit(rows, requests, gib):
    free, ask = gib * GIB, Ask(rows, requests)
    sentence = refusal(BIG, ask, free, 0.85)
    assert sentence is not None
    assert "\n" not in sentence
    assert sentence.endswith("fits.")
    for name, value in re.findall(r"--(speculative-num-draft-tokens|max-running-requests) (\d+)", sentence):
        smaller = Ask(int(value), requests) if name.startswith("spec") else Ask(rows, int(value))
        larger = Ask(int(value) + 1, requests) if name.startswith("spec") else Ask(rows, int(value) + 1)
        assert fits(BIG, smaller, free, 0.85)
        assert not fits(BIG, larger, free, 0.85)


def test_what_fits_is_not_refused_and_what_can_never_fit_says_so():
    assert refusal(BIG, Ask(64, 8), 139 * GIB, 0.85) is None
    assert "no smaller tree fits" in str(refusal(BIG, Ask(64, 8), 40 * GIB, 0.85))


def test_shipped_pairs_are_read_from_their_folders(pair):
    shape = shape_of(pair.target, pair.draft, DDTreeConfig.read(16, 64), 1024)
    assert (shape.vocabulary, shape.hidden, shape.draft_layers) == (2048, 192, 2)
    assert (shape.recurrent_layers, shape.attention_layers) == ((3, 1) if pair.name == "tiny-hybrid" else (0, 4))
    assert shape.weights > 4_000_000


def test_a_server_that_would_not_fit_is_refused_with_its_arguments(pair, monkeypatch):
    args = SimpleNamespace(
        model_path=str(pair.target), speculative_draft_model_path=str(pair.draft), context_length=1024,
        tp_size=1, max_total_tokens=None, max_running_requests=64, mem_fraction_static=0.8,
    )  # fmt: skip
    config = DDTreeConfig.read(16, 1025)
    for gib, refused in ((24, False), (1, True)):
        monkeypatch.setattr(preflight, "free_memory", lambda device, gib=gib: gib * GIB)
        assert (preflight.check(args, config) is not None) == refused
    monkeypatch.setattr(preflight, "free_memory", lambda device: None)
    assert preflight.check(args, config) is None


def test_ranks_of_a_group_share_what_is_split():
    whole, half = static_bytes(BIG, Ask(64, 8)), static_bytes(BIG.on_one_of(2), Ask(64, 8))
    assert half["records"] * 2 == whole["records"]
    assert half["kv"] * 2 == whole["kv"]
    assert half["tree tables and masks"] == whole["tree tables and masks"]


def test_the_fullest_of_several_gpus_decides(dense, monkeypatch):
    args = SimpleNamespace(
        model_path=str(dense.target), speculative_draft_model_path=str(dense.draft), context_length=1024,
        tp_size=2, base_gpu_id=3, max_total_tokens=None, max_running_requests=64, mem_fraction_static=0.8,
    )  # fmt: skip
    for second, refused in ((24, False), (1, True)):
        free = {3: 24 * GIB, 4: second * GIB}
        monkeypatch.setattr(preflight, "free_memory", free.__getitem__)
        assert (preflight.check(args, DDTreeConfig.read(16, 1025)) is not None) == refused


@pytest.mark.parametrize(("visible", "asked"), [(None, "1"), ("", "1"), ("4,6", "6"), ("GPU-aa, GPU-bb", "GPU-bb")])
def test_the_gpu_that_is_asked_about_is_the_one_the_process_sees(visible, asked, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    commands = []
    run = lambda command, **_: commands.append(command) or SimpleNamespace(stdout="512\n")  # noqa: E731
    monkeypatch.setattr(preflight.subprocess, "run", run)
    assert preflight.free_memory(1) == 512 << 20
    assert f"--id={asked}" in commands[0]
