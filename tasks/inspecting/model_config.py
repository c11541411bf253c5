"""What a model is, read from the files of its folder: architecture, dimensions, quantisation, tokenizer, template."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tasks.inspecting.answers import from_json

FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "chat_template.json",
    "model.safetensors.index.json",
    "hf_quant_config.json",
    "quantize_config.json",
)
BYTES = {
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "float8_e4m3fn": 1,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
    "fp8": 1,
    "auto": 2,
}
LARGEST = 10**9  # no dimension, context or count of requests comes near
LARGEST_FILE = 1 << 50
WEIGHT_ENDINGS = (".safetensors", ".bin", ".gguf", ".pt")
OTHER_RECURRENCES = re.compile(
    r"kimi_linear|mamba|nemotron_h|falcon_h1|granitemoehybrid|bamba|zamba|minimax|lfm2|jamba", re.I
)


class ModelUnreadable(ValueError):
    """The folder holds no model configuration that can be read; the message names file and field."""


@dataclass(frozen=True)
class FullAttention:
    """The layers with softmax attention and a KV cache."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int

    def kv_bytes_per_token(self, dtype_bytes: int = 2, tp: int = 1) -> int:
        return 2 * self.layers * max(1, self.kv_heads // tp) * self.head_dim * dtype_bytes


@dataclass(frozen=True)
class LinearAttention:
    """Gated DeltaNet layers: one [value heads, dv, dk] state and a short convolution window per layer and request."""

    layers: int
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv_kernel: int
    state_dtype: str = "float32"

    @property
    def conv_channels(self) -> int:
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    @property
    def state_bytes_per_layer(self) -> int:
        return self.value_heads * self.value_dim * self.key_dim * BYTES.get(self.state_dtype, 4)

    @property
    def conv_bytes_per_layer(self) -> int:
        return self.conv_channels * (self.conv_kernel - 1) * 2


@dataclass(frozen=True)
class ModelFacts:
    """A target or draft model. `kind` is dense, moe, hybrid or hybrid-moe; sizes are elements unless named bytes."""

    path: str
    architecture: str
    model_type: str
    kind: str
    hidden: int
    intermediate: int
    layers: int
    vocab: int
    dtype: str
    full: FullAttention
    linear: LinearAttention | None = None
    other_recurrence: str = ""
    experts: int = 0
    experts_per_token: int = 0
    moe_intermediate: int = 0
    sliding_window: int | None = None
    sliding_layers: int = 0
    max_context: int | None = None
    mrope: bool = False
    tied_embeddings: bool = False
    quantisation: str = "none"
    weight_bytes: int | None = None
    tokenizer: str = ""
    thinking: str = "none"
    eos: list[int] = field(default_factory=list)
    block: int | None = None
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def hybrid(self) -> bool:
        return self.linear is not None or bool(self.other_recurrence)

    @property
    def parameters(self) -> int:
        """Estimate from the dimensions (embeddings, attention, MLP or experts); norms and biases left out."""
        attention = self.full.layers * self.hidden * self.full.head_dim * (2 * self.full.heads + 2 * self.full.kv_heads)
        if self.linear:
            inner = self.linear.value_heads * self.linear.value_dim
            mixed = self.linear.conv_channels + 2 * inner
            attention += self.linear.layers * self.hidden * mixed
        width = self.experts * self.moe_intermediate if self.experts else self.intermediate
        embeddings = self.vocab * self.hidden * (1 if self.tied_embeddings else 2)
        return attention + 3 * self.layers * self.hidden * width + embeddings

    @property
    def active_parameters(self) -> int:
        """Parameters that one token multiplies with (lm_head included, embedding look-up not)."""
        if not self.experts:
            return self.parameters - self.vocab * self.hidden * (0 if self.tied_embeddings else 1)
        idle = (self.experts - self.experts_per_token) * self.moe_intermediate
        return self.parameters - 3 * self.layers * self.hidden * idle - self.vocab * self.hidden

    @property
    def weights(self) -> int:
        """Bytes of the weight files; estimated from the dimensions when they are not there."""
        return self.weight_bytes if self.weight_bytes else round(self.parameters * bytes_per_parameter(self))

    def to_json(self) -> dict[str, Any]:
        facts = {k: v for k, v in asdict(self).items() if k != "raw"}
        return {
            **facts,
            "parameters": self.parameters,
            "active_parameters": self.active_parameters,
            "weights": self.weights,
        }


def bytes_per_parameter(model: ModelFacts) -> float:
    if model.quantisation in ("fp8", "compressed-tensors-fp8", "modelopt-fp8", "int8"):
        return 1.03
    if re.search(r"fp4|int4|awq|gptq|4bit", model.quantisation):
        return 0.56
    return float(BYTES.get(model.dtype, 2))


def read_model(path: str, texts: Mapping[str, str], listing: Sequence[tuple[str, int]] = ()) -> ModelFacts:
    """Facts from the texts of a model folder's small files; raises ModelUnreadable with file and field."""
    if "config.json" not in texts:
        raise ModelUnreadable(f"{path} has no config.json; name the folder that holds the model's files")
    config = _json(path, "config.json", texts["config.json"])
    text = next(
        (config[k] for k in ("text_config", "llm_config", "language_config") if isinstance(config.get(k), dict)), config
    )
    layers = _count(text, path, "num_hidden_layers", "n_layer", "num_layers")
    linear, full_layers, other = _layer_kinds(text, layers, path)
    experts = _size(text, path, "num_experts", "n_routed_experts", "num_local_experts")
    heads = _count(text, path, "num_attention_heads", "n_head")
    hidden = _count(text, path, "hidden_size", "n_embd")
    sliding_layers = sum(kind == "sliding_attention" for kind in _list(text, "layer_types"))
    kind = (
        ("hybrid" if linear or other else "")
        + ("-" if experts and (linear or other) else "")
        + ("moe" if experts else "")
    )
    return ModelFacts(
        path=path,
        architecture=str((_list(config, "architectures") or ["?"])[0]),
        model_type=str(config.get("model_type", "?")),
        kind=kind or "dense",
        hidden=hidden,
        intermediate=_size(text, path, "intermediate_size", "moe_intermediate_size") or 4 * hidden,
        layers=layers,
        vocab=_count(text, path, "vocab_size"),
        dtype=str(
            text.get("dtype")
            or text.get("torch_dtype")
            or config.get("dtype")
            or config.get("torch_dtype")
            or "bfloat16"
        ),
        full=FullAttention(
            full_layers,
            heads,
            _size(text, path, "num_key_value_heads") or heads,
            _size(text, path, "head_dim") or hidden // heads,
        ),
        linear=linear,
        other_recurrence=other,
        experts=experts,
        experts_per_token=_size(text, path, "num_experts_per_tok", "top_k_experts"),
        moe_intermediate=_size(text, path, "moe_intermediate_size"),
        sliding_window=(
            _size(text, path, "sliding_window") or None if text.get("use_sliding_window", sliding_layers > 0) else None
        ),
        sliding_layers=sliding_layers,
        max_context=_size(text, path, "max_position_embeddings") or None,
        mrope="mrope_section" in json.dumps(text.get("rope_scaling") or text.get("rope_parameters") or {}),
        tied_embeddings=bool(text.get("tie_word_embeddings", config.get("tie_word_embeddings", False))),
        quantisation=_quantisation(config, texts, path),
        weight_bytes=_weight_bytes(texts, listing, path),
        tokenizer=_tokenizer(texts, path),
        thinking=_thinking(texts, path),
        eos=_eos(config, text, texts, path),
        block=_block(config, path),
        raw=config,
    )


def _json(path: str, name: str, text: str) -> dict[str, Any]:
    try:
        value = from_json(text)
    except (ValueError, RecursionError) as error:
        raise ModelUnreadable(f"{path}/{name} is not valid JSON ({error}); copy the model again") from None
    if not isinstance(value, dict):
        raise ModelUnreadable(f"{path}/{name} holds no JSON object; copy the model again")
    return value


def _count(config: Mapping[str, Any], path: str, *names: str) -> int:
    for name in names:
        value = config.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= LARGEST:
            return value
    raise ModelUnreadable(
        f"{path}/config.json has no positive {' or '.join(names)}; the model can't be judged without it"
    )


def _size(config: Mapping[str, Any], path: str, *names: str) -> int:
    """The first of these that is set; 0 when none is. ModelUnreadable for what is no size."""
    name, value = next(((name, config[name]) for name in names if config.get(name)), ("", 0))
    if isinstance(value, int | float) and 0 <= value <= LARGEST and value == int(value):
        return int(value)
    raise ModelUnreadable(f"{path}/config.json: {name} is {str(value)[:40]!r}, which is no size; copy the model again")


def _list(config: Mapping[str, Any], name: str) -> list[Any]:
    value = config.get(name)
    return value if isinstance(value, list) else []


def _table(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _layer_kinds(text: Mapping[str, Any], layers: int, path: str) -> tuple[LinearAttention | None, int, str]:
    """(Gated DeltaNet layers, number of softmax layers, name of another recurrence that has no tree form here)."""
    types = _list(text, "layer_types")
    interval, value_heads = _size(text, path, "full_attention_interval"), _size(text, path, "linear_num_value_heads")
    linear_count = sum(kind == "linear_attention" for kind in types)
    if not types and interval and value_heads:
        linear_count = layers - layers // interval
    if linear_count and value_heads:
        linear = LinearAttention(
            layers=linear_count,
            key_heads=_size(text, path, "linear_num_key_heads") or value_heads,
            value_heads=value_heads,
            key_dim=_size(text, path, "linear_key_head_dim") or 128,
            value_dim=_size(text, path, "linear_value_head_dim") or 128,
            conv_kernel=_size(text, path, "linear_conv_kernel_dim") or 4,
            state_dtype=str(text.get("mamba_ssm_dtype") or "float32"),
        )
        return linear, layers - linear_count, ""
    names = f"{text.get('model_type', '')} {' '.join(map(str, types))}"
    match = OTHER_RECURRENCES.search(names)
    if match or linear_count:
        known = sum(kind in ("full_attention", "attention") for kind in types)
        return None, known or layers - linear_count, match[0].lower() if match else "unknown linear attention"
    return None, layers, ""


def _quantisation(config: Mapping[str, Any], texts: Mapping[str, str], path: str) -> str:
    given = _table(config.get("quantization_config"))
    if not given and "hf_quant_config.json" in texts:
        given = {
            "quant_method": "modelopt",
            **_table(_json(path, "hf_quant_config.json", texts["hf_quant_config.json"]).get("quantization")),
        }
    if not given and "quantize_config.json" in texts:
        given = {"quant_method": "gptq"}
    method = str(given.get("quant_method") or "").lower()
    detail = json.dumps(given).lower()
    if method in ("modelopt", "compressed-tensors"):
        width = (
            "fp4"
            if "fp4" in detail
            else "fp8"
            if "fp8" in detail or '"float"' in detail
            else "int4"
            if '"num_bits": 4' in detail
            else "int8"
        )
        return f"{method}-{width}"
    return method or "none"


def _weight_bytes(texts: Mapping[str, str], listing: Sequence[tuple[str, int]], path: str) -> int | None:
    """Sum of weight files of the folder; the index's figure when the files are elsewhere (links, another disk)."""
    total = sum(size for name, size in listing if name.endswith(WEIGHT_ENDINGS))
    index = texts.get("model.safetensors.index.json")
    if not total and index:
        size = _table(_json(path, "model.safetensors.index.json", index).get("metadata")).get("total_size")
        total = int(size) if isinstance(size, int | float) and 0 <= size <= LARGEST_FILE else 0
    return total or None


def _tokenizer(texts: Mapping[str, str], path: str) -> str:
    text = texts.get("tokenizer_config.json")
    return str(_json(path, "tokenizer_config.json", text).get("tokenizer_class") or "?") if text else ""


def chat_template(texts: Mapping[str, str], path: str) -> str:
    """The chat template of a model folder, '' without one."""
    if "chat_template.jinja" in texts:
        return texts["chat_template.jinja"]
    for name in ("chat_template.json", "tokenizer_config.json"):
        if name in texts:
            value = _json(path, name, texts[name]).get("chat_template")
            if isinstance(value, str):
                return value
            if isinstance(value, list):
                return "\n".join(str(item.get("template", "")) for item in value if isinstance(item, dict))
    return ""


def _thinking(texts: Mapping[str, str], path: str) -> str:
    """none, always, switchable (a template variable decides) or unknown (no template)."""
    template = chat_template(texts, path)
    if not template:
        return "unknown"
    if "enable_thinking" in template or "reasoning_effort" in template:
        return "switchable"
    return "always" if "<think>" in template else "none"


def _eos(config: Mapping[str, Any], text: Mapping[str, Any], texts: Mapping[str, str], path: str) -> list[int]:
    generation = (
        _json(path, "generation_config.json", texts["generation_config.json"])
        if "generation_config.json" in texts
        else {}
    )
    value = generation.get("eos_token_id", text.get("eos_token_id", config.get("eos_token_id")))
    return [int(v) for v in (value if isinstance(value, list) else [value]) if isinstance(v, int)]


def _block(config: Mapping[str, Any], path: str) -> int | None:
    """A DFlash draft's block size: top level or in dflash_config."""
    places = (config, _table(config.get("dflash_config")))
    return next((found for place in places if (found := _size(place, path, "block_size"))), None)
