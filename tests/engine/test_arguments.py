"""What DDTREE accepts, refuses, and says when SGLang is not what it knows."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from sglang_ddtree import compat, hooks
from sglang_ddtree.__main__ import main
from sglang_ddtree.algo import refusals, resolve_args
from sglang_ddtree.config import DDTreeConfig


def arguments(**changes: Any) -> SimpleNamespace:
    values: dict[str, Any] = {
        "speculative_draft_model_path": "/models/draft",
        "device": "cpu",
        "attention_backend": "intel_amx",
        "tp_size": 1,
        "pp_size": 1,
        "enable_dp_attention": False,
        "speculative_dflash_block_size": 16,
        "speculative_num_draft_tokens": None,
        "disaggregation_mode": "null",
        "disable_overlap_schedule": False,
    }
    return SimpleNamespace(**{**values, **changes})


def test_widths_and_gates_are_set():
    args = arguments()
    resolve_args(args)
    assert args.speculative_num_draft_tokens == 32
    assert args.speculative_eagle_topk == 2
    assert args.speculative_num_steps == 1
    assert args.disable_overlap_schedule


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"speculative_draft_model_path": None}, "--speculative-draft-model-path"),
        ({"device": "xpu"}, "on xpu"),
        ({"device": "cuda", "attention_backend": "fa3"}, "sglang 0.5.16"),
        ({"attention_backend": "torch_native"}, "intel_amx"),
        ({"tp_size": 2}, "--tp-size"),
        ({"pp_size": 2}, "--pp-size"),
        ({"enable_dp_attention": True}, "--enable-dp-attention"),
        ({"enable_lora": True}, "LoRA"),
        ({"disaggregation_mode": "prefill"}, "--disaggregation-mode"),
        ({"speculative_draft_window_size": 512}, "--speculative-draft-window-size"),
        ({"enable_linear_replayssm_spec": True}, "replayssm"),
        ({"enable_return_hidden_states": True}, "--enable-return-hidden-states"),
        ({"speculative_num_draft_tokens": 15}, "--speculative-num-draft-tokens"),
        ({"speculative_num_draft_tokens": 1026}, "1025"),
    ],
)
def test_refusals_are_one_sentence_that_names_the_argument(changes, words):
    with pytest.raises(ValueError) as refused:
        resolve_args(arguments(**changes))
    sentence = str(refused.value)
    assert words in sentence
    assert "\n" not in sentence
    assert sentence.endswith(".")


def test_draft_without_a_configuration(tmp_path):
    args = arguments(
        speculative_draft_model_path=str(tmp_path),
        speculative_dflash_block_size=None,
        trust_remote_code=False,
        speculative_draft_model_revision=None,
    )
    with pytest.raises(ValueError, match=r"^DDTREE can't read the draft's config.json in .*: check the path\.$"):
        resolve_args(args)


def test_nothing_is_refused_without_reason():
    assert refusals(arguments()) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SGLANG_DDTREE_TOPK", "0"),
        ("SGLANG_DDTREE_TOPK", "many"),
        ("SGLANG_DDTREE_SPINE", "16"),
        ("SGLANG_DDTREE_OFF_SPINE", "-1"),
        ("SGLANG_DDTREE_OFF_SPINE", "nan"),
        ("SGLANG_DDTREE_STATE_FREE", "2"),
        ("SGLANG_DDTREE_PREFIX", "triton"),
    ],
)
def test_wrong_knobs_are_named(name, value):
    with pytest.raises(ValueError, match=name):
        DDTreeConfig.read(16, 32, {name: value})


def test_defaults_of_the_knobs():
    assert DDTreeConfig.read(16, 16, {}).topk == 15
    config = DDTreeConfig.read(16, 65, {"SGLANG_DDTREE_SPINE": "8", "SGLANG_DDTREE_OFF_SPINE": "0.5"})
    assert (config.topk, config.nodes, config.spine_depth, config.off_spine_penalty) == (32, 64, 8, 0.5)


def test_sampling_falls_back_to_greedy_and_is_counted(dense, engine):
    running = engine.start(dense, "DDTREE", 15)
    request = running.add(dense.prompts[0], 40)
    request.sampling_params.temperature = 0.8
    request.sampling_params.top_k = 50
    running.run([request])
    assert running.worker.metrics.fallbacks["sampling"] == request.spec_verify_ct > 0
    # The first token comes from prefill, which does sample; the rest is the target's arg-max after it.
    first, *rest = list(request.output_ids)[:40]
    assert engine.start(dense).generate([[*dense.prompts[0], first]], 39)[0].ids == rest


@pytest.mark.parametrize("version", ["0.5.16", "0.5.20", "0.5.23"])
def test_every_line_loads(version):
    assert compat.load(version).version == version


def test_hooks_fit_the_installed_sglang():
    rows = hooks.table()
    assert [row for row in rows if not row["ok"]] == []
    assert {"target", "kind", "why", "ok", "detail"} == set(rows[0])
    assert len({row["target"] for row in rows}) == len(rows)


def test_a_changed_function_is_noticed(monkeypatch):
    from sglang.srt.speculative.dflash_worker_v2 import DFlashWorkerV2

    monkeypatch.setattr(DFlashWorkerV2, "_make_next_draft_input_decode", lambda self, bonus: None)
    monkeypatch.delattr(DFlashWorkerV2, "_validate_phase1_sampling_support")
    found = hooks.differences(compat.line())
    assert any("has no parameter bonus_tokens, new_seq_lens" in text for text in found)
    assert any("_validate_phase1_sampling_support is gone" in text for text in found)
    with pytest.raises(ValueError, match="and 1 more"):
        hooks.require()


def test_unknown_version_is_refused_with_what_differs(monkeypatch):
    compat.line.cache_clear()
    monkeypatch.setattr(compat, "installed_version", lambda: "0.5.99")
    with pytest.raises(compat.UnsupportedSGLang) as refused:
        compat.line()
    assert "0.5.16, 0.5.20, 0.5.23, not 0.5.99" in str(refused.value)
    assert "\n" not in str(refused.value)
    monkeypatch.undo()
    compat.line.cache_clear()
    compat.line()


def test_hooks_command_prints_one_json_document(capsys):
    assert main(["hooks", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["ok"]
    assert len(document["hooks"]) == len(hooks.hooks_of(compat.line()))


def test_a_hybrids_tracking_interval_is_raised_before_sglang_compares_it(monkeypatch):
    """SGLang 0.5.16 compares it with T before it asks the algorithm; a stand-in for its method shows the order."""
    from sglang.srt.server_args import ServerArgs
    from sglang_ddtree.plugin import before_hybrid_check

    seen = []
    monkeypatch.setattr(
        ServerArgs, "_handle_mamba_radix_cache", lambda args, model_arch: seen.append(args.interval), raising=False
    )
    compat.load("0.5.16").watch_arguments(lambda args: setattr(args, "interval", args.interval * 2))
    ServerArgs._handle_mamba_radix_cache(SimpleNamespace(interval=256), model_arch="any")
    assert seen == [512]
    for algorithm, rows, interval in (("DDTREE", 257, 512), ("DDTREE", None, 256), ("DFLASH", 257, 256)):
        args = arguments(speculative_algorithm=algorithm, speculative_num_draft_tokens=rows, mamba_track_interval=256)
        before_hybrid_check(args)
        assert args.mamba_track_interval == interval


def test_two_gpus_and_no_more():
    for tp, refused in ((1, False), (2, False), (3, True)):
        said = refusals(arguments(device="cuda", attention_backend="fa3", tp_size=tp))
        assert any("--tp-size" in sentence for sentence in said) == refused
