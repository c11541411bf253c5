"""Every known mismatch of draft and target is caught under its own name, and a fitting pair has none."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.compat import check_configs, check_pair

MODELS = Path(__file__).resolve().parents[2] / "engine" / "models"
PAIRS = ("tiny-dense", "tiny-hybrid")


@pytest.fixture
def configs() -> tuple[dict[str, Any], dict[str, Any]]:
    """A pair shaped like the published 27B one."""
    text = {
        "model_type": "qwen3_5_text",
        "num_hidden_layers": 64,
        "hidden_size": 5120,
        "vocab_size": 248320,
        "num_attention_heads": 24,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "max_position_embeddings": 262144,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 48,
        "eos_token_id": 248044,
        "dtype": "bfloat16",
        "mamba_ssm_dtype": "float32",
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "mrope_section": [11, 11, 10]},
    }
    target = {"architectures": ["Qwen3_5ForConditionalGeneration"], "text_config": text, "tie_word_embeddings": False}
    draft = {
        "architectures": ["DFlashDraftModel"],
        "hidden_size": 5120,
        "vocab_size": 248320,
        "num_hidden_layers": 5,
        "num_target_layers": 64,
        "block_size": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "layer_types": ["sliding_attention"] * 4 + ["full_attention"],
        "sliding_window": 2048,
        "use_sliding_window": True,
        "rope_theta": 1e7,
        "max_position_embeddings": 262144,
        "dtype": "bfloat16",
        "dflash_config": {"mask_token_id": 248070, "target_layer_ids": [1, 16, 31, 46, 61]},
    }
    return target, draft


def found(target: dict[str, Any], draft: dict[str, Any], **more: Any) -> dict[str, str]:
    return {f.id: f.severity for f in check_configs(target, draft, **more).findings}


@pytest.mark.parametrize("name", PAIRS)
def test_the_shipped_pairs_fit(name: str) -> None:
    report = check_pair(MODELS / name / "target", MODELS / name / "draft")
    assert report.ok
    assert not [f for f in report.findings if f.severity == "warning"]
    assert report.facts["block_size"] == 16
    assert report.facts["hybrid"] is (name == "tiny-hybrid")


def test_drafts_of_one_shipped_pair_are_told_from_wrong_targets(tmp_path: Path) -> None:
    draft = tmp_path / "draft"
    shutil.copytree(MODELS / "tiny-dense" / "draft", draft)
    config = json.loads((draft / "config.json").read_text())
    config["num_target_layers"] = 6
    (draft / "config.json").write_text(json.dumps(config))
    assert not check_pair(MODELS / "tiny-dense" / "target", draft).ok


def test_a_published_shape_has_only_hints(configs: Any) -> None:
    assert set(found(*configs).values()) <= {"hint"}


DRAFT_CHANGES: list[tuple[str, str, dict[str, Any]]] = [
    ("not-dflash", "error", {"architectures": ["LlamaForCausalLMEagle3"]}),
    ("draft-has-selector", "error", {"architectures": ["DFlash2DraftModel"]}),
    ("block-size-missing", "warning", {"block_size": None}),
    ("block-size-impossible", "error", {"block_size": 1}),
    ("block-size-conflict", "error", {"dflash_config.block_size": 8}),
    ("block-size-nested-only", "hint", {"block_size": None, "dflash_config.block_size": 16}),
    ("block-size-top-level-only", "hint", {}),
    ("mask-token-missing", "error", {"dflash_config.mask_token_id": None}),
    ("mask-token-outside", "error", {"dflash_config.mask_token_id": 248320}),
    ("mask-token-is-end", "warning", {"dflash_config.mask_token_id": 248044}),
    ("taps-missing", "error", {"dflash_config.target_layer_ids": None}),
    ("taps-order", "error", {"dflash_config.target_layer_ids": [16, 1]}),
    ("taps-outside", "error", {"dflash_config.target_layer_ids": [1, 63]}),
    ("target-depth", "error", {"num_target_layers": 36}),
    ("hidden-size", "error", {"hidden_size": 4096}),
    ("vocab-size", "error", {"vocab_size": 151936}),
    ("draft-quantised", "warning", {"quantization_config": {"quant_method": "awq"}}),
    ("dtype", "warning", {"dtype": "float16"}),
    ("rope-conflict", "error", {"rope_parameters": {"rope_theta": 1e4}}),
    ("rope-nested-only", "hint", {"rope_theta": None, "rope_parameters": {"rope_theta": 1e7}}),
    ("rope-missing", "error", {"rope_theta": None}),
    ("rope-differs", "warning", {"rope_theta": 1e6}),
    ("rope-scaling", "warning", {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}),
    ("layer-types-length", "error", {"layer_types": ["full_attention"] * 4}),
    ("layer-types-unknown", "error", {"layer_types": ["chunked_attention"] * 5}),
    ("window-missing", "error", {"sliding_window": None}),
    ("window-switched-off", "warning", {"use_sliding_window": False}),
    ("window-dropped", "warning", {"layer_types": ["full_attention"] * 5}),
    ("context-shorter", "warning", {"max_position_embeddings": 4096}),
    ("config-value", "error", {"block_size": "sixteen"}),
]


@pytest.mark.parametrize(("name", "severity", "change"), DRAFT_CHANGES, ids=[c[0] for c in DRAFT_CHANGES])
def test_a_mismatch_in_the_draft_is_named(configs: Any, name: str, severity: str, change: dict[str, Any]) -> None:
    target, draft = configs
    for key, value in change.items():
        place, _, inner = key.rpartition(".")
        (draft[place] if place else draft)[inner] = value
    report = check_configs(target, draft)
    assert {f.id: f.severity for f in report.findings}.get(name) == severity
    assert report.ok is not any(f.severity == "error" for f in report.findings)


SERVICES: list[tuple[str, str, dict[str, Any]]] = [
    ("fp8-kv", "warning", {"kv_cache_dtype": "fp8_e4m3"}),
    ("tp-heads", "error", {"tp_size": 3}),
    ("state-dtype", "warning", {"mamba_ssm_dtype": "bfloat16"}),
    ("block-size-service", "error", {"speculative_dflash_block_size": 8}),
]


@pytest.mark.parametrize(("name", "severity", "service"), SERVICES, ids=[s[0] for s in SERVICES])
def test_a_mismatch_with_the_service_is_named(configs: Any, name: str, severity: str, service: dict[str, Any]) -> None:
    assert found(*configs, service=service)[name] == severity


def test_weights_are_compared_with_the_configuration(configs: Any) -> None:
    target, draft = configs
    good = {
        "fc.weight": ("BF16", (5120, 25600)),
        "hidden_norm.weight": ("BF16", (5120,)),
        "norm.weight": ("BF16", (5120,)),
    }
    good |= {f"layers.{i}.input_layernorm.weight": ("BF16", (5120,)) for i in range(5)}
    assert "error" not in found(target, draft, draft_tensors=good).values()
    assert found(target, draft, draft_tensors=good | {"fc.weight": ("BF16", (5120, 10240))})["fc-shape"] == "error"
    fewer = {k: v for k, v in good.items() if not k.startswith("layers.4")}
    assert found(target, draft, draft_tensors=fewer)["draft-layers"] == "error"
    headless = {k: v for k, v in good.items() if k != "norm.weight"}
    assert found(target, draft, draft_tensors=headless)["draft-tensor-missing"] == "error"
    own = good | {"lm_head.weight": ("BF16", (248320, 5120))}
    assert found(target, draft, draft_tensors=own)["draft-own-head"] == "hint"


def test_the_head_is_looked_at(configs: Any) -> None:
    target, draft = configs
    body = {"model.embed_tokens.weight": ("BF16", (248320, 5120))}
    assert found(target, draft, target_tensors=body)["head-missing"] == "error"
    fp8 = body | {"lm_head.weight": ("F8_E4M3", (248320, 5120))}
    assert found(target, draft, target_tensors=fp8)["head-quantised"] == "warning"
    packed = body | {"lm_head.weight_packed": ("I32", (248320, 640))}
    assert found(target, draft, target_tensors=packed)["head-quantised"] == "warning"
    tied = copy.deepcopy(target) | {"tie_word_embeddings": True}
    assert "head-missing" not in found(tied, draft, target_tensors=body)


def test_tokenizers_and_mask_strings_are_compared(configs: Any) -> None:
    target, draft = configs
    tokenizer = {"model": {"vocab": {"a": 0}}, "added_tokens": [{"content": "<|MASK|>", "id": 248077}]}
    other = copy.deepcopy(tokenizer) | {"model": {"vocab": {"b": 0}}}
    assert found(target, draft, target_tokenizer=tokenizer, draft_tokenizer=other)["tokenizer-differs"] == "error"
    draft["dflash_config"]["mask_token"] = "<|MASK|>"
    assert found(target, draft, target_tokenizer=tokenizer)["mask-token-conflict"] == "error"
    del draft["dflash_config"]["mask_token_id"]
    assert found(target, draft, target_tokenizer=tokenizer)["mask-token-missing"] == "warning"


def test_other_hints(configs: Any) -> None:
    target, draft = configs
    assert found(target, draft, chat_template="{% if enable_thinking %}")["thinking-mode"] == "hint"
    assert found(target, draft)["mrope"] == "hint"
    assert found(target | {"quantization_config": {"quant_method": "fp8"}}, draft)["target-quantised"] == "hint"
    assert found(draft, draft)["swapped"] == "error"


def test_damaged_folders_are_findings(tmp_path: Path) -> None:
    report = check_pair(tmp_path / "nowhere", MODELS / "tiny-dense" / "draft")
    assert [f.id for f in report.findings] == ["config-missing"]
    assert not report.ok
    draft = tmp_path / "draft"
    shutil.copytree(MODELS / "tiny-dense" / "draft", draft)
    weights = draft / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    assert "weights-unreadable" in {f.id for f in check_pair(MODELS / "tiny-dense" / "target", draft).findings}
    (draft / "config.json").write_text('{"block_size": ')
    assert "config-unreadable" in {f.id for f in check_pair(MODELS / "tiny-dense" / "target", draft).findings}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
KEYS = st.sampled_from(
    [
        "block_size",
        "dflash_config",
        "layer_types",
        "rope_theta",
        "rope_parameters",
        "text_config",
        "vocab_size",
        "num_hidden_layers",
        "sliding_window",
        "architectures",
        "quantization_config",
        "num_attention_heads",
        "hidden_size",
    ]
)


@settings(max_examples=400, deadline=None)
@given(target=st.dictionaries(KEYS, JSON), draft=st.dictionaries(KEYS, JSON))
def test_no_configuration_makes_the_check_fail_itself(target: dict[str, Any], draft: dict[str, Any]) -> None:
    report = check_configs(target, draft)
    assert json.dumps(report.to_json())
    assert not report.ok
