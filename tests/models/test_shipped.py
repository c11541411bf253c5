"""The pairs in the repository are what their README and provenance say."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import torch
from models.convert import to_qwen3_next
from models.train import layers
from models.train.modules import Target
from models.train.spec import PAIRS, SPECIAL_TOKENS, draft_config, target_config
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

MODELS = Path(__file__).resolve().parents[2] / "engine" / "models"
SHIPPED = ("tiny-dense", "tiny-hybrid")


@pytest.fixture(params=SHIPPED)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


def test_everything_shipped_is_below_12_megabytes() -> None:
    files = [f for n in SHIPPED for f in (MODELS / n).rglob("*") if f.is_file()]
    assert len(files) > 10
    assert sum(f.stat().st_size for f in files) <= 12_000_000


def test_both_targets_share_one_tokenizer_with_a_chat_template() -> None:
    first, second = ((MODELS / n / "target" / "tokenizer.json").read_bytes() for n in SHIPPED)
    assert first == second
    tokenizer = AutoTokenizer.from_pretrained(MODELS / "tiny-dense" / "target")
    assert [tokenizer.convert_tokens_to_ids(t) for t in SPECIAL_TOKENS] == [0, 1, 2, 3]
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], add_generation_prompt=True, tokenize=False
    )
    assert text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    sample = "def f(x):\n\treturn 'ä' + x  # ½\n"
    assert tokenizer.decode(tokenizer(sample)["input_ids"]) == sample


def test_configurations_are_those_of_the_training_code(name: str) -> None:
    spec = PAIRS[name]
    for part, config in (("target", target_config(spec)), ("draft", draft_config(spec))):
        assert json.loads((MODELS / name / part / "config.json").read_text()) == config


def test_provenance_names_data_losses_device_and_this_tokenizer(name: str) -> None:
    provenance = json.loads((MODELS / name / "provenance.json").read_text())
    tokenizer = (MODELS / name / "target" / "tokenizer.json").read_text(encoding="utf-8")
    assert provenance["tokenizer_sha256"] == hashlib.sha256(tokenizer.encode()).hexdigest()
    assert provenance["pair"]["name"] == name
    assert len(provenance["data"]["sha256"]) == 64
    assert 1.0 < provenance["held_out_loss_nats"] < 2.5
    for part in ("target", "draft"):
        weights = load_file(MODELS / name / part / "model.safetensors")
        assert sum(t.numel() for t in weights.values()) == provenance[part]["parameters"]
        assert provenance[part]["steps"] > 100


def load_own(name: str) -> Target:
    target = Target(PAIRS[name], torch.Generator().manual_seed(0))
    with torch.no_grad():
        for key, value in load_file(MODELS / name / "target" / "model.safetensors").items():
            target.weight(key).copy_(value.float())
    return target


@torch.no_grad()
def test_training_code_and_transformers_compute_the_same(name: str) -> None:
    theirs = AutoModelForCausalLM.from_pretrained(MODELS / name / "target", dtype=torch.float32).eval()
    ids = torch.randint(4, 2048, (2, 150), generator=torch.Generator().manual_seed(1))
    expected = theirs(ids, output_hidden_states=True)
    own = load_own(name)
    hidden, features = own(ids, torch.float32)
    torch.testing.assert_close(layers.linear(hidden, own.head), expected.logits, atol=2e-4, rtol=1e-4)
    tapped = torch.cat([expected.hidden_states[i + 1] for i in PAIRS[name].taps], -1)
    torch.testing.assert_close(features, tapped, atol=2e-4, rtol=1e-4)


@torch.no_grad()
def test_the_form_for_older_sglang_is_the_same_function(tmp_path: Path) -> None:
    source = MODELS / "tiny-hybrid" / "target"
    to_qwen3_next(source, tmp_path / "next")
    first = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).eval()
    second = AutoModelForCausalLM.from_pretrained(tmp_path / "next", dtype=torch.float32).eval()
    assert type(second).__name__ == "Qwen3NextForCausalLM"
    ids = torch.randint(4, 2048, (2, 100), generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(second(ids).logits, first(ids).logits, atol=2e-4, rtol=1e-4)


def test_only_qwen35_targets_are_converted(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="only those are converted"):
        to_qwen3_next(MODELS / "tiny-dense" / "target", tmp_path)
